"""StackTiles: register tiles of AVX-512 on the stack, where LLVM can make registers of them.

TVM puts what a kernel keeps on the stack below 1 KiB only (nothing of the scope "local"): 16 registers of 64 bytes are
that much, and it asks its workspace pool for them. LLVM then keeps sums in registers only in a loop of few accesses,
else it stores each to memory whenever it changes: up to eight times the time of a depthwise convolution.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from ..device.cpu_data import register_file_bytes
from .before_llvm import BeforeLlvm

_BITS_OF_A_BYTE = 8


class StackTiles(BeforeLlvm):
    """Kernels that are built for LLVM in this context keep what fits into the registers on the stack.

    What they compute is the same. Schedules and records know nothing of it, so that what TVM, Ansor and Roller schedule
    all gain.

    Parameters
    ----------
    on : bool
        False: as TVM does it, inside of a context that does otherwise.

    Examples
    --------
    >>> with StackTiles():  # doctest: +SKIP
    ...     lib = relay.build(mod, "llvm -mcpu=skylake-avx512", params=params)
    """

    state = ContextVar("roller_stack_tiles", default=False)

    @staticmethod
    def rewritten(func: Any) -> Any:
        """The lowered function in this way."""
        return with_stack_tiles(func)


def with_stack_tiles(func: Any) -> Any:
    """A lowered PrimFunc whose workspaces up to the largest register file are on the stack.

    Examples
    --------
    >>> func = with_stack_tiles(func)  # doctest: +SKIP
    """
    from tvm import tir

    found = _Workspaces()
    tir.stmt_functor.post_order_visit(func.body, found.find)
    if not found.elements:
        return func
    kinds = ["tir.LetStmt", "tir.AttrStmt", "tir.IfThenElse"]
    return func.with_body(tir.stmt_functor.ir_transform(func.body, None, found.rewrite, kinds))


class _Workspaces:
    """What LowerTVMBuiltin makes of an allocation: a let, an alignment, a test for null, and the giving back."""

    def __init__(self) -> None:
        #: Variable of a small workspace -> its elements.
        self.elements: dict[Any, int] = {}

    def find(self, node: Any) -> None:
        """Note the small ones."""
        from tvm import tir

        if not isinstance(node, tir.LetStmt) or _called(node.value) != "tir.TVMBackendAllocWorkspace":
            return
        size = node.value.args[2]
        if isinstance(size, tir.IntImm) and size.value <= register_file_bytes():
            dtype = _dtype(node.var)
            self.elements[node.var] = size.value * _BITS_OF_A_BYTE // (dtype.bits * dtype.lanes)

    def rewrite(self, node: Any) -> Any:
        """A statement, its parts done already."""
        from tvm import tir

        if isinstance(node, tir.LetStmt) and node.var in self.elements:
            extents, always = [self.elements[node.var]], tir.const(True)
            return tir.Allocate(node.var, str(_dtype(node.var)), extents, always, node.body)
        if isinstance(node, tir.AttrStmt) and node.attr_key == "storage_alignment" and node.node in self.elements:
            return node.body  # of the pool's memory; the stack's, the generator chooses itself
        if isinstance(node, tir.IfThenElse) and self._asks(node.condition):
            return tir.Evaluate(0)
        return None

    def _asks(self, condition: Any) -> bool:
        """Whether this is the test for null, or whether giving back failed."""
        asked = []

        def ask(node: Any) -> None:
            if _called(node) in ("tir.isnullptr", "tir.TVMBackendFreeWorkspace") and node.args[-1] in self.elements:
                asked.append(node)

        from tvm import tir

        tir.stmt_functor.post_order_visit(condition, ask)
        return bool(asked)


def _called(node: Any) -> str:
    return str(getattr(getattr(node, "op", None), "name", ""))


def _dtype(var: Any) -> Any:
    import tvm

    return tvm.DataType(var.type_annotation.element_type.dtype)
