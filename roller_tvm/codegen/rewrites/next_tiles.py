"""Loops over the register tiles of a flattened kernel: where its sums stand, and how far the next tile's accesses are.

Both prefetches of what memory delivers ask a tile ahead (`prefetch_rows.py`, `prefetch_residuals.py`): lines for which
a tile of few sums asks itself arrive too late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from ...device.known import estimate
from ...te.numbering import PARALLEL, dtype_of_node
from ..flat import LETS, Memory, Sum, access_of, children, kind_of, loads_of, number_of, statements
from .prefetch_panels import element_bytes

#: Most lines that a tile asks for at once: as many as there are registers in the largest tiles.
LINES_ASKED = 32


def line_elements(buffer: Any) -> int:
    """Return the elements of a buffer in a cache line."""
    return int(estimate("line")) // element_bytes(buffer)


def is_large(buffer: Any) -> bool:
    """Return whether no core's caches keep a tensor."""
    extents = [number_of(extent) or 0 for extent in buffer.shape]
    return prod(extents) * element_bytes(buffer) > int(estimate("l2_largest"))


def sums_in(body: Any, memory: Memory, own: set[int]) -> Iterator[tuple[Any, set[int], list[Any]]]:
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


def loops_around(body: Any) -> dict[int, tuple[Any, ...]]:
    """Return the loops around each loop, outermost first, by the hash of its variable."""
    found: dict[int, tuple[Any, ...]] = {}
    todo: list[tuple[Any, tuple[Any, ...]]] = [(body, ())]
    while todo:
        statement, around = todo.pop()
        if kind_of(statement) == "For":
            found[hash(statement.loop_var)] = around
            around = (*around, statement)
        todo += [(part, around) for part in children(statement)]
    return found


def names_in(statements_: Sequence[Any]) -> set[int]:
    """Return the names that statements bind (by hash): nothing before them may use these."""
    return {hash(node.var) for one in statements_ for node in statements(one) if kind_of(node) in LETS}


def passes_in(tiles: Sequence[Any], start: Sum) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the loops over tiles, of one thread, in which an access stays: passes over the same elements.

    Returns
    -------
    around, inside : tuple of For
        Around the loops in which it moves, and inside all of them.
    """
    own = [loop for loop in tiles if int(loop.kind) != PARALLEL]
    moving = [n for n, loop in enumerate(own) if start.of(loop.loop_var)]
    first, last = (moving[0], moving[-1] + 1) if moving else (0, 0)
    return tuple(own[:first]), tuple(own[last:])


def to_next(tiles: Sequence[Any], start: Sum, tir: Any) -> Any | None:
    """Return how many elements an access moves to the next tile in which it moves; None if its thread has no other.

    Parameters
    ----------
    tiles : sequence of For
        Loops over the tiles, outermost first.
    start : Sum
        Index of the access.
    tir : module

    Notes
    -----
    Behind the last trip of two loops it is a guess: prefetches need no valid address.
    """
    moving = [loop for loop in tiles if start.of(loop.loop_var) and int(loop.kind) != PARALLEL]
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
