"""Kernels that only their virtual machine calls, with tensors that it allocated: their arguments are not checked.

A kernel that TVM makes checks each argument first: kind, dtype, shape, strides, device. In a small kernel that is most
of the code, and more than half of LLVM's time.
"""

from __future__ import annotations

from typing import Any

from ..codegen.dialect import dialect_here
from ..codegen.flat import in_order, kind_of

#: Mark of a PrimFunc all of whose tensors its own virtual machine allocates.
OWN_MEMORY = "roller_tvm.own_memory"
#: Key of the attribute around what a kernel computes; before it stands what TVM adds.
_COMPUTES = "compute_scope"


def without_checks(func: Any) -> Any:
    """Return a kernel, its arguments unpacked already (TVM's ``MakePackedAPI``), without the checks of these.

    Checks that the kernel had itself stay.

    Examples
    --------
    >>> func = without_checks(func)
    """
    body = _unchecked(func.body)
    return func if body is None else func.with_body(body)


def _unchecked(statement: Any) -> Any | None:
    """Return a statement without checks; None if it is nothing else."""
    kind, tir = kind_of(statement), dialect_here().tir
    if kind == "AssertStmt":
        return None
    if kind == "SeqStmt":
        parts = [made for part in statement.seq if (made := _unchecked(part)) is not None]
        return in_order(parts, tir) if parts else None
    if kind == "IfThenElse" and statement.else_case is None:  # strides, where there are any
        return None if _unchecked(statement.then_case) is None else statement
    if kind == "AttrStmt" and str(statement.attr_key) != _COMPUTES:
        body = _unchecked(statement.body)
        return None if body is None else tir.AttrStmt(statement.node, statement.attr_key, statement.value, body)
    return statement
