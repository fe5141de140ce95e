"""Neighbours computed one by one, as one vector: expressions of either TVM line's flattened functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..te.numbering import PARTS, dtype_of_node
from .flat_loops import Sum, access_of, called, is_load, kind_of, number_of, parts_of, sum_of

#: Calls that do to each lane what they do to one number.
_LANE_BY_LANE = (
    "call_llvm_pure_intrin", "reinterpret", "shift_left", "shift_right", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_not", "fabs", "isnan", "likely", "floor", "ceil", "trunc", "nearbyint", "sqrt",
)  # fmt: skip
#: The call of which one argument is computed, and not the other.
_CHOICE = "if_then_else"
_WIDE = re.compile(r"x\d+$")


class Scalar(Exception):
    """An expression that is no vector's: elements at no equal distances, a function that is called."""


@dataclass(frozen=True)
class Dialect:
    """What the two lines' TensorIR do not share.

    Parameters
    ----------
    tir : module
        ``tvm.tir`` or ``tvm.tirx``.
    analyzer : function of () -> Analyzer
    truth : str
        The type of conditions in vectors, without their number.
    call : function of (dtype, op, arguments) -> Call
    substituted : function of (store or expression, variable, value) -> the same with the value
    with_loops : function of (statement, function of loop -> loop, statement or None) -> statement
        Every loop rewritten but those of which it says None; those inside of others first.
    """

    tir: Any
    analyzer: Callable[[], Any]
    truth: str
    call: Callable[[str, Any, list[Any]], Any]
    substituted: Callable[[Any, Any, Any], Any]
    with_loops: Callable[[Any, Callable[[Any], Any]], Any]


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
    """

    lane: Any
    lanes: int
    dialect: Dialect
    named: Mapping[int, Any]
    valid: int = 0
    beyond: frozenset[int] = frozenset()
    _bound: dict[int, Any] = field(default_factory=dict)  # names within an expression, as vectors

    def all_of(self, valid: int = 0, beyond: frozenset[int] = frozenset()) -> Vectors:
        """For another expression; see `valid`."""
        return replace(self, valid=valid, beyond=beyond, _bound={})

    def store(self, store: Any) -> Any:
        """All lanes stored at once.

        Raises
        ------
        Scalar
        """
        tir = self.dialect.tir
        index = self._ramp(self._place(store.indices), 0, self.lanes)
        return tir.BufferStore(store.buffer, self._wide(self.value(store.value)), [index])

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
        if called(node) == _CHOICE:
            return self._selected(node)
        if called(node) in _LANE_BY_LANE:
            named = 0 if not str(node.op.name).endswith("llvm_pure_intrin") else _named(node)
            arguments = [*node.args[:named], *(self._wide(self.value(part)) for part in node.args[named:])]
            return self.dialect.call(self._dtype(node), node.op, arguments)
        if kind in PARTS:
            return type(node)(*(self._wide(self.value(getattr(node, part))) for part in PARTS[kind]))
        raise Scalar

    def _selected(self, node: Any) -> Any:
        """One of two, both computed: where neither reads what the condition does not, or divides whole numbers."""
        condition, *choices = node.args
        read = [self._element(load) for load in _always_read(condition)]
        within = [part for choice in choices for part in parts_of(choice)]
        more = [self._element(part) for part in within if is_load(part)]
        plain = all(called(part) in (_CHOICE, *_LANE_BY_LANE) for part in within if kind_of(part) == "Call")
        if None in more or not set(more) <= set(read) or not plain or any(divides(choice) for choice in choices):
            raise Scalar
        return self.dialect.tir.Select(*(self._wide(self.value(part)) for part in node.args))

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
        return self.dialect.tir.Let(named, value, self._wide(self.value(node.body)))

    def _differs(self, node: Any) -> bool:
        return any(hash(part) == hash(self.lane) or hash(part) in self._bound for part in parts_of(node))

    def _dtype(self, node: Any) -> str:
        dtype = dtype_of_node(node)
        return f"{self.dialect.truth if dtype == 'bool' else dtype}x{self.lanes}"

    def _wide(self, value: Any) -> Any:
        """A vector."""
        return value if _WIDE.search(dtype_of_node(value)) else self.dialect.tir.Broadcast(value, self.lanes)

    def _loaded(self, buffer: Any, indices: list[Any]) -> Any:
        """Elements at equal distances, as far as they are in memory."""
        tir, at = self.dialect.tir, self._place(indices)
        if not self.valid or not at.variables() & self.beyond:
            return tir.BufferLoad(buffer, [self._ramp(at, 0, self.lanes)])
        parts: list[Any] = []
        for first, width in pieces(self.valid):
            if width > 1:
                parts.append(tir.BufferLoad(buffer, [self._ramp(at, first, width)]))
        # Vectors alone can be joined: the last element, and the lanes after it.
        rest = tir.Broadcast(tir.BufferLoad(buffer, [self._ramp(at, self.valid - 1, 1)]), self.lanes)
        return tir.Shuffle([*parts, rest], [tir.const(n, "int32") for n in range(self.lanes)])

    def _place(self, indices: list[Any]) -> Sum:
        """Where an element is that differs between lanes."""
        at = sum_of(indices[0], self.named, {hash(self.lane)}) if len(indices) == 1 else None
        if at is None or not at.of(self.lane):
            raise Scalar
        return at

    def _ramp(self, at: Sum, first: int, lanes: int) -> Any:
        """Indices of so many lanes, from the first of them on."""
        tir, step = self.dialect.tir, at.of(self.lane)
        begin = at.without(self.lane).plus(Sum(first * step)).expression(tir)
        return tir.Ramp(begin, tir.const(step, dtype_of_node(begin)), lanes) if lanes > 1 else begin


def _always_read(value: Any) -> Iterator[Any]:
    """What is read whatever is chosen in an expression."""
    if is_load(value):
        yield value
        return
    kind = kind_of(value)
    if kind == "Call":
        inside = [value.args[0]] if called(value) == _CHOICE else list(value.args)
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


def pieces(number: int) -> Iterator[tuple[int, int]]:
    """Where the vectors begin that a number of lanes is taken apart into, and how long they are: powers of two.

    LLVM takes others apart element by element.

    Examples
    --------
    >>> list(pieces(16)), list(pieces(9)), list(pieces(0))
    ([(0, 16)], [(0, 8), (8, 1)], [])
    """
    first = 0
    while first < number:
        width = 1 << ((number - first).bit_length() - 1)
        yield first, width
        first += width


def _named(call: Any) -> int:
    """Arguments of a call of LLVM's that are no operands: its name, and on TVM 0.17 how many operands there are."""
    return 2 if dtype_of_node(call.args[1]) == "uint32" and number_of(call.args[1]) == len(call.args) - 2 else 1
