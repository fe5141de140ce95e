"""Neighbours computed one by one, as one vector: expressions of either TVM line's flattened functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..te.numbering import PARTS, dtype_of_node
from .conditions import below_zero, conjuncts
from .dialect import Dialect
from .flat_loops import CHOICE, Sum, access_of, called, is_load, is_vector, kind_of, number_of, parts_of, sum_of
from .strided import Strided

#: Calls that do to each lane what they do to one number.
_LANE_BY_LANE = (
    "call_llvm_pure_intrin", "reinterpret", "shift_left", "shift_right", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_not", "fabs", "isnan", "likely", "floor", "ceil", "trunc", "nearbyint", "sqrt",
)  # fmt: skip


class Scalar(Exception):
    """An expression that is no vector's: elements at no equal distances, a function that is called."""


@dataclass(frozen=True)
class Vectors:
    """Expressions of a lane's number, as vectors of all lanes.

    Parameters
    ----------
    lane : Var
    lanes : int
        At least 2.
    dialect : Dialect
    named : mapping
        What the names stand for that are bound outside, by their hash.
    valid : int
        Of elements whose place depends on one of the variables `beyond`, so many are in memory; the lanes after them
        get the last one. 0: all are.
    known : mapping
        Numbers of variables (by hash) by which conditions are judged; what is made holds wherever these conditions
        are so.
    within : tuple of (int, int)
        The first lane of which something comes, and the one after the last: of others nothing may be read.
    """

    lane: Any
    lanes: int
    dialect: Dialect
    named: Mapping[int, Any]
    valid: int = 0
    beyond: frozenset[int] = frozenset()
    known: Mapping[int, int] = field(default_factory=dict)
    within: tuple[int, int] | None = None
    _bound: dict[int, Any] = field(default_factory=dict)  # names within an expression, as vectors

    def all_of(
        self, valid: int = 0, beyond: frozenset[int] = frozenset(), known: Mapping[int, int] | None = None
    ) -> Vectors:
        """For another expression; see `valid` and `known`."""
        return replace(self, valid=valid, beyond=beyond, known=known or {}, _bound={})

    def store(self, store: Any) -> Any:
        """All lanes stored at once.

        Raises
        ------
        Scalar
        """
        tir = self.dialect.tir
        place = self._place(store.indices)
        index = self._ramp(place, 0, place.of(self.lane), self.lanes)
        return tir.BufferStore(store.buffer, self._whole(store.value), [index])

    def value(self, node: Any) -> Any:
        """An expression: a vector where it differs between lanes, else as it is.

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
            return self._loaded(*access_of(node))
        if kind == "Cast":
            return tir.Cast(self._dtype(node), self.value(node.value))
        if called(node) == CHOICE:
            return self._selected(node)
        if called(node) in _LANE_BY_LANE:
            named = 0 if not str(node.op.name).endswith("llvm_pure_intrin") else _named(node)
            arguments = [*node.args[:named], *(self._whole(part) for part in node.args[named:])]
            return self.dialect.call(self._dtype(node), node.op, arguments)
        if kind in PARTS:
            return type(node)(*(self._whole(getattr(node, part)) for part in PARTS[kind]))
        raise Scalar

    def _selected(self, node: Any) -> Any:
        """One of two: which one is the same for all lanes, or known of each of them, or both are computed."""
        condition, chosen, other = node.args
        if not self._differs(condition):
            return self.dialect.call(self._dtype(node), node.op, [condition, *map(self._whole, (chosen, other))])
        sums = self.differing(condition)
        lanes = None if sums is None else held(sums, self.lane, self.lanes, self.known)
        if lanes is None:
            return self._both(node)
        begin, end = self.within or (0, self.lanes)
        first, last = max(begin, lanes[0]), min(end, lanes[1])
        if first >= last:
            return self._whole(other)
        value = replace(self, within=(first, last))._whole(chosen)
        alike = [check for check in conjuncts(condition) if not self._differs(check)]
        if (first, last) != (begin, end):
            value = self._joined(node, value, (first, last), bool(alike))
        if not alike:
            return value
        return self.dialect.call(self._dtype(node), node.op, [self.dialect.tir.all(*alike), value, self._whole(other)])

    def _joined(self, node: Any, value: Any, lanes: tuple[int, int], guarded: bool) -> Any:
        """One choice in these lanes, the other in the rest: of each nothing is read, or divided, in other lanes."""
        _, chosen, other = node.args
        (first, last), (begin, end) = lanes, self.within or (0, self.lanes)
        plain = not any(is_load(part) or kind_of(part) == "Call" for part in parts_of(other))
        if divides(chosen) or divides(other) or not plain and (guarded or begin < first and last < end):
            raise Scalar
        rest = self if plain else replace(self, within=(begin, first) if begin < first else (last, end))
        tir, places = self.dialect.tir, [n if first <= n < last else self.lanes + n for n in range(self.lanes)]
        return tir.Shuffle([value, rest._whole(other)], [tir.const(n, "int32") for n in places])

    def differing(self, condition: Any) -> list[Sum] | None:
        """What is below 0 where a condition holds, of each part of it that differs between lanes; None: not known."""
        checks = [check for check in conjuncts(condition) if self._differs(check)]
        sums = [below_zero(check, self.named, self.lane) for check in checks]
        return None if None in sums else [below for below in sums if below is not None]

    def _both(self, node: Any) -> Any:
        """Both computed: where neither reads what the condition does not, or divides whole numbers."""
        condition, *choices = node.args
        read = [self._element(load) for load in _always_read(condition)]
        within = [part for choice in choices for part in parts_of(choice)]
        more = [self._element(part) for part in within if is_load(part)]
        plain = all(called(part) in (CHOICE, *_LANE_BY_LANE) for part in within if kind_of(part) == "Call")
        if None in more or not set(more) <= set(read) or not plain or any(divides(choice) for choice in choices):
            raise Scalar
        return self.dialect.tir.Select(*(self._whole(part) for part in node.args))

    def _element(self, load: Any) -> tuple[Any, ...] | None:
        """The same for loads of the same element; None where that cannot be told."""
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
        """An expression as a vector."""
        return self._wide(self.value(node))

    def _differs(self, node: Any) -> bool:
        return any(hash(part) == hash(self.lane) or hash(part) in self._bound for part in parts_of(node))

    def _dtype(self, node: Any) -> str:
        dtype = dtype_of_node(node)
        return f"{self.dialect.truth if dtype == 'bool' else dtype}x{self.lanes}"

    def _wide(self, value: Any) -> Any:
        """A vector."""
        return value if is_vector(value) else self.dialect.tir.Broadcast(value, self.lanes)

    def _loaded(self, buffer: Any, indices: list[Any]) -> Any:
        """Elements at equal distances, as far as they are in memory."""
        tir, at = self.dialect.tir, self._place(indices)
        first, last = self.within or (0, self.lanes)
        if self.valid and at.variables() & self.beyond:
            last = min(last, self.valid)
        return Strided(tir, at.of(self.lane), self.lanes, (first, last)).vector(
            lambda offset, step, lanes: tir.BufferLoad(buffer, [self._ramp(at, offset, step, lanes)])
        )

    def _place(self, indices: list[Any]) -> Sum:
        """Where an element is that differs between lanes."""
        at = sum_of(indices[0], self.named, {hash(self.lane)}) if len(indices) == 1 else None
        if at is None or not at.of(self.lane):
            raise Scalar
        return at

    def _ramp(self, at: Sum, offset: int, step: int, lanes: int) -> Any:
        """Indices of so many elements, the first of which is so far from lane 0's."""
        tir = self.dialect.tir
        begin = at.without(self.lane).plus(Sum(offset)).expression(tir)
        return tir.Ramp(begin, tir.const(step, dtype_of_node(begin)), lanes) if lanes > 1 else begin


def held(sums: Iterable[Sum], lane: Any, lanes: int, known: Mapping[int, int]) -> tuple[int, int] | None:
    """The first lane in which all of the sums are below 0, and the one after the last; None where that is not known."""
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


def _always_read(value: Any) -> Iterator[Any]:
    """What is read whatever is chosen in an expression."""
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
    """Whether whole numbers are divided, addresses left out: what is in a lane of which nothing comes may be 0."""
    if is_load(value):
        return False
    kind = kind_of(value)
    if kind in ("Div", "Mod", "FloorDiv", "FloorMod") and "int" in dtype_of_node(value):
        return True
    fields = ("value", "body") if kind == "Let" else PARTS.get(kind, ())
    inside = list(value.args) if kind == "Call" else [getattr(value, name) for name in fields]
    return any(divides(part) for part in inside)


def _named(call: Any) -> int:
    """Arguments of a call of LLVM's that are no operands: its name, and on TVM 0.17 how many operands there are."""
    return 2 if dtype_of_node(call.args[1]) == "uint32" and number_of(call.args[1]) == len(call.args) - 2 else 1
