"""Transposes in tiles of registers: vectors whose lanes lie rows apart, for several neighbours of the rows at a time.

LLVM assembles such a vector element by element, a load and an insertion each. Here a loop along the rows takes four
neighbours at a time. Four of them are loaded together from each row, rows four lanes apart into one vector; two rounds
of shuffles within 128 bits, which every CPU does in one instruction, make the four vectors of it. Measured on two cores
of a Zen 3, hot: 112 x 112 pixels of 48 channels to 48 planes 46 us for 69, 28 x 28 of 104 the other way 8.8 for 13.
"""

from __future__ import annotations

from typing import Any

from ...micro_perf.neighbours import TURNED, TURNED_BYTES, is_turnable
from ...te.numbering import SERIAL, dtype_of_node
from ..dialect import Dialect
from ..flat import (
    LETS,
    Memory,
    access_of,
    bits_of,
    choice_of,
    in_order,
    is_load,
    kind_of,
    names_of,
    number_of,
    parts_of,
    statements,
    sum_of,
)


def with_turned_tiles(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc that transposes in registers; as it is if it transposes nothing."""
    memory, named = Memory.of_body(func.body), names_of(func.body)
    found = False

    def one(loop: Any) -> Any | None:
        nonlocal found
        store = _only_store(loop.body, dialect)
        if store is None or not (loads := _turnable(loop, store, memory, named)):
            return None
        found = True
        return _turned(loop, store, loads, dialect)

    body = dialect.with_loops(func.body, one)
    return dialect.with_body(func, body) if found else func


def _only_store(body: Any, dialect: Dialect) -> Any | None:
    """Return the one store of a loop, with the places to which TVM gave names written out; None if there is more."""
    *names, store = [s for s in statements(body) if kind_of(s) != "SeqStmt"]
    if kind_of(store) != "BufferStore" or any(kind_of(name) not in LETS for name in names):
        return None
    if any(is_load(part) for name in names for part in parts_of(name.value)):
        return None
    for name in reversed(names):
        store = dialect.substituted(store, name.var, name.value)
    return store


def _turnable(loop: Any, store: Any, memory: Memory, named: dict[int, Any]) -> list[Any]:
    """Return the loads, in the one store of a serial loop, of lanes rows apart that go on along the rows."""
    trips = number_of(loop.extent)
    if int(loop.kind) != SERIAL or number_of(loop.min) != 0:
        return []
    if any(choice_of(part) for part in parts_of(store.value)):  # what is behind a check may lie outside of its tensor
        return []
    if trips is None or trips < TURNED or memory.of(store.buffer) in memory.read_in(store):
        return []
    loads: list[Any] = []
    for load in (part for part in parts_of(store.value) if is_load(part)):
        (at, *more), var = access_of(load)[1], loop.loop_var
        if more or kind_of(at) != "Ramp" or getattr(load, "predicate", None) is not None:
            continue
        lanes, apart = number_of(at.lanes) or 0, number_of(at.stride)
        if not is_turnable(lanes) or apart is None or abs(apart) < TURNED:
            continue
        if bits_of(load) != 8 * TURNED_BYTES:
            continue
        place = sum_of(at.base, named, {hash(var)})
        if place is not None and place.of(var) == 1 and hash(var) not in place.without(var).variables():
            loads.append(load)
    return loads


def _turned(loop: Any, store: Any, loads: list[Any], dialect: Dialect) -> Any:
    """Return a loop over blocks of `TURNED` trips, and one over the trips that are left."""
    tir, var, trips = dialect.tir, loop.loop_var, number_of(loop.extent) or 0
    dtype = dtype_of_node(var)

    def const(value: int) -> Any:
        return tir.const(value, dtype)

    block = tir.Var(f"{var.name}_block", dtype)
    first = block * const(TURNED)
    rows = {hash(load): [tir.Var(f"rows{len(loads) * n + at}", dtype_of_node(load)) for n in range(TURNED)]
            for at, load in enumerate(loads)}  # fmt: skip
    stores = []
    for trip in range(TURNED):

        def column(load: Any, trip: int = trip) -> Any | None:
            return _column(rows.get(hash(load)), trip, tir)

        stores.append(dialect.substituted(dialect.with_loads(store, column), var, first + const(trip)))
    body = in_order(stores, tir)
    for load in loads:
        for n, name in enumerate(rows[hash(load)]):
            body = dialect.named(name, dialect.substituted(_row(load, n, tir), var, first), body)
    made = [tir.For(block, loop.min, const(trips // TURNED), loop.kind, body, loop.thread_binding, loop.annotations)]
    if left := trips % TURNED:
        rest = tir.Var(f"{var.name}_rest", dtype)
        body = dialect.substituted(store, var, rest + const(trips - left))
        made.append(tir.For(rest, loop.min, const(left), loop.kind, body, loop.thread_binding, loop.annotations))
    return in_order(made, tir)


def _row(load: Any, number: int, tir: Any) -> Any:
    """Return the neighbours in row `number` of each four rows, one after the other."""
    buffer, (at,) = access_of(load)
    parts = []
    for lane in range(number, number_of(at.lanes) or 0, TURNED):
        begin = at.base + at.stride * tir.const(lane, dtype_of_node(at.stride))
        parts.append(tir.BufferLoad(buffer, [tir.Ramp(begin, tir.const(1, dtype_of_node(begin)), TURNED)]))
    return _shuffled(parts, range(number_of(at.lanes) or 0), tir)


def _column(rows: list[Any] | None, number: int, tir: Any) -> Any | None:
    """Return neighbour `number` of every row: first of rows 0 and 1, 2 and 3 of each four, then of both."""
    if rows is None:
        return None
    lanes = int(dtype_of_node(rows[0]).partition("x")[2])
    fours = range(0, lanes, TURNED)
    half = number // 2 * 2  # neighbours 0 and 1, or 2 and 3, are made together
    pairs = [lane + half + n + other for lane in fours for n in range(2) for other in (0, lanes)]
    one, two = (_shuffled(rows[n : n + 2], pairs, tir) for n in (0, 2))
    first = number % 2 * 2
    both = [lane + first + n + other for lane in fours for other in (0, lanes) for n in range(2)]
    return _shuffled([one, two], both, tir)


def _shuffled(vectors: list[Any], lanes: Any, tir: Any) -> Any:
    if len(vectors) == 1:
        return vectors[0]
    return tir.Shuffle(vectors, [tir.const(n, "int32") for n in lanes])
