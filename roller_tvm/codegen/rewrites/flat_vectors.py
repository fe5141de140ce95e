"""Turning the computation of neighbours, one by one, into one vector: expressions of flattened functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

from ...te.numbering import PARTS, dtype_of_node
from ..dialect import Dialect
from ..flat import (
    CHOICE,
    Sum,
    access_of,
    called,
    is_load,
    is_vector,
    kind_of,
    number_of,
    our_function,
    parts_of,
    sum_of,
)
from ..flat_conditions import below_zero, conjuncts
from ..vector_functions import FUNCTIONS
from .strided_vectors import Strided

#: Calls that treat each lane as a number on its own.
_LANE_BY_LANE = (
    "call_llvm_pure_intrin", "reinterpret", "shift_left", "shift_right", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_not", "fabs", "isnan", "likely", "floor", "ceil", "trunc", "nearbyint", "sqrt", *FUNCTIONS,
)  # fmt: skip


class Scalar(Exception):
    """Raised for an expression that cannot be a vector: elements at unequal distances, a function that is called."""


@dataclass(frozen=True)
class Vectors:
    """Turns expressions of a lane's number into vectors of all lanes."""

    lane: Any
    lanes: int  # number of lanes, at least 2
    dialect: Dialect
    named: Mapping[int, Any]  # values of the names bound outside, by the hash of their variable
    #: Number of elements in memory, for elements whose place depends on one of the variables `beyond`; the lanes
    #: after them get the last one. 0: all are in memory.
    valid: int = 0
    beyond: frozenset[int] = frozenset()
    #: Values of variables (by hash) for judging conditions. The vectors are right wherever these conditions have the
    #: same outcome.
    known: Mapping[int, int] = field(default_factory=dict)
    #: First lane whose result is used, and one after the last; nothing may be read in other lanes.
    within: tuple[int, int] | None = None
    #: Lanes by which elements whose place depends on `beyond` are read from further before, and then turned: they
    #: are there before `tile`, and may not be after it, but in memory that is padded.
    back: int = 0
    tile: Sum | None = None
    end_of: Callable[[Any], int | None] = lambda _: None  # buffer -> its end, if its memory goes on after it
    _bound: dict[int, Any] = field(default_factory=dict)  # names within an expression, as vectors

    def all_of(
        self, valid: int = 0, beyond: frozenset[int] = frozenset(), known: Mapping[int, int] | None = None
    ) -> Vectors:
        """Return a copy for another expression; see `valid` and `known`."""
        return replace(self, valid=valid, beyond=beyond, known=known or {}, _bound={})

    def turned(
        self, back: int, tile: Sum, beyond: frozenset[int], end_of: Callable[[Any], int | None]
    ) -> Vectors:  # fmt: skip
        """Return a copy for another expression, of the last tile of an axis; see `back`."""
        return replace(self.all_of(beyond=beyond), back=back, tile=tile, end_of=end_of)

    def store(self, store: Any) -> Any:
        """Return a statement that stores all lanes at once.

        Raises
        ------
        Scalar
        """
        tir = self.dialect.tir
        place = self._place(store.indices)
        index = self._ramp(place, 0, place.of(self.lane), self.lanes)
        return tir.BufferStore(store.buffer, self._whole(store.value), [index])

    def value(self, node: Any) -> Any:
        """Return an expression: a vector if it differs between lanes, else unchanged.

        Raises
        ------
        Scalar
        """
        if not self._differs(node):
            return node
        tir, kind = self.dialect.tir, kind_of(node)
        if hash(node) == hash(self.lane):
            dtype = dtype_of_node(node)
            return tir.Ramp(tir.const(0, dtype), tir.const(1, dtype), self.lanes)
        if hash(node) in self._bound:
            return self._bound[hash(node)]
        if kind == "Let":
            return self._let(node)
        if is_load(node):
            if is_vector(node):
                raise Scalar
            return self._loaded(*access_of(node))
        if kind == "Cast":
            return tir.Cast(self._dtype(node), self.value(node.value))
        if called(node) == CHOICE:
            return self._selected(node)
        if _is_lane_by_lane(node):
            named = _named(node)
            arguments = [*node.args[:named], *(self._whole(part) for part in node.args[named:])]
            return self.dialect.call(self._dtype(node), node.op, arguments)
        if kind in PARTS:
            return type(node)(*(self._whole(getattr(node, part)) for part in PARTS[kind]))
        raise Scalar

    def _selected(self, node: Any) -> Any:
        """Return a choice: one for all lanes, one known lane by lane, or both values computed and selected."""
        condition, chosen, other = node.args
        alike, sums = self._parted(condition)
        if sums == []:
            same = self.dialect.tir.all(*alike) if self._differs(condition) else condition
            return self.dialect.call(self._dtype(node), node.op, [same, *map(self._whole, (chosen, other))])
        if self.back:
            raise Scalar
        lanes = None if sums is None else held(sums, self.lane, self.lanes, self.known)
        if lanes is None:
            return self._both(node)
        begin, end = self.within or (0, self.lanes)
        first, last = max(begin, lanes[0]), min(end, lanes[1])
        if first >= last:
            return self._whole(other)
        value = replace(self, within=(first, last))._whole(chosen)
        if (first, last) != (begin, end):
            value = self._joined(node, value, (first, last), bool(alike))
        if not alike:
            return value
        return self.dialect.call(self._dtype(node), node.op, [self.dialect.tir.all(*alike), value, self._whole(other)])

    def _joined(self, node: Any, value: Any, lanes: tuple[int, int], guarded: bool) -> Any:
        """Return one choice in `lanes`, the other in the rest; neither reads or divides in the lanes of the other."""
        _, chosen, other = node.args
        (first, last), (begin, end) = lanes, self.within or (0, self.lanes)
        plain = not any(is_load(part) or kind_of(part) == "Call" for part in parts_of(other))
        if divides(chosen) or divides(other) or not plain and (guarded or begin < first and last < end):
            raise Scalar
        rest = self if plain else replace(self, within=(begin, first) if begin < first else (last, end))
        tir, places = self.dialect.tir, [n if first <= n < last else self.lanes + n for n in range(self.lanes)]
        return tir.Shuffle([value, rest._whole(other)], [tir.const(n, "int32") for n in places])

    def differing(self, condition: Any) -> list[Sum] | None:
        """Return, for each part of a condition that differs between lanes, the sum that is below 0; None if unknown."""
        return self._parted(condition)[1]

    def _parted(self, condition: Any) -> tuple[list[Any], list[Sum] | None]:
        """Return the parts of a condition with one outcome for all lanes, as lane 0 has them, and `differing`."""
        alike, sums = list[Any](), list[Sum | None]()
        for check in conjuncts(condition):
            if not self._differs(check):
                alike.append(check)
                continue
            below = below_zero(check, self.named, self.lane)
            bound = any(hash(part) in self._bound for part in parts_of(check))
            if below is not None and not bound and is_alike(below, self.lane, self.lanes):
                first = self.dialect.tir.const(0, dtype_of_node(self.lane))
                alike.append(self.dialect.substituted(check, self.lane, first))
            else:
                sums.append(below)
        return alike, None if None in sums else [below for below in sums if below is not None]

    def _both(self, node: Any) -> Any:
        """Return a selection of two computed values; refuses values that read more than the condition, or divide."""
        condition, *choices = node.args
        read = [self._element(load) for load in _always_read(condition)]
        within = [part for choice in choices for part in parts_of(choice)]
        more = [self._element(part) for part in within if is_load(part) and not _is_there(part)]
        plain = all(called(part) == CHOICE or _is_lane_by_lane(part) for part in within if kind_of(part) == "Call")
        if None in more or not set(more) <= set(read) or not plain or any(divides(choice) for choice in choices):
            raise Scalar
        return self.dialect.tir.Select(*(self._whole(part) for part in node.args))

    def _element(self, load: Any) -> tuple[Any, ...] | None:
        """Return a key that is equal for loads of the same element; None if that is unknown."""
        buffer, indices = access_of(load)
        at = sum_of(indices[0], self.named, {hash(self.lane)}) if len(indices) == 1 else None
        if at is None:
            return None
        return hash(buffer), at.number, frozenset((atom, n) for atom, (_, n) in at.terms.items() if n)

    def _let(self, node: Any) -> Any:
        value = self.value(node.value)
        if not self._differs(node.value):
            return self.dialect.tir.Let(node.var, value, self.value(node.body))
        named = self.dialect.tir.Var(node.var.name, dtype_of_node(value))
        self._bound[hash(node.var)] = named
        return self.dialect.tir.Let(named, value, self._whole(node.body))

    def _whole(self, node: Any) -> Any:
        """Return an expression as a vector, broadcast if it is the same in all lanes."""
        return self._wide(self.value(node))

    def _differs(self, node: Any) -> bool:
        return any(hash(part) == hash(self.lane) or hash(part) in self._bound for part in parts_of(node))

    def _dtype(self, node: Any) -> str:
        dtype = dtype_of_node(node)
        return f"{self.dialect.truth if dtype == 'bool' else dtype}x{self.lanes}"

    def _wide(self, value: Any) -> Any:
        """Return a value as a vector, broadcast if it is a scalar."""
        return value if is_vector(value) else self.dialect.tir.Broadcast(value, self.lanes)

    def _loaded(self, buffer: Any, indices: list[Any]) -> Any:
        """Return a load of elements at equal distances, restricted to those in memory."""
        tir, at = self.dialect.tir, self._place(indices)
        if self.tile is not None and at.variables() & self.beyond:
            if not moves_with(at, self.tile, self.lane, self.beyond):
                raise Scalar
            if place_of_end(at, self.tile, self.lane) == (end := self.end_of(buffer)) and end is not None:
                return tir.BufferLoad(buffer, [self._ramp(at, 0, 1, self.lanes)])
            whole = tir.BufferLoad(buffer, [self._ramp(at, -self.back, 1, self.lanes)])
            places = (min(self.back + n, self.lanes - 1) for n in range(self.lanes))
            return tir.Shuffle([whole], [tir.const(n, "int32") for n in places])
        first, last = self.within or (0, self.lanes)
        if self.valid and at.variables() & self.beyond:
            last = min(last, self.valid)
        return Strided(tir, at.of(self.lane), self.lanes, (first, last)).vector(
            lambda offset, step, lanes: tir.BufferLoad(buffer, [self._ramp(at, offset, step, lanes)])
        )

    def _place(self, indices: list[Any]) -> Sum:
        """Return the place of an element; raises `Scalar` unless it moves with the lane."""
        at = sum_of(indices[0], self.named, {hash(self.lane)}) if len(indices) == 1 else None
        if at is None or not at.of(self.lane):
            raise Scalar
        return at

    def _ramp(self, at: Sum, offset: int, step: int, lanes: int) -> Any:
        """Return the indices of `lanes` elements at distance `step`; the first is `offset` elements after lane 0's."""
        tir = self.dialect.tir
        begin = at.without(self.lane).plus(Sum(offset)).expression(tir)
        return tir.Ramp(begin, tir.const(step, dtype_of_node(begin)), lanes) if lanes > 1 else begin


