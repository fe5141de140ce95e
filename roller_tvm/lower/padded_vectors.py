"""Vectors that reach into padding: what TVM chooses lane by lane is known of each tile. Either TVM line's functions.

TVM takes a vector apart some lanes of which are padding: a loop over its lanes, with a choice in each. Of the tiles
along an axis only the first ones and the last ones reach into padding, with lanes that are known: those are computed
apart from the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from .dialect import Dialect
from .flat_loops import (
    CHOICE,
    SERIAL,
    Memory,
    called,
    kind_of,
    names_of,
    nests,
    number_of,
    parts_of,
    statements,
)
from .flat_vectors import Scalar, held
from .peeled import in_parts, runs
from .scalar_lanes import Lanes, lanes_of

#: Kinds of tiles along an axis: more would be as many copies of the code.
KINDS = 5
#: Tiles along an axis that are looked at.
TRIPS = 1 << 14


@dataclass
class Row:
    """Tiles along an axis: the loop over them, and vectors in it of which some lanes may be padding.

    Parameters
    ----------
    home : For
    vectors : list of Lanes
    made : dict
        What each is in a kind of tiles, by the variable of its loop over lanes and the first trip of the kind.
    """

    home: Any
    vectors: list[Lanes] = field(default_factory=list)
    made: dict[tuple[int, int], Any] = field(default_factory=dict)

    def known(self, trip: int) -> dict[int, int]:
        """What is known in one trip of the loop."""
        return {hash(self.home.loop_var): trip}

    @cached_property
    def kinds(self) -> list[tuple[int, int]]:
        """Tiles alike, one after the other: the trip of the first, and the one after that of the last."""
        sums = [(ls, ls.vectors.differing(part)) for ls in self.vectors for part in _conditions(ls)]
        return runs([
            [None if of is None else held(of, ls.loop.loop_var, ls.lanes, known) for ls, of in sums]
            for known in map(self.known, range(int(self.home.extent)))
        ])  # fmt: skip

    def computes(self) -> bool:
        """Whether all of it can be said in vectors, of not too many kinds of tiles."""
        if len(self.kinds) > KINDS:
            return False
        for (first, _), lanes in product(self.kinds, self.vectors):
            if (made := _computed(lanes, self.known(first))) is None:
                return False
            self.made[hash(lanes.loop.loop_var), first] = made
        return True


def with_padded_vectors(body: Any, dialect: Dialect) -> Any | None:
    """A flattened statement that computes vectors whose lanes TVM tells apart by choices; None where there are none.

    What is in a loop over tiles stands there as often as there are kinds of tiles, for TVM's ``ConvertSSA``.

    Parameters
    ----------
    body : Stmt
    dialect : Dialect
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
    """Vectors, as they are stored, in which every choice is known, and loops whose trips tell, by their variables."""
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
    """The serial loop whose trips tell which lanes are padding; None where it is not one alone."""
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
    """Variables of the loops within one."""
    return {hash(node.loop_var) for node in statements(home.body) if kind_of(node) == "For"}


def _conditions(lanes: Lanes) -> Iterator[Any]:
    """Conditions of the choices within what is stored."""
    return (part.args[0] for part in parts_of(lanes.store.value) if called(part) == CHOICE)


def _computed(lanes: Lanes, known: Mapping[int, int]) -> Any | None:
    """All lanes stored at once; None where that cannot be said."""
    try:
        return lanes.vectors.all_of(known=known).store(lanes.store)
    except Scalar:
        return None


def _in_kinds(loop: Any, row: Row, dialect: Dialect) -> Any:
    """The loop over the tiles of a row, one after the other for each kind of them."""

    def of_trip(trip: int) -> Any:
        return dialect.with_loops(loop.body, lambda lane: row.made.get((hash(lane.loop_var), trip)))

    return in_parts(loop, row.kinds, of_trip, dialect)
