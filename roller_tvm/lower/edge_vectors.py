"""Vectors over the edge of an axis: what TVM checks lane by lane is checked once a tile. Either TVM line's functions.

TVM takes a vector that may stand over an edge apart: a loop over its lanes, each behind its check. Of the tiles along
an axis only the last stands over, by a number of lanes that is known: the others are computed in whole vectors, that
one in vectors of as many lanes as it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..te.numbering import dtype_of_node
from .flat_loops import (
    SERIAL,
    Sum,
    access_of,
    kind_of,
    loads_of,
    nests,
    number_of,
    parts_of,
    statements,
    sum_of,
)
from .flat_vectors import Dialect, Scalar, Vectors

_LETS = ("LetStmt", "Bind")


@dataclass(frozen=True)
class Lanes:
    """A loop over the lanes of a vector that TVM has taken apart.

    Parameters
    ----------
    loop : For
    lanes : int
    place : Sum or None
        Lane ``n`` is computed where ``n + place < 0``; None: always, as TVM found out later.
    others : tuple of PrimExpr
        Further conditions, which are the same for all lanes.
    store : BufferStore
        What is computed, names written out.
    vectors : Vectors
        How that is said of all lanes.
    """

    loop: Any
    lanes: int
    place: Sum | None
    others: tuple[Any, ...]
    store: Any
    vectors: Vectors

    def left_at(self, place: int) -> int:
        """Lanes to compute of a tile at this place, in which the number is left out."""
        return self.lanes if self.place is None else max(0, min(self.lanes, -self.place.number - place))

    def computed(self, number: int) -> Any:
        """A statement that computes the first lanes, none of them checked.

        Raises
        ------
        Scalar
        """
        tir, lane = self.vectors.dialect.tir, self.loop.loop_var
        stores: list[Any] = []
        for first, width in _pieces(number, self.lanes):
            place = tir.const(first, dtype_of_node(lane))
            if width == 1:
                stores.append(self.vectors.dialect.substituted(self.store, lane, place))
            else:
                moved = self.vectors.dialect.substituted(self.store, lane, lane + place) if first else self.store
                stores.append(replace(self.vectors, lanes=width, _bound={}).store(moved))
        if not stores:
            return tir.Evaluate(tir.const(0, "int32"))
        made = stores[0] if len(stores) == 1 else tir.SeqStmt(stores)
        for condition in reversed(self.others):
            made = tir.IfThenElse(condition, made, None)
        return made


@dataclass
class Tiles:
    """Tiles along an axis: the innermost loop that tells one from the next, and the vectors in it.

    Parameters
    ----------
    home : For
    loops : tuple of For
        It and those around it.
    place : Sum
        Of a tile, without a number.
    vectors : list of Lanes
    """

    home: Any
    loops: tuple[Any, ...]
    place: Sum
    vectors: list[Lanes] = field(default_factory=list)

    def last_whole(self) -> int:
        """The furthest place at which all lanes of a tile are computed."""
        return min(-lanes.place.number - lanes.lanes for lanes in self.vectors if lanes.place is not None)

    def trips_to(self, over: int) -> int | None:
        """Trips of the loop, if it is a serial one whose last computes the tile that stands over, and no other does."""
        trips, steps = number_of(self.home.extent), self.place.of(self.home.loop_var)
        alone = all(not count or atom.same_as(self.home.loop_var) for atom, count in self.place.terms.values())
        plain = int(self.home.kind) == SERIAL and number_of(self.home.min) == 0
        return trips if plain and alone and trips and trips > 1 and over == steps * (trips - 1) else None

    def over(self, dialect: Dialect) -> int | None:
        """The place of the one tile that stands over the edge; None if that is not known."""
        analyzer = dialect.analyzer()
        for loop in self.loops:
            analyzer.bind(loop.loop_var, _range(loop))
        place = self.place.expression(dialect.tir)
        bound, steps = analyzer.const_int_bound(place), analyzer.modular_set(place)
        step, offset = int(steps.coeff), int(steps.base)
        if not step:
            return None
        last = int(bound.max_value) - (int(bound.max_value) - offset) % step
        return last if last - step <= self.last_whole() < last else None


def with_whole_vectors(body: Any, dialect: Dialect) -> Any | None:
    """A flattened statement that checks tiles instead of lanes; None where there is none to check.

    What is in a loop over tiles stands there twice, for TVM's ``ConvertSSA``.

    Parameters
    ----------
    body : Stmt
    dialect : Dialect
    """
    found = {hash(tiles.home.loop_var): (tiles, over) for tiles, over in _tiles(body, dialect)}
    tir = dialect.tir

    def in_two_kinds(loop: Any) -> Any | None:
        if (of_loop := found.get(hash(loop.loop_var))) is None:
            return None
        tiles, over = of_loop
        inside = {hash(lanes.loop.loop_var): lanes for lanes in tiles.vectors}

        def of_lanes(lane: Any, at: int) -> Any | None:
            lanes = inside.get(hash(lane.loop_var))
            return None if lanes is None else lanes.computed(lanes.left_at(at))

        place, whole = tiles.place.expression(tir), tiles.last_whole()
        main = dialect.with_loops(loop.body, lambda lane: of_lanes(lane, whole))
        last = dialect.with_loops(loop.body, lambda lane: of_lanes(lane, over))
        if (trips := tiles.trips_to(over)) is not None:
            # Nothing is checked at all: sums stay in registers while the loop runs.
            end = tir.const(trips - 1, dtype_of_node(loop.loop_var))
            before = tir.For(loop.loop_var, loop.min, end, loop.kind, main, loop.thread_binding, loop.annotations)
            return tir.SeqStmt([before, dialect.substituted(last, loop.loop_var, end)])
        checked = tir.IfThenElse(place <= tir.const(whole, dtype_of_node(place)), main, last)
        return tir.For(loop.loop_var, loop.min, loop.extent, loop.kind, checked, loop.thread_binding, loop.annotations)

    return dialect.with_loops(body, in_two_kinds) if found else None


def _pieces(number: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Where vectors begin that `number` of a vector's lanes are taken apart into, and how long they are.

    Those of a tile's part are powers of two: LLVM takes others apart element by element.

    Examples
    --------
    >>> list(_pieces(16, 16)), list(_pieces(9, 16)), list(_pieces(12, 12)), list(_pieces(0, 8))
    ([(0, 16)], [(0, 8), (8, 1)], [(0, 12)], [])
    """
    first = 0
    while first < number:
        width = number if number == lanes else 1 << ((number - first).bit_length() - 1)
        yield first, width
        first += width


