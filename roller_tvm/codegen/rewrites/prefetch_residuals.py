"""Prefetches of what a tile's epilogue reads from memory, before the tile's sums.

A residual connection adds a large tensor to the sums of a product or a convolution. The lines that a tile needs of it
are far apart, a run for each pixel or block of channels, so that no prefetcher finds them; a tile asks for all of them
at once when its sums are there, and waits. Asked for before the sums, they come meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from ...device.known import estimate
from ..dialect import FIRST_LEVEL, Dialect
from ..flat import (
    Memory,
    Sum,
    access_of,
    allocated_in,
    children,
    kind_of,
    loads_of,
    names_of,
    number_of,
    statements,
    sum_of,
)
from .prefetch_panels import element_bytes

#: Most lines that a tile asks for: as many as there are registers in the largest tiles.
LINES_ASKED = 32


def with_residuals_asked(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc that asks for what follows a tile's sums before they begin."""
    memory, named = Memory.of_body(func.body), names_of(func.body)
    own = allocated_in(func.body)
    asked: dict[int, list[Any]] = {}  # before a loop, by the hash of its variable
    for loop, read, after in _sums(func.body, memory, own):
        asks = [
            dialect.asking(buffer, start.expression(dialect.tir), FIRST_LEVEL)
            for buffer, start in _lines(after, memory, own | read, named)
        ]
        if asks:
            asked[hash(loop.loop_var)] = asks
    if not asked:
        return func

    def asking(loop: Any) -> Any | None:
        asks = asked.get(hash(loop.loop_var))
        return None if asks is None else dialect.tir.SeqStmt([*asks, loop])

    return func.with_body(dialect.with_loops(func.body, asking))


def _sums(body: Any, memory: Memory, own: set[int]) -> Iterator[tuple[Any, set[int], list[Any]]]:
    """Yield loops that add up in a kernel's own memory alone, and the statements until that is written again.

    Between them stands the memory that is read in the sequence up to the loop's end.
    """
    for sequence in statements(body):
        parts = children(sequence) if kind_of(sequence) == "SeqStmt" else []
        stores = [[node for node in statements(part) if kind_of(node) == "BufferStore"] for part in parts]
        written = [{memory.of(store.buffer) for store in several} for several in stores]
        for at, loop in enumerate(parts):
            if kind_of(loop) != "For" or not written[at] or not own.issuperset(written[at]):
                continue
            if any(memory.of(store.buffer) in _read(store, memory) for store in stores[at]):
                later = range(at + 1, len(parts))
                end = next((n for n in later if not own.isdisjoint(written[n])), len(parts))
                yield loop, set[int]().union(*(_read(part, memory) for part in parts[: at + 1])), parts[at + 1 : end]


def _read(statement: Any, memory: Memory) -> set[int]:
    """Return the memory that a statement reads."""
    return {memory.of(access_of(load)[0]) for load in loads_of(statement)}


def _lines(after: list[Any], memory: Memory, near: set[int], named: Any) -> list[tuple[Any, Sum]]:
    """Return the lines that statements read of tensors too large for a core's caches, at most `LINES_ASKED`.

    Parameters
    ----------
    near : set of int
        Memory left out: the kernel's own, and what the sums have read (a normalised row).
    """
    found: list[tuple[Any, Sum]] = []
    loops = [node for statement in after for node in statements(statement) if kind_of(node) == "For"]
    trips = {hash(loop.loop_var): number_of(loop.extent) for loop in loops}
    for load in (load for statement in after for load in loads_of(statement)):
        buffer, indices = access_of(load)
        if memory.of(buffer) in near or len(indices) != 1 or kind_of(indices[0]) != "Ramp" or not _is_large(buffer):
            continue
        start = sum_of(indices[0].base, named, set(trips))
        if start is None or number_of(indices[0].stride) != 1:
            continue
        line = int(estimate("line")) // element_bytes(buffer)
        for place in _places(start, trips):
            apart = [place.plus(other, -1) for known, other in found if hash(known) == hash(buffer)]
            if not any(gap.is_number and abs(gap.number) < line for gap in apart):
                found.append((buffer, place))
            if len(found) == LINES_ASKED:
                return found
    return found


def _is_large(buffer: Any) -> bool:
    """Return whether no core's caches keep a tensor."""
    extents = [number_of(extent) or 0 for extent in buffer.shape]
    return prod(extents) * element_bytes(buffer) > int(estimate("l2_largest"))


def _places(start: Sum, trips: Mapping[int, int | None]) -> Iterator[Sum]:
    """Yield an index at each trip of the loops in which it stands; nothing if their number is not known."""
    inside = [(atom, count, trips[at]) for at, (atom, count) in start.terms.items() if count and at in trips]
    if any(number is None for _, _, number in inside):
        return
    for at in product(*(range(number or 0) for _, _, number in inside)):
        place = start
        for (atom, count, _), trip in zip(inside, at, strict=True):
            place = place.without(atom).plus(Sum(count * trip))
        yield place
