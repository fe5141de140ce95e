"""CUDA C++ executed on the CPU: run and check the code that TVM generates for a GPU, without a GPU.

Threads of a block are fibres. Barriers, warp operations, tensor-core instructions and asynchronous copies are emulated.
Every access to memory is checked for bounds, unwritten memory, races between threads and blocks, and copies nobody
waited for; barriers are checked for threads that do not reach them.
"""

from roller_check.check import Checked, check, check_on_pocl
from roller_check.faults import KernelFault
from roller_check.function import Function
from roller_check.kept import Emulation
from roller_check.pocl import OpenClFunction
from roller_check.run import DeviceArray, Program, compile_source
from roller_tvm.codegen.errors import NotEmulated

compile = compile_source

__all__ = [
    "Checked", "DeviceArray", "Emulation", "Function", "KernelFault", "NotEmulated", "OpenClFunction", "Program",
    "check", "check_on_pocl", "compile", "compile_source",
]  # fmt: skip
