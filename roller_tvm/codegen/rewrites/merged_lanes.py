"""Lanes of float32 merged in halves.

A sum of 197 numbers in 16 lanes ends with 15 additions, each of which waits for the one before; halves of the lanes are
added in four.
"""

from __future__ import annotations

from typing import Any

from ...micro_perf.cpu_constants import MERGED_LANES
from ...te.numbering import SERIAL, dtype_of_node
from ..dialect import Dialect
from ..flat import (
    OURS,
    Memory,
    Sum,
    access_of,
    gathered,
    is_load,
    kind_of,
    names_of,
    number_of,
    sum_of,
)
from ..vector_functions import MERGED

#: Lanes from which halves take less time than one lane after the other.
FEWEST_LANES = 4
_FLOAT = "float32"


def with_merged_lanes(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc with lanes merged in halves; as it is if there are none."""
    memory, named = Memory.of_body(func.body), names_of(func.body)
    found: dict[int, Any] = {}
    for loop in gathered(func.body, "serial loops", _serial):
        made = _merged(loop, memory, named, dialect)
        if made is not None:
            found[hash(loop.loop_var)] = made
    if not found:
        return func
    return dialect.with_body(func, dialect.with_loops(func.body, lambda loop: found.get(hash(loop.loop_var))))


def _serial(node: Any) -> list[Any]:
    return [node] if kind_of(node) == "For" and int(node.kind) == SERIAL and kind_of(node.body) == "BufferStore" else []


def _merged(loop: Any, memory: Memory, named: dict[int, Any], dialect: Dialect) -> Any | None:
    """Return the store that a loop over lanes makes: ``total = total + lanes[i]``; None if it is none."""
    store, lanes, var = loop.body, number_of(loop.extent), hash(loop.loop_var)
    function = MERGED.get(kind_of(store.value))
    if function is None or not lanes or lanes & (lanes - 1) or number_of(loop.min) != 0:
        return None
    if not FEWEST_LANES <= lanes <= MERGED_LANES:
        return None
    total, own = store.value.a, store.value.b
    if not (is_load(total) and is_load(own)) or dtype_of_node(total) != _FLOAT or dtype_of_node(own) != _FLOAT:
        return None
    (into, at), (source, place) = access_of(total), access_of(own)
    if memory.of(into) != memory.of(store.buffer) or memory.of(source) == memory.of(into) or len(place) != 1:
        return None
    sums = [sum_of(index, named, {var}) for index in (*at, *store.indices, *place)]
    if any(one is None for one in sums) or len(at) != len(store.indices):
        return None
    *totals, first = [one for one in sums if one is not None]
    half = len(at)
    if any(not a.same(b) or var in a.variables() for a, b in zip(totals[:half], totals[half:], strict=True)):
        return None
    if first.of(loop.loop_var) != 1 or var in (base := first.without(loop.loop_var)).variables():
        return None
    tir = dialect.tir
    ramp = tir.Ramp(_index(base, place[0], tir), tir.const(1, dtype_of_node(place[0])), lanes)
    vector = dialect.extern(_FLOAT, OURS + function, [tir.BufferLoad(source, [ramp])])
    return tir.BufferStore(store.buffer, type(store.value)(total, vector), store.indices)


def _index(base: Sum, like: Any, tir: Any) -> Any:
    return tir.const(base.number, dtype_of_node(like)) if base.is_number else base.expression(tir)
