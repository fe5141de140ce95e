"""Ends of rows in float32: lanes merged in halves, and rows divided by one number multiplied by its reciprocal.

A sum of 197 numbers in 16 lanes ends with 15 additions, each of which waits for the one before; halves of the lanes are
added in four. A vector is divided in 16 cycles and multiplied in one: softmax divides each row by its sum. The quotient
is within 1.5 units in the last place. A divisor whose reciprocal has fewer digits, or is infinite, still divides; so do
negative ones.
"""

from __future__ import annotations

from typing import Any

from ...te.numbering import SERIAL, dtype_of_node
from ..dialect import Dialect
from ..flat import (
    LETS,
    OURS,
    Memory,
    Sum,
    access_of,
    gathered,
    is_load,
    kind_of,
    names_of,
    number_of,
    parts_of,
    statements,
    sum_of,
    values_of,
    with_body,
)
from ..vector_functions import MERGED

#: Trips from which one reciprocal takes less time than the divisions, and halves than one lane after the other.
REPAID = 4
#: Numbers whose reciprocals have all digits: from 2 to the power of -126 to 2 to the power of 126.
NORMAL = (2.0**-126, 2.0**126)
_FLOAT = "float32"


def with_row_ends(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc with merged lanes and reciprocals; as it is if there are none."""
    memory, named = Memory.of_body(func.body), names_of(func.body)
    found: dict[int, Any] = {}
    for loop in gathered(func.body, "serial loops", _serial):
        made = _merged(loop, memory, named, dialect) or _multiplied(loop, memory, dialect)
        if made is not None:
            found[hash(loop.loop_var)] = made
    if not found:
        return func
    return dialect.with_body(func, dialect.with_loops(func.body, lambda loop: found.get(hash(loop.loop_var))))


def _serial(node: Any) -> list[Any]:
    return [node] if kind_of(node) == "For" and int(node.kind) == SERIAL and _store(node) is not None else []


def _store(loop: Any) -> Any | None:
    """Return the only store in a loop's body, beside which it binds names alone; None if there is more."""
    *_, store = inside = [node for node in statements(loop.body) if kind_of(node) not in (*LETS, "SeqStmt")]
    return store if len(inside) == 1 and kind_of(store) == "BufferStore" else None


def _merged(loop: Any, memory: Memory, named: dict[int, Any], dialect: Dialect) -> Any | None:
    """Return the store that a loop over lanes makes: ``total = total + lanes[i]``; None if it is none."""
    store, lanes, var = loop.body, number_of(loop.extent), hash(loop.loop_var)
    if kind_of(store) != "BufferStore":
        return None
    function = MERGED.get(kind_of(store.value))
    if function is None or not lanes or lanes < REPAID or lanes & (lanes - 1) or number_of(loop.min) != 0:
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


def _multiplied(loop: Any, memory: Memory, dialect: Dialect) -> Any | None:
    """Return a loop that divides by one number, and where its reciprocal is exact enough multiplies; None otherwise."""
    trips, tir = number_of(loop.extent), dialect.tir
    if trips is not None and trips < REPAID:
        return None
    values = [value for node in statements(loop.body) for value in values_of(node)]
    divisions = [part for value in values for part in parts_of(value) if kind_of(part) == "Div"]
    divisors = [divisor for part in divisions if (divisor := _same_in(loop, part.b, memory)) is not None]
    if not divisors or len({str(divisor) for divisor in divisors}) != 1:
        return None
    by = divisors[0]
    low, high = (tir.const(bound, _FLOAT) for bound in NORMAL)
    one = tir.const(1.0, _FLOAT)

    def product(division: Any) -> Any | None:
        if _same_in(loop, division.b, memory) is None:
            return None
        inverse = tir.Div(one, by)
        lanes = getattr(division.b, "lanes", None)
        return tir.Mul(division.a, inverse if lanes is None else tir.Broadcast(inverse, lanes))

    multiplied = dialect.with_nodes(loop.body, product, dialect.divisions)
    return tir.IfThenElse(tir.And(by >= low, by <= high), with_body(loop, multiplied, tir), loop)


def _same_in(loop: Any, divisor: Any, memory: Memory) -> Any | None:
    """Return the number that a divisor is in each trip of a loop and each lane; None if there is none."""
    by = divisor.value if kind_of(divisor) == "Broadcast" else divisor
    if not is_load(by) or dtype_of_node(by) != _FLOAT:
        return None
    moved = {hash(loop.loop_var)} | {hash(node.var) for node in statements(loop.body) if kind_of(node) in LETS}
    source, indices = access_of(by)
    if any(hash(part) in moved for index in indices for part in parts_of(index)):
        return None
    store = _store(loop)
    return None if store is None or memory.of(source) == memory.of(store.buffer) else by
