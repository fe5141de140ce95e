"""Vectors that reach into padding: choices of each lane become known for each tile. For either TVM line's functions.

TVM splits a vector with lanes in the padding into a loop over its lanes, with a choice in each. Of the tiles along an
axis only the first and the last reach into padding, with known lanes. Those are computed apart from the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from ...te.numbering import SERIAL
from ..dialect import Dialect
from ..flat import CHOICE, Memory, called, kind_of, names_of, nests, number_of, parts_of, statements
from .flat_vectors import Scalar, held
from .peeled_loops import in_parts
from .scalar_lanes import Lanes, lanes_of
from .tile_places import runs

#: Most kinds of tiles along an axis; each kind is a copy of the code.
KINDS = 5
#: Most tiles along an axis to look at.
TRIPS = 1 << 14


@dataclass
class Row:
    """Tiles along an axis: the loop over them, and its vectors with lanes that may be padding."""

    home: Any  # For
    vectors: list[Lanes] = field(default_factory=list)
    #: (variable of the loop over lanes, first trip of a kind of tiles) -> the vector's store in that kind.
    made: dict[tuple[int, int], Any] = field(default_factory=dict)

    def known(self, trip: int) -> dict[int, int]:
        """Return the loop's variable (by hash) with its value in one trip."""
        return {hash(self.home.loop_var): trip}

    @cached_property
    def kinds(self) -> list[tuple[int, int]]:
        """Kinds of tiles in order: the trip of the first tile, and one after that of the last."""
        sums = [(ls, ls.vectors.differing(part)) for ls in self.vectors for part in _conditions(ls)]
        return runs([
            [None if of is None else held(of, ls.loop.loop_var, ls.lanes, known) for ls, of in sums]
            for known in map(self.known, range(int(self.home.extent)))
        ])  # fmt: skip

    def computes(self) -> bool:
        """Return whether all kinds of tiles can be computed in vectors, and there are at most `KINDS`."""
        if len(self.kinds) > KINDS:
            return False
        for (first, _), lanes in product(self.kinds, self.vectors):
            if (made := _computed(lanes, self.known(first))) is None:
                return False
            self.made[hash(lanes.loop.loop_var), first] = made
        return True


def with_padded_vectors(body: Any, dialect: Dialect) -> Any | None:
    """Return a flattened statement with whole vectors where TVM chose lane by lane; None if there are none.

    The body of a loop over tiles occurs once per kind of tiles: run TVM's ``ConvertSSA`` afterwards.
    """
    alone, rows = _found(body, dialect)
    if not alone and not rows:
        return None

    def one(loop: Any) -> Any | None:
        key = hash(loop.loop_var)
        if key in alone:
            return alone[key]
        return _in_kinds(loop, rows[key], dialect) if key in rows else None

    return dialect.with_loops(body, one)


def _found(body: Any, dialect: Dialect) -> tuple[dict[int, Any], dict[int, Row]]:
    """Return stores of vectors with all choices known, and loops whose trip decides them; both by loop variable."""
    memory, named = Memory.of_body(body), names_of(body)
    alone: dict[int, Any] = {}
    rows: dict[int, Row] = {}
    plain: list[tuple[tuple[int, int], Lanes]] = []
    tiles: set[tuple[int, int]] = set()  # the loop around vectors, and their length
    for loops, _ in nests(body, ()):
        lanes = lanes_of(loops[-1], named, memory, dialect)
        if lanes is None or lanes.place is not None or lanes.others:
            continue
        tile = hash(loops[-2].loop_var) if len(loops) > 1 else 0, lanes.lanes
        if not any(called(part) == CHOICE for part in parts_of(lanes.store.value)):
            plain.append((tile, lanes))
        elif (made := _computed(lanes, {})) is not None:
            alone[hash(lanes.loop.loop_var)] = made
            tiles.add(tile)
        elif (home := _home(lanes, loops[:-1])) is not None:
            row = rows.setdefault(hash(home.loop_var), Row(home))
            row.vectors.append(lanes)
            tiles.add(tile)
    rows = {key: row for key, row in rows.items() if not _inside(row.home) & set(rows) and row.computes()}
    for tile, lanes in plain:  # TVM told their lanes apart too, and found out later that nothing is to choose
        if tile in tiles and (made := _computed(lanes, {})) is not None:
            alone[hash(lanes.loop.loop_var)] = made
    return alone, rows


def _home(lanes: Lanes, loops: tuple[Any, ...]) -> Any | None:
    """Return the one serial loop that decides which lanes are padding; None if several do."""
    unknown: set[int] = set()
    for condition in _conditions(lanes):
        if (sums := lanes.vectors.differing(condition)) is None:
            return None
        unknown |= {variable for below in sums for variable in below.without(lanes.loop.loop_var).variables()}
    around = [loop for loop in loops if hash(loop.loop_var) in unknown]
    if len(unknown) != 1 or len(around) != 1:
        return None
    home, trips = around[0], number_of(around[0].extent)
    plain = int(home.kind) == SERIAL and number_of(home.min) == 0
    return home if plain and trips and trips <= TRIPS else None


def _inside(home: Any) -> set[int]:
    """Return the variables of the loops inside one."""
    return {hash(node.loop_var) for node in statements(home.body) if kind_of(node) == "For"}


def _conditions(lanes: Lanes) -> Iterator[Any]:
    """Yield the conditions of the choices in a stored value."""
    return (part.args[0] for part in parts_of(lanes.store.value) if called(part) == CHOICE)


def _computed(lanes: Lanes, known: Mapping[int, int]) -> Any | None:
    """Return a store of all lanes at once; None if they are no vector."""
    try:
        return lanes.vectors.all_of(known=known).store(lanes.store)
    except Scalar:
        return None


def _in_kinds(loop: Any, row: Row, dialect: Dialect) -> Any:
    """Return the loop over the tiles of a row, split into one loop per kind of tiles."""

    def of_trip(trip: int) -> Any:
        return dialect.with_loops(loop.body, lambda lane: row.made.get((hash(lane.loop_var), trip)))

    return in_parts(loop, row.kinds, of_trip, dialect)
