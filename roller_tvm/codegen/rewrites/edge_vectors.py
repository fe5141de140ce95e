"""Vectors over the edge of an axis: checks of each lane become checks of each tile. For either TVM line's functions.

TVM splits a vector that may cross an edge into a loop over its lanes, each behind a check. Of the tiles along an axis
only the last crosses the edge, by a known number of lanes. All others are computed here in whole vectors, and so is the
last if tiles come before it: its elements are read with those before them, and sums keep the lanes that it lacks. Where
that would not be the same, it is computed in vectors of as many lanes as it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...te.numbering import SERIAL, dtype_of_node
from ..dialect import Dialect
from ..flat import (
    Memory,
    Sum,
    access_of,
    allocated_in,
    children,
    in_order,
    is_load,
    kind_of,
    names_of,
    nests,
    number_of,
    parts_of,
    statements,
    values_of,
    with_body,
)
from .scalar_lanes import Lanes, Surroundings, lanes_of
from .tile_places import places_of


@dataclass
class Tiles:
    """Tiles along an axis: the innermost loop over them, and the vectors in it."""

    home: Any  # For
    loops: tuple[Any, ...]  # home and the loops around it
    place: Sum  # position of a tile, without its constant
    vectors: list[Lanes] = field(default_factory=list)

    def last_whole(self) -> int:
        """Return the last place at which all lanes of a tile are computed."""
        return min(-lanes.place.number - lanes.lanes for lanes in self.vectors if lanes.place is not None)

    def trips_to(self, over: int) -> int | None:
        """Return the loop's trips if it is serial and only its last trip computes the tile over the edge, else None."""
        trips, steps = number_of(self.home.extent), self.place.of(self.home.loop_var)
        alone = all(not count or atom.same_as(self.home.loop_var) for atom, count in self.place.terms.values())
        plain = int(self.home.kind) == SERIAL and number_of(self.home.min) == 0
        return trips if plain and alone and trips and trips > 1 and over == steps * (trips - 1) else None

    def over(self, dialect: Dialect) -> int | None:
        """Return the place of the one tile that crosses the edge; None if it is not known or there are several."""
        places = places_of(self.place, self.loops, dialect)
        return places[-1] if places and places[-1] - places.step <= self.last_whole() < places[-1] else None


def with_whole_vectors(body: Any, dialect: Dialect) -> Any | None:
    """Return a flattened statement that checks tiles instead of lanes; None if it has none to check.

    The body of a loop over tiles occurs twice in it: run TVM's ``ConvertSSA`` afterwards.
    """
    memory = Memory.of_body(body)
    found = {hash(tiles.home.loop_var): (tiles, over) for tiles, over in _tiles(body, memory, dialect)}
    filled = _filled(body, memory, dialect)
    if not found and not filled:
        return None
    tir, allocated, sizes = dialect.tir, allocated_in(body), _sizes(body)
    padded: dict[int, int] = {}

    def in_two_kinds(loop: Any) -> Any | None:
        if (of_loop := found.get(hash(loop.loop_var))) is None:
            return None
        tiles, over = of_loop
        inside = {hash(lanes.loop.loop_var): lanes for lanes in tiles.vectors}
        private = allocated - _read_elsewhere(body, inside, memory)

        def of_lanes(lane: Any, at: int, around: Surroundings | None = None) -> Any | None:
            lanes = inside.get(hash(lane.loop_var))
            return None if lanes is None else lanes.computed(lanes.left_at(at), private, around)

        place, whole, trips = tiles.place.expression(tir), tiles.last_whole(), tiles.trips_to(over)
        around = None
        if trips is not None and over >= max(lanes.lanes for lanes in tiles.vectors):
            around = Surroundings(allocated, sizes, _stored(loop.body, memory), memory, padded)
        main = dialect.with_loops(loop.body, lambda lane: of_lanes(lane, whole))
        last = dialect.with_loops(loop.body, lambda lane: of_lanes(lane, over, around))
        if trips is not None:
            # Nothing is checked at all: sums stay in registers while the loop runs.
            end = tir.const(trips - 1, dtype_of_node(loop.loop_var))
            return tir.SeqStmt([with_body(loop, main, tir, end), dialect.substituted(last, loop.loop_var, end)])
        within = place <= tir.const(whole, dtype_of_node(place))
        return with_body(loop, tir.IfThenElse(within, main, last), tir)

    made = dialect.with_loops(body, lambda loop: filled.get(hash(loop.loop_var)) or in_two_kinds(loop))
    return _with_room(made, padded, dialect) if padded else made


