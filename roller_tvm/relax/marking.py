"""Stores of a scheduled function marked with the instances of their blocks, for proofs (``proofs/matching.py``)."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from ..codegen.dialect import dialect_here
from ..codegen.flat import access_of, is_load, kind_of, memory_of, parts_of
from ..schedules.proofs.blocks import INSTANCE, Blocks, same
from ..schedules.proofs.parts import Tiles, axes_of_parts
from ..te.numbering import dtype_of_node

#: A mark within a sum, which TVM reduces over threads by its form: the call hands its first argument on.
_VALUE = f"{INSTANCE}_value"


def marked(func: Any, blocks: Blocks) -> Any:
    """Return a function whose blocks' stores are marked with the name of the block and the values of its axes.

    A block of parts of a sum (``rfactor``) is marked as the block of which it has the parts. What adds these up is not.
    """

    parts, tiles = set[int](), Tiles()  # memory of parts of sums, and of their copies

    def seen(node: Any) -> None:
        if kind_of(node.body) != "BufferStore":
            return
        copied = is_load(node.body.value) and memory_of(access_of(node.body.value)[0]) in parts
        if copied or blocks.of_parts(str(node.name_hint)) is not None:
            parts.add(memory_of(node.body.buffer))

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, seen))

    def block(node: Any) -> Any:
        store, name = node.body, str(node.name_hint)
        if kind_of(store) != "BufferStore":
            return node
        values, own, summed = [axis.var for axis in node.iter_vars], blocks.named(name), blocks.of_parts(name)
        read = {memory_of(access_of(part)[0]) for part in parts_of(store.value) if is_load(part)}
        if not parts.isdisjoint(read - {memory_of(store.buffer)}):
            return node
        if summed is not None:
            name, values = summed.name, axes_of_parts(summed, store, tirx.const(0, "int64"), tiles)
        elif own is not None or is_load(store.value):
            values = tiles.axes_of(own, store, values)
        if node.init is None:
            body = _around(store, name, values)
        elif (body := _marked_sum(store, name, values)) is None:
            return node
        return s_tir.SBlock(
            node.iter_vars, node.reads, node.writes, node.name_hint, body, node.init, node.alloc_buffers,
            node.match_buffers, node.annotations,
        )  # fmt: skip

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, block), order="post"))


def _around(store: Any, name: str, values: list[Any]) -> Any:
    return tirx.AttrStmt(tirx.const(0, "int32"), INSTANCE, tirx.call_extern("int64", name, *values), store)


def _marked_sum(store: Any, name: str, values: list[Any]) -> Any:
    """Return a sum with the mark around its term; None if the store is no sum."""
    sides = [getattr(store.value, side, None) for side in ("a", "b")]
    own = [side is not None and is_load(side) and _is_of(side, store) for side in sides]
    if sum(own) != 1:
        return None
    term = sides[own.index(False)]
    call = dialect_here().extern(dtype_of_node(term), _VALUE, [term, name, *values])
    made = [side if is_own else call for side, is_own in zip(sides, own, strict=True)]
    return tirx.BufferStore(store.buffer, type(store.value)(*made), list(store.indices))


def _is_of(load: Any, store: Any) -> bool:
    buffer, indices = access_of(load)
    return memory_of(buffer) == memory_of(store.buffer) and all(map(same, indices, store.indices))


def around_stores(func: Any) -> Any:
    """Return a lowered function with all marks around stores, none in their values."""

    def store(node: Any) -> Any:
        marks: list[Any] = []

        def term(call: Any) -> Any:
            if not _is_mark(call):
                return call
            marks.append(call)
            return call.args[1]

        value = tvm_ffi.structural_map(node.value, (dialect_here().calls, term), order="post")
        if len(marks) != 1:
            return node if not marks else tirx.BufferStore(node.buffer, value, list(node.indices))
        _, _, name, *values = marks[0].args
        return _around(tirx.BufferStore(node.buffer, value, list(node.indices)), str(name.value), values)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, store), order="post"))


def _is_mark(call: Any) -> bool:
    args = list(call.args)
    return bool(args) and kind_of(args[0]) == "StringImm" and str(args[0].value) == _VALUE


def unmarked(func: Any) -> Any:
    """Return a function without the marks around its stores."""

    def mark(node: Any) -> Any:
        return node.body if str(node.attr_key) == INSTANCE else node

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.AttrStmt, mark), order="post"))
