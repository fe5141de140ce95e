"""Compile CUDA C++ source to a cubin, and read each kernel's registers, local and shared memory from it.

Imports no TVM: the source comes as text. Neither a GPU nor a driver is needed.

Examples
--------
>>> from roller_tvm.toolchain import compile_cuda, kernel_resources
>>> source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
>>> cubin = compile_cuda(source, "sm_80")                      # doctest: +SKIP
>>> print(kernel_resources(cubin)["twice"])                    # doctest: +SKIP
8 registers, 0 B local, 0 B shared
"""

from roller_tvm.toolchain.compile import Cubin, compile_cuda
from roller_tvm.toolchain.compilers import Compiler, find_compilers
from roller_tvm.toolchain.resources import KernelResources, kernel_resources

__all__ = ["Compiler", "Cubin", "KernelResources", "compile_cuda", "find_compilers", "kernel_resources"]
