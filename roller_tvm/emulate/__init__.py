"""CUDA C++ executed on the CPU: run and check the code that TVM generates for a GPU, without a GPU.

Threads of a block are fibres. Barriers, warp operations, tensor-core instructions and asynchronous copies are emulated.
Every access to memory is checked for bounds, unwritten memory, races between threads and blocks, and copies nobody
waited for; barriers are checked for threads that do not reach them.
"""

from roller_tvm.codegen.built_kernels import BuiltKernels
from roller_tvm.codegen.cuda_text import CudaSource, Kernel, Parameter
from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.codegen.host_code import BufferSpec, HostCode, Launch
from roller_tvm.emulate.check import Checked, check, check_on_pocl
from roller_tvm.emulate.errors import KernelFault
from roller_tvm.emulate.function import Function
from roller_tvm.emulate.kept import Emulation
from roller_tvm.emulate.opencl import OpenClFunction
from roller_tvm.emulate.program import DeviceArray, Program, compile_source

compile = compile_source

__all__ = [
    "BufferSpec", "BuiltKernels", "Checked", "CudaSource", "DeviceArray", "Emulation", "Function", "HostCode", "Kernel",
    "KernelFault", "Launch", "NotEmulated", "OpenClFunction", "Parameter", "Program", "check", "check_on_pocl",
    "compile", "compile_source",
]  # fmt: skip
