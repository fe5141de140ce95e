"""Loops over the register tiles of a flattened kernel: where its sums stand, and how far the next tile's accesses are.

Both prefetches of what memory delivers ask a tile ahead (`prefetch_rows.py`, `prefetch_residuals.py`): lines for which
a tile of few sums asks itself arrive too late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...device.known import estimate
from ...te.numbering import PARALLEL, dtype_of_node
from ..flat import Memory, Sum, children, kind_of, number_of, statements
from .prefetch_panels import element_bytes, elements_of

#: Most lines that a tile asks for at once: as many as there are registers in the largest tiles.
LINES_ASKED = 32


def is_large(buffer: Any, read_once: bool = False) -> bool:
    """Return whether no core's caches keep a tensor; of one that is read once, whether the smallest caches do not."""
    return elements_of(buffer) * element_bytes(buffer) > int(estimate("l2_capacity" if read_once else "l2_largest"))


@dataclass(frozen=True)
class Sums:
    """A loop that adds up in a kernel's own memory alone.

    Parameters
    ----------
    tiles : tuple of For
        Loops of a thread around it, outermost first.
    loop : For
    read : set of int
        Memory that is read up to the loop's end, in its sequence.
    after : list of Stmt
        Statements behind it, until its memory is written again.
    """

    tiles: tuple[Any, ...]
    loop: Any
    read: set[int]
    after: list[Any]


def sums_in(statement: Any, memory: Memory, own: set[int], tiles: tuple[Any, ...] = ()) -> Iterator[Sums]:
    """Yield the sums of a statement of a kernel, outer ones first.

    Parameters
    ----------
    own : set of int
        Memory that the kernel allocates.
    tiles : tuple of For
        Loops of a thread around the statement.
    """
    inside = children(statement)
    if kind_of(statement) == "SeqStmt":
        stores = [[node for node in statements(part) if kind_of(node) == "BufferStore"] for part in inside]
        written = [{memory.of(store.buffer) for store in several} for several in stores]
        for at, loop in enumerate(inside):
            if kind_of(loop) != "For" or not written[at] or not own.issuperset(written[at]):
                continue
            if any(memory.of(store.buffer) in memory.read_in(store) for store in stores[at]):
                later = range(at + 1, len(inside))
                end = next((n for n in later if not own.isdisjoint(written[n])), len(inside))
                read = set[int]().union(*map(memory.read_in, inside[: at + 1]))
                yield Sums(tiles, loop, read, inside[at + 1 : end])
    if kind_of(statement) == "For" and int(statement.kind) != PARALLEL:
        tiles = (*tiles, statement)
    for part in inside:
        yield from sums_in(part, memory, own, tiles)


def passes_in(tiles: Sequence[Any], start: Sum) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the loops over tiles in which an access stays: passes over the same elements.

    Returns
    -------
    around, inside : tuple of For
        Around the loops in which it moves, and inside all of them.
    """
    moving = [n for n, loop in enumerate(tiles) if start.of(loop.loop_var)]
    first, last = (moving[0], moving[-1] + 1) if moving else (0, 0)
    return tuple(tiles[:first]), tuple(tiles[last:])


def to_next(tiles: Sequence[Any], start: Sum, tir: Any) -> Any | None:
    """Return how many elements an access moves to the next tile in which it moves; None if its thread has no other.

    Parameters
    ----------
    tiles : sequence of For
        Loops of a thread over the tiles, outermost first.
    start : Sum
        Index of the access.
    tir : module

    Notes
    -----
    Behind the last trip of two loops it is a guess: prefetches need no valid address.
    """
    moving = [loop for loop in tiles if start.of(loop.loop_var)]
    if not moving:
        return None
    loop = moving[-1]
    var, step, trips = loop.loop_var, start.of(loop.loop_var), number_of(loop.extent)
    dtype = dtype_of_node(var)
    around = start.of(moving[-2].loop_var) if len(moving) > 1 else 0
    if trips is None or not around or around == step * trips:
        return tir.const(step, dtype)
    back = tir.const(around - step * (trips - 1), dtype)
    return tir.Select(var < tir.const(trips - 1, dtype), tir.const(step, dtype), back)