def moves_with(at: Sum, tile: Sum, lane: Any, beyond: frozenset[int]) -> bool:
    """Return whether lane n of a tile has, n lanes before lane 0, the element of the tile that stands there."""
    return at.of(lane) == 1 and not at.plus(tile, -1).variables() & beyond


def place_of_end(at: Sum, tile: Sum, lane: Any) -> int | None:
    """Return the place in memory at which the axis ends; None if that is not always the same."""
    apart = at.without(lane).plus(tile, -1)
    return apart.number if apart.is_number else None


def held(sums: Iterable[Sum], lane: Any, lanes: int, known: Mapping[int, int]) -> tuple[int, int] | None:
    """Return the first lane in which all sums are below 0, and one after the last; None if a variable is unknown."""
    first, last = 0, lanes
    for below in sums:
        step, number = below.of(lane), below.number
        for at, (_, count) in below.terms.items():
            if count and at != hash(lane):
                if at not in known:
                    return None
                number += count * known[at]
        if not step:
            return None
        if step > 0:  # number + step * lane < 0
            last = min(last, -(number // step))
        else:
            first = max(first, number // -step + 1)
    return (first, last) if first < last else (0, 0)


def is_alike(below: Sum, lane: Any, lanes: int) -> bool:
    """Return whether a sum is below 0 in all lanes or in none, whatever its variables are.

    It is if its other terms are multiples of a number that a vector does not cross: ``32 t + lane - 64`` of 32 lanes.
    """
    reach = below.of(lane) * (lanes - 1)
    stride = gcd(*(count for at, (_, count) in below.terms.items() if at != hash(lane)))
    if not stride:
        return (below.number < 0) == (below.number + reach < 0)
    rest = below.number % stride
    return rest + reach < stride if reach > 0 else rest + reach >= 0


def _is_there(load: Any) -> bool:
    """Return whether a load reads an element that its buffer has, by numbers alone: a constant's only one."""
    buffer, indices = access_of(load)
    if len(indices) != len(buffer.shape):
        return False
    places = [(number_of(index), number_of(extent)) for index, extent in zip(indices, buffer.shape, strict=True)]
    return all(at is not None and extent is not None and 0 <= at < extent for at, extent in places)


def _always_read(value: Any) -> Iterator[Any]:
    """Yield the loads that happen whatever an expression chooses."""
    if is_load(value):
        yield value
        return
    kind = kind_of(value)
    if kind == "Call":
        inside = [value.args[0]] if called(value) == CHOICE else list(value.args)
    else:
        inside = [getattr(value, name) for name in PARTS.get(kind, ())]
    for part in inside:
        yield from _always_read(part)


def divides(value: Any) -> bool:
    """Return whether a value divides integers, addresses aside: in an unused lane the divisor may be 0."""
    if is_load(value):
        return False
    kind = kind_of(value)
    if kind in ("Div", "Mod", "FloorDiv", "FloorMod") and "int" in dtype_of_node(value):
        return True
    fields = ("value", "body") if kind == "Let" else PARTS.get(kind, ())
    inside = list(value.args) if kind == "Call" else [getattr(value, name) for name in fields]
    return any(divides(part) for part in inside)


def _is_lane_by_lane(call: Any) -> bool:
    return called(call) in _LANE_BY_LANE or bool(our_function(call))


def _named(call: Any) -> int:
    """Return how many arguments of a call are no operands: its name and, on TVM 0.17, LLVM's number of operands."""
    if our_function(call):
        return 1
    if called(call) != "call_llvm_pure_intrin":
        return 0
    return 2 if dtype_of_node(call.args[1]) == "uint32" and number_of(call.args[1]) == len(call.args) - 2 else 1
