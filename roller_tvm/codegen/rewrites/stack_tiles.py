"""Register tiles on the stack, so that LLVM can keep them in registers.

TVM puts a buffer of a kernel on the stack only below 1 KiB. 16 registers of 64 bytes (AVX-512) are 1 KiB, so TVM takes
them from its workspace pool. LLVM then keeps sums in registers only in loops with few accesses; otherwise it stores
each sum to memory on every change. A depthwise convolution becomes up to eight times slower.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ...device.known import register_file_bytes
from ..dialect import Dialect
from ..flat import WORKSPACE, called, kind_of, number_of, parts_of, statements

_BITS_OF_A_BYTE = 8
#: Statements of TVM 0.17's form of an allocation: let, alignment, null test, release.
_WORKSPACE = ["tir.LetStmt", "tir.AttrStmt", "tir.IfThenElse"]
#: Annotation by which TVM 0.27 leaves an allocation as it is.
_ON_THE_STACK = "disable_lower_builtin"


def with_stack_tiles(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc with buffers up to the size of the largest register file on the stack."""
    tir = dialect.tir
    if hasattr(tir, "AllocBuffer"):
        return func.with_body(dialect.with_nodes(func.body, lambda node: _kept(node, tir), tir.AllocBuffer))
    elements: dict[Any, int] = {}  # of small workspaces, by their variable
    for node in statements(func.body):
        if kind_of(node) == "LetStmt" and called(node.value) == WORKSPACE:
            size = number_of(node.value.args[2])
            if size is not None and size <= register_file_bytes():
                # TVM refuses an array of no element, and a model of empty tensors has them.
                elements[node.var] = max(1, size * _BITS_OF_A_BYTE // bits_of_dtype(_dtype(node.var)))
    if not elements:
        return func
    return func.with_body(dialect.with_nodes(func.body, lambda node: _allocated(node, elements, tir), _WORKSPACE))


def _kept(allocation: Any, tir: Any) -> Any | None:
    """Return an allocation of TVM 0.27 that stays on the stack; None if it is too large."""
    buffer = allocation.buffer
    extents = [number_of(extent) for extent in buffer.shape]
    size = prod(extent or 0 for extent in extents) * bits_of_dtype(str(buffer.dtype)) // _BITS_OF_A_BYTE
    if not 0 < size <= register_file_bytes():
        return None
    return tir.AllocBuffer(buffer, dict(allocation.annotations) | {_ON_THE_STACK: tir.const(True, "bool")})


def _allocated(node: Any, elements: dict[Any, int], tir: Any) -> Any | None:
    """Return the replacement of a statement of a small workspace of TVM 0.17; None to keep it."""
    kind = kind_of(node)
    if kind == "LetStmt" and node.var in elements:
        return tir.Allocate(node.var, _dtype(node.var), [elements[node.var]], tir.const(True), node.body)
    if kind == "AttrStmt" and node.attr_key == "storage_alignment" and node.node in elements:
        return node.body  # of the pool's memory; the stack's, the generator chooses itself
    if kind == "IfThenElse" and any(_asks(part, elements) for part in parts_of(node.condition)):
        return tir.Evaluate(0)
    return None


def _asks(node: Any, elements: dict[Any, int]) -> bool:
    """Return whether an expression tests a workspace for null, or releases it."""
    return called(node) in ("isnullptr", "TVMBackendFreeWorkspace") and node.args[-1] in elements


def _dtype(var: Any) -> str:
    return str(var.type_annotation.element_type.dtype)


def bits_of_dtype(dtype: str) -> int:
    """Return the bits of an element, or of all lanes of a vector."""
    import tvm

    told = tvm.DataType(dtype)
    return told.bits * told.lanes
