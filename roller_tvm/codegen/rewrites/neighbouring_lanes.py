"""Vectors of neighbours whose places TVM computes lane by lane.

Axes are fused and cut in vectors that do not end where an inner axis does: 64 lanes over rows of 13 x 16 elements. TVM
then keeps quotients and remainders of each lane's place, for which LLVM gathers element by element. The place of every
lane is computed here instead, for one period of each loop: if lanes are neighbours, the index is a ramp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd, lcm, prod
from typing import Any

import numpy as np

from ...te.numbering import dtype_of_node
from ..dialect import Dialect
from ..flat import access_of, kind_of, names_of, number_of, parts_of

#: Most places that are computed for an index.
PLACES = 1 << 18
_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "FloorDiv": np.floor_divide, "FloorMod": np.mod,
}  # fmt: skip


class _Unknown(Exception):
    """An expression is made of something else than sums, products, quotients and remainders."""


@dataclass(frozen=True)
class _Step:
    """How an expression changes: if a variable grows by `period`, each lane grows by `growth`, wherever it is."""

    period: int
    growth: int

    def times(self, count: int) -> _Step:
        """Return the same step, made several times."""
        return _Step(self.period * count, self.growth * count)


def with_neighbouring_lanes(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc that reads and writes vectors of neighbours as such."""
    tir, names = dialect.tir, dict[int, Any]()
    known: dict[int, tuple[Any, Any]] = {}  # index -> itself, which keeps its address, and its ramp

    def ramp(index: Any) -> Any | None:
        if not known:  # most functions have no such index
            names.update(names_of(func.body))
        if hash(index) not in known:
            known[hash(index)] = index, _ramp(index, names, tir)
        return known[hash(index)][1]

    def loaded(node: Any) -> Any | None:
        buffer, indices = access_of(node)
        made = ramp(indices[0]) if _is_by_lane(indices) else None
        return None if made is None else tir.BufferLoad(buffer, [made])

    def stored(node: Any) -> Any | None:
        made = ramp(node.indices[0]) if _is_by_lane(node.indices) else None
        return None if made is None else tir.BufferStore(node.buffer, node.value, [made])

    body = dialect.with_nodes(dialect.with_loads(func.body, loaded), stored, dialect.stores)
    return func.with_body(body) if known else func


def _is_by_lane(indices: Any) -> bool:
    return len(indices) == 1 and kind_of(indices[0]) not in ("Ramp", "Broadcast") and "x" in dtype_of_node(indices[0])


def _ramp(index: Any, names: Mapping[int, Any], tir: Any) -> Any | None:
    """Return an index as a ramp of neighbours that starts at a sum of variables; None if it is none."""
    variables = {hash(v): v for v in _variables(index, names)}
    try:
        steps = {own: _step(index, own, names) for own in variables}
        lanes = int(dtype_of_node(index).partition("x")[2])
        if any(s.growth % s.period for s in steps.values()) or prod(s.period for s in steps.values()) * lanes > PLACES:
            return None
        grid = np.meshgrid(*(np.arange(s.period) for s in steps.values()), indexing="ij")
        at = {own: axis.reshape(-1, 1) for own, axis in zip(steps, grid, strict=True)}
        places = np.asarray(_places(index, at, names))
    except _Unknown:
        return None
    factors = {own: s.growth // s.period for own, s in steps.items()}
    first = int(places.flat[0])
    wanted = first + np.arange(lanes) + sum((factors[own] * at[own] for own in at), np.zeros((1, 1), int))
    if places.shape != wanted.shape or not np.array_equal(places, wanted):
        return None
    dtype = dtype_of_node(index).partition("x")[0]
    start = tir.const(first, dtype)
    for own, factor in factors.items():
        start = start + variables[own] * tir.const(factor, dtype)
    return tir.Ramp(start, tir.const(1, dtype), lanes)


def _variables(index: Any, names: Mapping[int, Any]) -> Iterator[Any]:
    """Yield the variables that an index is computed from, which are no names of other values."""
    for part in parts_of(index):
        if kind_of(part) in ("Var", "SizeVar"):
            if hash(part) in names:
                yield from _variables(names[hash(part)], names)
            else:
                yield part


def _step(node: Any, variable: int, names: Mapping[int, Any]) -> _Step:
    """Return how an expression changes with a variable (by hash)."""
    kind = kind_of(node)
    if hash(node) == variable:
        return _Step(1, 1)
    if hash(node) in names:
        return _step(names[hash(node)], variable, names)
    if kind in ("Var", "SizeVar", "IntImm"):
        return _Step(1, 0)
    if kind in ("Broadcast", "Cast"):
        return _step(node.value, variable, names)
    if kind == "Ramp" and number_of(node.stride) is not None:
        return _step(node.base, variable, names)
    if kind not in _COMPUTED:
        raise _Unknown
    a, b = _step(node.a, variable, names), _step(node.b, variable, names)
    if kind in ("Add", "Sub"):
        period = lcm(a.period, b.period)
        a, b = a.times(period // a.period), b.times(period // b.period)
        return _Step(period, a.growth + (b.growth if kind == "Add" else -b.growth))
    number = _number(node.b)
    if number is None and kind == "Mul" and (number := _number(node.a)) is not None:
        a = b
    if number is None or (kind != "Mul" and number <= 0):
        raise _Unknown
    if kind == "Mul":
        return _Step(a.period, a.growth * number)
    a = a.times(number // gcd(a.growth, number))
    return _Step(a.period, a.growth // number if kind == "FloorDiv" else 0)


def _number(node: Any) -> int | None:
    return number_of(node.value if kind_of(node) == "Broadcast" else node)


def _places(node: Any, at: Mapping[int, Any], names: Mapping[int, Any]) -> Any:
    """Return the values of an expression: a row for each point of the variables, a column for each lane."""
    if hash(node) in at:
        return at[hash(node)]
    if hash(node) in names:
        return _places(names[hash(node)], at, names)
    kind = kind_of(node)
    if kind == "IntImm":
        return np.full((1, 1), int(node.value))
    if kind in ("Broadcast", "Cast"):
        return _places(node.value, at, names)
    if kind == "Ramp" and (stride := number_of(node.stride)) is not None:
        lanes = int(dtype_of_node(node).partition("x")[2])
        return _places(node.base, at, names) + stride * np.arange(lanes)
    if kind not in _COMPUTED:
        raise _Unknown
    a, b = _places(node.a, at, names), _places(node.b, at, names)
    return _COMPUTED[kind](a, b)