def _tiles(body: Any, dialect: Dialect) -> Iterator[tuple[Tiles, int]]:
    """The loops over tiles of which one stands over the edge, none of them in another, and that tile's place."""
    named = {hash(node.var): node.value for node in statements(body) if kind_of(node) in _LETS}
    found: dict[tuple[int, str], Tiles] = {}
    unchecked: list[Lanes] = []
    for loops, _ in nests(body, ()):
        lanes = _lanes(loops[-1], named, dialect)
        if lanes is None:
            continue
        if lanes.place is None:
            unchecked.append(lanes)
        elif (depth := _depth(lanes.place, loops[:-1])) is not None:
            key = hash(loops[depth].loop_var), str(sorted((at, n) for at, (_, n) in lanes.place.terms.items() if n))
            place = Sum(0, lanes.place.terms)
            found.setdefault(key, Tiles(loops[depth], loops[: depth + 1], place)).vectors.append(lanes)
    taken: set[int] = set()
    for tiles in sorted(found.values(), key=lambda tiles: -len(tiles.vectors)):
        around = {hash(loop.loop_var) for loop in tiles.loops}
        inside = {hash(node.loop_var) for node in statements(tiles.home.body) if kind_of(node) == "For"}
        over = None if taken & (around | inside) else tiles.over(dialect)
        if over is None:
            continue
        taken.add(hash(tiles.home.loop_var))
        lengths = {lanes.lanes for lanes in tiles.vectors}
        tiles.vectors += [ls for ls in unchecked if ls.lanes in lengths and hash(ls.loop.loop_var) in inside]
        yield tiles, over


def _depth(place: Sum, loops: tuple[Any, ...]) -> int | None:
    """Which of the loops is the innermost that the place of a tile depends on; None: it depends on something else."""
    depth = {hash(loop.loop_var): n for n, loop in enumerate(loops)}
    variables = [
        hash(part)
        for atom, count in place.terms.values()
        if count
        for part in parts_of(atom)
        if kind_of(part) in ("Var", "SizeVar")
    ]
    return max(depth[v] for v in variables) if variables and all(v in depth for v in variables) else None


def _lanes(loop: Any, named: dict[int, Any], dialect: Dialect) -> Lanes | None:
    """A loop that computes independent neighbours one by one, checked or not; None if it is not that."""
    number, variable = number_of(loop.extent), {hash(loop.loop_var)}
    *checks, store = [node for node in statements(loop.body) if kind_of(node) not in (*_LETS, "SeqStmt")]
    if number is None or number < 2 or kind_of(store) != "BufferStore" or len(store.indices) != 1:
        return None
    if any(kind_of(check) != "IfThenElse" or check.else_case is not None for check in checks):
        return None
    place, others = None, []
    for condition in (part for check in checks for part in _conjuncts(check.condition)):
        below = _below(condition, named, variable)
        if below is not None and not below.of(loop.loop_var):
            others.append(condition)
        elif below is None or below.of(loop.loop_var) != 1 or place is not None:
            return None
        else:
            place = below
    at = sum_of(store.indices[0], named, variable)
    if at is None or at.of(loop.loop_var) != 1:
        return None
    for load in loads_of(store):
        buffer, indices = access_of(load)
        read = sum_of(indices[0], named, variable) if len(indices) == 1 else None
        if _memory(buffer) == _memory(store.buffer) and (read is None or not read.same(at)):
            return None
    for let in reversed([node for node in statements(loop.body) if kind_of(node) in _LETS]):
        store = dialect.substituted(store, let.var, let.value)
        others = [dialect.substituted(condition, let.var, let.value) for condition in others]
    if place is not None:
        place.terms.pop(hash(loop.loop_var))
    lanes = Lanes(loop, number, place, tuple(others), store, Vectors(loop.loop_var, number, dialect, named))
    try:
        lanes.computed(number)
    except Scalar:
        return None
    return lanes


def _conjuncts(condition: Any) -> Iterator[Any]:
    if kind_of(condition) == "And":
        yield from _conjuncts(condition.a)
        yield from _conjuncts(condition.b)
    elif kind_of(condition) == "Call" and str(getattr(condition.op, "name", "")).endswith(".likely"):
        yield from _conjuncts(condition.args[0])
    else:
        yield condition


def _below(condition: Any, named: dict[int, Any], variables: set[int]) -> Sum | None:
    """What is below 0 where a condition holds."""
    if kind_of(condition) not in ("LT", "LE"):
        return None
    a, b = (sum_of(side, named, variables) for side in (condition.a, condition.b))
    return None if a is None or b is None else a.plus(b, -1).plus(Sum(-int(kind_of(condition) == "LE")))


def _memory(buffer: Any) -> int:
    """What two buffers share that are the same memory."""
    return hash(getattr(buffer, "data", buffer))


def _range(loop: Any) -> Any:
    import tvm

    return tvm.ir.Range.from_min_extent(loop.min, loop.extent)
