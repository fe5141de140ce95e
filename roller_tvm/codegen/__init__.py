"""Code of kernels: schedule steps applied, flattened functions rewritten, CUDA compiled and its resources read.

Importing this imports no TVM. Compiling CUDA needs neither a GPU nor a driver.

Examples
--------
>>> from roller_tvm.codegen import compile_cuda, kernel_resources
>>> source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
>>> cubin = compile_cuda(source, "sm_80")
>>> print(kernel_resources(cubin)["twice"])
8 registers, 0 B local, 0 B shared
"""

from roller_tvm.codegen.compile import Cubin, compile_cuda
from roller_tvm.codegen.compilers import Compiler, find_compilers
from roller_tvm.codegen.resources import KernelResources, kernel_resources

__all__ = ["Compiler", "Cubin", "KernelResources", "compile_cuda", "find_compilers", "kernel_resources"]
