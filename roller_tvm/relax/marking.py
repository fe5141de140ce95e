"""Stores of a scheduled function marked with the instances of their blocks, for proofs (``proofs/matching.py``)."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from ..schedules.proofs.blocks import INSTANCE


def marked(func: Any) -> Any:
    """Return a function whose blocks' stores are marked with the name of the block and the values of its axes."""

    def block(node: Any) -> Any:
        if type(node.body).__name__ != "BufferStore":
            return node
        values = [axis.var for axis in node.iter_vars]
        named = tirx.call_extern("int64", str(node.name_hint), *values)
        body = tirx.AttrStmt(tirx.const(0, "int32"), INSTANCE, named, node.body)
        return s_tir.SBlock(
            node.iter_vars, node.reads, node.writes, node.name_hint, body, node.init, node.alloc_buffers,
            node.match_buffers, node.annotations,
        )  # fmt: skip

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, block), order="post"))


def unmarked(func: Any) -> Any:
    """Return a function without the marks."""

    def mark(node: Any) -> Any:
        return node.body if str(node.attr_key) == INSTANCE else node

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.AttrStmt, mark), order="post"))
