"""StackTiles: puts register tiles of AVX-512 on the stack, so that LLVM can keep them in registers.

TVM puts a buffer of a kernel on the stack only below 1 KiB (and none of scope "local"). 16 registers of 64 bytes are
1 KiB, so TVM takes them from its workspace pool. LLVM then keeps sums in registers only in loops with few accesses;
otherwise it stores each sum to memory on every change. A depthwise convolution becomes up to eight times slower.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from ..device.cpu_data import register_file_bytes
from .before_llvm import BeforeLlvm

_BITS_OF_A_BYTE = 8


class StackTiles(BeforeLlvm):
    """A context in which kernels for LLVM keep buffers that fit into the registers on the stack.

    Results stay the same. Schedules and records do not change, so TVM's, Ansor's and Roller's schedules all gain.

    Parameters
    ----------
    on : bool
        False restores TVM's own code inside of another such context.

    Examples
    --------
    >>> with StackTiles():  # doctest: +SKIP
    ...     lib = relay.build(mod, "llvm -mcpu=skylake-avx512", params=params)
    """

    state = ContextVar("roller_stack_tiles", default=False)

    @staticmethod
    def rewritten(func: Any) -> Any:
        """Return the lowered function with small workspaces on the stack."""
        return with_stack_tiles(func)


def with_stack_tiles(func: Any) -> Any:
    """Return a lowered PrimFunc with workspaces up to the size of the largest register file on the stack.

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
    """Finds and replaces LowerTVMBuiltin's form of an allocation: let, alignment, null test, release."""

    def __init__(self) -> None:
        #: Variable of a small workspace -> its elements.
        self.elements: dict[Any, int] = {}

    def find(self, node: Any) -> None:
        """Note the workspace of a let statement if it is small enough."""
        from tvm import tir

        if not isinstance(node, tir.LetStmt) or _called(node.value) != "tir.TVMBackendAllocWorkspace":
            return
        size = node.value.args[2]
        if isinstance(size, tir.IntImm) and size.value <= register_file_bytes():
            dtype = _dtype(node.var)
            self.elements[node.var] = size.value * _BITS_OF_A_BYTE // (dtype.bits * dtype.lanes)

    def rewrite(self, node: Any) -> Any:
        """Return the replacement of a statement whose parts are rewritten; None to keep it."""
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
        """Return whether a condition tests a workspace for null, or its release for failure."""
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