def _sizes(body: Any) -> dict[int, int]:
    """Return the elements of memory that a function allocates itself, by hash, on the line on which it can grow."""
    allocations = [node.buffer for node in statements(body) if kind_of(node) == "AllocBuffer"]
    return {hash(buffer): size for buffer in allocations if (size := _elements(buffer))}


def _with_room(body: Any, padded: dict[int, int], dialect: Dialect) -> Any:
    """Return a statement with some memory (by hash) made of whole vectors of so many lanes, where LLVM aligns them."""
    tir = dialect.tir

    def larger(node: Any) -> Any | None:
        buffer = node.buffer
        if (lanes := padded.get(hash(buffer))) is None:
            return None
        vectors = -(-_elements(buffer) // lanes)
        held = tir.decl_buffer((vectors,), f"{buffer.dtype}x{lanes}", buffer.name)
        return tir.SeqStmt([tir.AllocBuffer(held, dict(node.annotations)), tir.DeclBuffer(buffer, data=held.data)])

    def flat(node: Any) -> Any:
        return in_order(list(node.seq), tir)

    return dialect.with_nodes(dialect.with_nodes(body, larger, tir.AllocBuffer), flat, tir.SeqStmt)


def _elements(buffer: Any) -> int:
    """Return the elements of a buffer of one dimension; 0 if it has others, or is as large as is known later."""
    extents = [number_of(extent) for extent in buffer.shape]
    return (extents[0] or 0) if len(extents) == 1 else 0


def _filled(body: Any, memory: Memory, dialect: Dialect) -> dict[int, Any]:
    """Return the vectors of loops (by their variable's hash) whose checks hold for all lanes: initial values of sums.

    A vector that is read after stores of its halves waits for them to reach the cache, and so do all rows.
    """
    named, found = names_of(body), {}
    for loops, _ in nests(body, ()):
        if (lanes := lanes_of(loops[-1], named, memory, dialect)) is None or lanes.place is None:
            continue
        if lanes.place.is_number and lanes.left_at(0) == lanes.lanes and lanes.are_a_vector():
            found[hash(loops[-1].loop_var)] = lanes.computed(lanes.lanes)
    return found


def _tiles(body: Any, memory: Memory, dialect: Dialect) -> Iterator[tuple[Tiles, int]]:
    """Yield loops over tiles of which one crosses the edge, and that tile's place; no loop is inside another."""
    named = names_of(body)
    found: dict[tuple[int, str], Tiles] = {}
    unchecked: dict[int, Any] = {}

    def vector(loop: Any) -> Lanes | None:
        lanes = lanes_of(loop, named, memory, dialect)
        return None if lanes is None or not lanes.are_a_vector() else lanes

    for loops, _ in nests(body, ()):
        loop, lanes = loops[-1], None
        if any(kind_of(node) == "IfThenElse" for node in statements(loop.body)) and (lanes := vector(loop)) is None:
            continue
        if lanes is None or lanes.place is None:
            unchecked[hash(loop.loop_var)] = loop
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
        near = (vector(loop) for at, loop in unchecked.items() if at in inside and number_of(loop.extent) in lengths)
        tiles.vectors += [lanes for lanes in near if lanes is not None]
        yield tiles, over


def _depth(place: Sum, loops: tuple[Any, ...]) -> int | None:
    """Return the position of the innermost loop on which a tile's place depends; None if anything else moves it."""
    depth = {hash(loop.loop_var): n for n, loop in enumerate(loops)}
    variables = place.variables()
    return max(depth[v] for v in variables) if variables and all(v in depth for v in variables) else None


def _stored(body: Any, memory: Memory) -> Counter[int]:
    """Return how many statements store to each memory (by hash)."""
    return Counter(memory.of(node.buffer) for node in statements(body) if kind_of(node) == "BufferStore")


def _read_elsewhere(body: Any, loops: Container[int], memory: Memory) -> set[int]:
    """Return the memory (by hash) that is read outside of these loops, given by their variables."""

    def read(statement: Any) -> Iterator[int]:
        if kind_of(statement) == "For" and hash(statement.loop_var) in loops:
            return
        for value in values_of(statement):
            yield from (memory.of(access_of(part)[0]) for part in parts_of(value) if is_load(part))
        for part in children(statement):
            yield from read(part)

    return set(read(body))
