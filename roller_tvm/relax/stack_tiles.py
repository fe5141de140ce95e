"""StackTiles: register tiles of AVX-512 on the stack, where LLVM can make registers of them.

TVM puts what a kernel keeps on the stack below 1 KiB only, which 16 registers of 64 bytes are, and asks its workspace
pool for the rest. LLVM then keeps sums in registers only within a loop of few accesses, else it stores each to memory
whenever it changes: half as long again in a depthwise convolution.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import tirx

from ..device.cpu_data import register_file_bytes
from .before_llvm import before_llvm, marked

#: Of a PrimFunc: it is to be built so.
MARK = "roller_tvm.stack_tiles"
#: How TVM is told to leave an allocation as it is.
_ON_THE_STACK = "disable_lower_builtin"
_BITS_OF_A_BYTE = 8


@tvm.transform.module_pass(opt_level=0, name="StackTiles")
class StackTiles:
    """Have kernels for llvm keep on the stack what fits into the registers; what they compute is the same.

    It marks PrimFuncs; ``tvm.compile`` does the rest where this module is imported. Put it last of the passes on
    PrimFuncs; ``build`` and the pipeline "roller" have it.

    Examples
    --------
    >>> mod = StackTiles()(ScheduleWithRoller(target)(mod))  # doctest: +SKIP
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs marked."""
        return marked(mod, MARK)


def with_stack_tiles(func: Any) -> Any:
    """A flattened PrimFunc whose buffers up to the largest register file TVM is told to leave on the stack.

    Examples
    --------
    >>> func = with_stack_tiles(func)  # doctest: +SKIP
    """
    import tvm_ffi

    return tvm_ffi.structural_map(func, (tirx.AllocBuffer, _on_the_stack), order="post")


def _on_the_stack(allocated: Any) -> Any:
    buffer = allocated.buffer
    if not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return allocated
    dtype = tvm.DataType(str(buffer.dtype))
    size = prod(int(extent) for extent in buffer.shape) * dtype.bits * dtype.lanes // _BITS_OF_A_BYTE
    if not 0 < size <= register_file_bytes():
        return allocated
    told = dict(allocated.annotations) | {_ON_THE_STACK: tirx.const(True, "bool")}
    return tirx.AllocBuffer(buffer, told)


before_llvm(MARK, with_stack_tiles)
