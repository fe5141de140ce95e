"""Prefetches of what a tile's epilogue reads from memory, before the sums of the tile before.

A residual connection adds a large tensor to the sums of a product or a convolution. The lines that a tile needs of it
are far apart, a run for each pixel or block of channels, so that no prefetcher finds them; a tile asks for all of them
at once when its sums are there, and waits. Asked for a tile ahead, they come meanwhile (on a Zen 3, whose cores have
512 kB: products of 784 x 128 x 512 and 196 x 256 x 1024 with as large a tensor take 0.8 and 0.9 of the time).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ..dialect import FIRST_LEVEL, Dialect
from ..flat import Memory, Sum, access_of, allocated_in, kind_of, loads_of, names_of, number_of, statements, sum_of
from .next_tiles import LINES_ASKED, is_large, sums_in, to_next
from .prefetch_panels import line_elements


def with_residuals_asked(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc that asks for what follows the next tile's sums before a tile's begin."""
    tir, memory, named = dialect.tir, Memory.of_body(func.body), names_of(func.body)
    own = allocated_in(func.body)
    asked: dict[int, list[Any]] = {}  # before a loop, by the hash of its variable
    for sums in sums_in(func.body, memory, own):
        for buffer, start in _lines(sums.after, memory, own | sums.read, named):
            index, further = start.expression(tir), to_next(sums.tiles, start, tir)
            place = index if further is None else index + further
            asked.setdefault(hash(sums.loop.loop_var), []).append(dialect.asking(buffer, place, FIRST_LEVEL))
    if not asked:
        return func

    def asking(loop: Any) -> Any | None:
        asks = asked.get(hash(loop.loop_var))
        return None if asks is None else tir.SeqStmt([*asks, loop])

    return func.with_body(dialect.with_loops(func.body, asking))


def _lines(after: list[Any], memory: Memory, near: set[int], named: Any) -> list[tuple[Any, Sum]]:
    """Return the lines that statements read of tensors too large for small caches, at most `LINES_ASKED`.

    Parameters
    ----------
    near : set of int
        Memory left out: the kernel's own, and what the sums have read (a normalised row).
    """
    found: list[tuple[Any, Sum]] = []
    loops = [node for statement in after for node in statements(statement) if kind_of(node) == "For"]
    trips = {hash(loop.loop_var): number_of(loop.extent) for loop in loops}
    bound = set[int]().union(*map(names_of, after))
    for load in (load for statement in after for load in loads_of(statement)):
        buffer, indices = access_of(load)
        if memory.of(buffer) in near or len(indices) != 1 or kind_of(indices[0]) != "Ramp":
            continue
        if not is_large(buffer, read_once=True):
            continue
        start = sum_of(indices[0].base, named, set(trips))
        if start is None or number_of(indices[0].stride) != 1 or not bound.isdisjoint(start.variables()):
            continue
        line = line_elements(buffer)
        for place in _places(start, trips):
            apart = [place.plus(other, -1) for known, other in found if hash(known) == hash(buffer)]
            if not any(gap.is_number and abs(gap.number) < line for gap in apart):
                found.append((buffer, place))
            if len(found) == LINES_ASKED:
                return found
    return found


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
