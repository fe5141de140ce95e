"""Loops over the lanes of a vector that TVM has split up, in flattened functions of either TVM line.

TVM does so if a lane is checked: a store behind a condition, or a choice within the stored value.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...te.numbering import dtype_of_node
from ..dialect import Dialect
from ..flat import (
    LETS,
    Memory,
    Sum,
    access_of,
    bits_of,
    direct_parts,
    in_order,
    is_load,
    is_vector,
    kind_of,
    loads_of,
    number_of,
    parts_of,
    statements,
    sum_of,
)
from ..flat_conditions import below_zero, conjuncts
from .flat_vectors import Scalar, Vectors, divides, moves_with, place_of_end
from .strided_vectors import pieces

#: Bits of the longest vector in a plan, four registers: a longer loop is no split vector.
LONGEST = 4 * 512


@dataclass(frozen=True)
class Surroundings:
    """The serial loop over tiles whose last trip crosses an edge: all other trips have been made before that one.

    Parameters
    ----------
    allocated : container of int
        Memory of the function itself, by hash.
    sizes : mapping
        Memory of the function itself that can be made larger (by hash) -> its elements.
    stored : mapping
        Memory that the loop stores to (by hash) -> how many statements do.
    memory : Memory
    padded : dict
        Receives memory whose last vector stands over its end (by hash), and the lanes of that vector.
    """

    allocated: Container[int]
    sizes: Mapping[int, int]
    stored: Mapping[int, int]
    memory: Memory
    padded: dict[int, int]

    def end_of(self, buffer: Any) -> int | None:
        """Return how many elements a buffer has, if there is room after them."""
        memory = self.memory.of(buffer)
        return self.sizes[memory] if memory in self.padded else None


@dataclass(frozen=True)
class Lanes:
    """A loop over the lanes of a vector that TVM has split up."""

    loop: Any  # For
    lanes: int
    place: Sum | None  # lane ``n`` is computed if ``n + place < 0``; None: always, as TVM found out later
    others: tuple[Any, ...]  # further conditions, the same for all lanes
    store: Any  # the lane's store, with names replaced by their values
    at: Sum  # index that it is stored at
    memory: int  # memory that it is stored in
    vectors: Vectors  # makes vectors of all lanes

    def left_at(self, place: int) -> int:
        """Return the number of lanes to compute in a tile at this place (given without its constant)."""
        return self.lanes if self.place is None else max(0, min(self.lanes, -self.place.number - place))

    def computed(
        self, number: int, private: Container[int] = (), around: Surroundings | None = None,
    ) -> Any:  # fmt: skip
        """Return a statement that computes the first lanes, without checks.

        Parameters
        ----------
        number : int
            Number of lanes.
        private : container of int
            Memory (by hash) that only these lanes read: the other lanes may be computed there too, as they are never
            used. A tile's sums are then the same vectors at the edge as elsewhere, and stay in registers.
        around : Surroundings
            If given, whole tiles come before this one.

        Raises
        ------
        Scalar
        """
        if not number:
            return self.vectors.dialect.tir.Evaluate(self.vectors.dialect.tir.const(0, "int32"))
        beyond = frozenset(self.place.variables() if self.place is not None else ())
        if number == self.lanes:
            made = self.vectors.all_of().store(self.store)
        elif self.memory in private and not self.at.variables() & beyond and not divides(self.store.value):
            made = self.vectors.all_of(number, beyond).store(self.store)
        else:
            made = (around and self._from_before(number, beyond, around)) or self._in_pieces(number)
        for condition in reversed(self.others):
            made = self.vectors.dialect.tir.IfThenElse(condition, made, None)
        return made

    def _from_before(self, number: int, beyond: frozenset[int], around: Surroundings) -> Any | None:
        """Return a statement with a whole vector; None if that would not be the same.

        Lanes that all tiles share, as in a sum, keep what they have beyond the edge. A tensor that the kernel keeps
        for itself gets room for them. Elsewhere the vector begins in the tile before: elements that are computed from
        nothing but elements at their own place are computed once more.
        """
        tir, tile, lane = self.vectors.dialect.tir, self.place, self.loop.loop_var
        back = self.lanes - number
        if tile is None or divides(self.store.value):
            return None
        turned = self.vectors.turned(back, tile, beyond, around.end_of)
        try:
            if self.memory in around.allocated:
                if not self.at.variables() & beyond:
                    made = turned.store(self.store)
                    kept = tir.BufferLoad(made.buffer, list(made.indices))
                    lanes = [tir.const(n if n < number else self.lanes + n, "int32") for n in range(self.lanes)]
                    return tir.BufferStore(made.buffer, tir.Shuffle([made.value, kept], lanes), list(made.indices))
                end = place_of_end(self.at, tile, lane)
                if end is None or end != around.sizes.get(self.memory):
                    return None
                made = turned.store(self.store)
                around.padded[self.memory] = max(self.lanes, around.padded.get(self.memory, 0))
                return made
            if self._is_alone(beyond, around):
                moved = self.vectors.dialect.substituted(self.store, lane, lane - tir.const(back, dtype_of_node(lane)))
                return self.vectors.all_of().store(moved)
        except Scalar:
            pass
        return None

    def _is_alone(self, beyond: frozenset[int], around: Surroundings) -> bool:
        """Return whether an element may be computed again a tile later, and gets the same value then."""
        if self.place is None or around.stored.get(self.memory) != 1:
            return False
        lane, named = self.loop.loop_var, self.vectors.named
        moving = beyond | {hash(lane)}
        if not moves_with(self.at, self.place, lane, beyond) or _depends(self.store.value, named, moving):
            return False
        for load in loads_of(self.store):
            buffer, indices = access_of(load)
            at = sum_of(indices[0], named, set(moving)) if len(indices) == 1 else None
            if at is None or around.memory.of(buffer) in around.stored:
                return False
            if at.variables() & moving and not moves_with(at, self.place, lane, beyond):
                return False
        return True

    def are_a_vector(self) -> bool:
        """Return whether all lanes can be computed as one vector."""
        try:
            self.computed(self.lanes)
        except Scalar:
            return False
        return True

    def _in_pieces(self, number: int) -> Any:
        """Return a statement for each vector of a power of two lanes, and one for a single remaining lane."""
        dialect, lane = self.vectors.dialect, self.loop.loop_var
        stores: list[Any] = []
        for first, width in pieces(number):
            place = dialect.tir.const(first, dtype_of_node(lane))
            if width == 1:
                stores.append(dialect.substituted(self.store, lane, place))
            else:
                moved = dialect.substituted(self.store, lane, lane + place) if first else self.store
                stores.append(replace(self.vectors.all_of(), lanes=width).store(moved))
        return in_order(stores, dialect.tir)


def _depends(value: Any, named: Mapping[int, Any], moving: frozenset[int]) -> bool:
    """Return whether a value depends on variables (by hash) but by the places of its loads, or on a name for a load."""
    if is_load(value):
        return False
    own = hash(value)
    if own in named:
        return any(map(is_load, parts_of(named[own]))) or _depends(named[own], named, moving)
    return own in moving or any(_depends(part, named, moving) for part in direct_parts(value))


def lanes_of(loop: Any, named: Mapping[int, Any], memory: Memory, dialect: Dialect) -> Lanes | None:
    """Return a loop that computes independent neighbours one by one, checked or not; None for any other loop."""
    number, variable = number_of(loop.extent), {hash(loop.loop_var)}
    nodes = [node for node in statements(loop.body) if kind_of(node) not in (*LETS, "SeqStmt")]
    if number_of(loop.min) != 0 or number is None or number < 2 or not nodes:
        return None
    *checks, store = nodes
    if kind_of(store) != "BufferStore" or len(store.indices) != 1:
        return None
    if any(kind_of(check) != "IfThenElse" or check.else_case is not None for check in checks):
        return None
    place, others = None, []
    for condition in (part for check in checks for part in conjuncts(check.condition)):
        below = below_zero(condition, named, loop.loop_var)
        if below is not None and not below.of(loop.loop_var) or not _depends(condition, named, frozenset(variable)):
            others.append(condition)
        elif below is None or below.of(loop.loop_var) != 1 or place is not None:
            return None
        else:
            place = below
    at = sum_of(store.indices[0], named, variable)
    if at is None or at.of(loop.loop_var) != 1:
        return None
    for let in reversed([node for node in statements(loop.body) if kind_of(node) in LETS]):
        store = dialect.substituted(store, let.var, let.value)
        others = [dialect.substituted(condition, let.var, let.value) for condition in others]
    # A store of several elements is a vector already: of neighbours' vectors there is none.
    if number * bits_of(store.value) > LONGEST or is_vector(store.value):
        return None
    for load in loads_of(store):
        buffer, indices = access_of(load)
        read = sum_of(indices[0], named, variable) if len(indices) == 1 else None
        if memory.of(buffer) == memory.of(store.buffer) and (read is None or not read.same(at)):
            return None
    vectors = Vectors(loop.loop_var, number, dialect, named)
    tile = None if place is None else place.without(loop.loop_var)
    return Lanes(loop, number, tile, tuple(others), store, at, memory.of(store.buffer), vectors)
