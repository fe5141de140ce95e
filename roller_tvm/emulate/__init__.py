"""CUDA C++ executed on the CPU: what TVM generates for a GPU, run and checked without one.

Threads of a block are fibres; barriers, warp operations, tensor-core instructions and asynchronous copies are
emulated, and every access to memory is checked: bounds, memory nobody wrote, races between threads and blocks, copies
nobody waited for, barriers that part of a block does not reach.
"""

from roller_tvm.emulate.check import Checked, check, check_on_pocl
from roller_tvm.emulate.errors import KernelFault, NotEmulated
from roller_tvm.emulate.function import Function
from roller_tvm.emulate.host import BufferSpec, HostCode, Launch
from roller_tvm.emulate.kept import BuiltKernels, Emulation
from roller_tvm.emulate.opencl import OpenClFunction
from roller_tvm.emulate.program import DeviceArray, Program, compile_source
from roller_tvm.emulate.source import CudaSource, Kernel, Parameter

compile = compile_source

__all__ = [
    "BufferSpec", "BuiltKernels", "Checked", "CudaSource", "DeviceArray", "Emulation", "Function", "HostCode", "Kernel",
    "KernelFault", "Launch", "NotEmulated", "OpenClFunction", "Parameter", "Program", "check", "check_on_pocl",
    "compile", "compile_source",
]  # fmt: skip
