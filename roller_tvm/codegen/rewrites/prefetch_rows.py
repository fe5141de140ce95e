"""Prefetches of the next register tile's rows, while a kernel computes the sums of the current one.

A tile reads a row for each of its pixels or a block of channels at each step of its sums, one element at a time. In a
tensor that memory has these are many short runs: a core's own prefetchers follow few at a time, and find each anew, so
that a convolution takes as long as its arithmetic and its memory together. The loops tell the rows of the next tile:
each step asks for the lines of the same step there. If tiles of other columns pass over the same rows first, each of
these passes asks for a part. Long rows are found once a page: products of 1021 x 640 x 1024 and 577 x 4096 x 1024 would
take 1.01 and 1.1 times as long, a convolution of 256 channels takes 0.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ...device.known import estimate
from ...te.numbering import dtype_of_node
from ..dialect import FIRST_LEVEL, Dialect
from ..flat import (
    Memory,
    Sum,
    access_of,
    allocated_in,
    in_order,
    kind_of,
    loads_of,
    names_of,
    nests,
    number_of,
    statements,
    sum_of,
)
from .next_tiles import LINES_ASKED, Sums, is_large, passes_in, sums_in, to_next
from .prefetch_panels import Asks, element_bytes, line_elements, power_of_two, with_asked

#: Rows that a core's own prefetchers follow are at least this part of a page.
LONG_ROWS = 2


@dataclass(frozen=True)
class Rows:
    """Elements of one tensor that each step of a tile's sums reads one by one.

    Parameters
    ----------
    starts : sequence of Sum
        Indices, of the same strides.
    tiles, steps : sequence of For
        Loops of a thread over the tiles, and over the steps of the sums, outermost first.
    """

    buffer: Any
    starts: Sequence[Sum]
    tiles: Sequence[Any]
    steps: Sequence[Any]

    def stride(self, loop: Any) -> int:
        """Return the elements by which the reads move at each trip of a loop."""
        return self.starts[0].of(loop.loop_var)

    def run(self) -> int:
        """Return the neighbouring bytes that the steps of a row read."""
        elements = 1
        for loop in reversed(self.steps):
            if self.stride(loop) == elements:
                elements *= number_of(loop.extent) or 1
        return elements * element_bytes(self.buffer)

    def bytes_read(self) -> int:
        """Return the bytes that all tiles of a thread's chunk read, of loops of known trips."""
        trips = prod(number_of(loop.extent) or 1 for loop in (*self.tiles, *self.steps) if self.stride(loop))
        return trips * len(self.starts) * element_bytes(self.buffer)


def with_rows_asked(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc whose sums ask for the rows of the next tile, of tensors that memory has."""
    asked: dict[int, list[Asks]] = {}  # by the hash of a loop's variable
    for rows in _rows(func.body):
        found = _asks(rows, dialect)
        if found is not None:
            loop, asks = found
            asked.setdefault(hash(loop.loop_var), []).append(asks)
    return with_asked(func, asked, dialect)


def _rows(body: Any) -> Iterator[Rows]:
    """Yield the rows of large tensors that the sums of a flattened function read, and that it does not write."""
    memory, named, own = Memory.of_body(body), names_of(body), allocated_in(body)
    written = own | {memory.of(node.buffer) for node in statements(body) if kind_of(node) == "BufferStore"}
    outer: set[int] = set()
    for sums in sums_in(body, memory, own):
        if outer.isdisjoint(hash(tile.loop_var) for tile in sums.tiles):  # else a part of other sums
            outer.add(hash(sums.loop.loop_var))
            yield from _rows_of(sums, memory, named, written)


def _rows_of(sums: Sums, memory: Memory, named: Any, written: set[int]) -> Iterator[Rows]:
    """Yield those that one loop of sums reads, of memory that is not written."""
    bound = names_of(sums.loop)
    for steps, innermost in nests(sums.loop, ()):
        variables = {hash(loop.loop_var) for loop in (*sums.tiles, *steps)}
        found: dict[int, tuple[Any, list[Sum]]] = {}
        for load in loads_of(innermost):
            buffer, indices = access_of(load)
            if len(indices) != 1 or kind_of(indices[0]) == "Ramp" or memory.of(buffer) in written:
                continue
            start = sum_of(indices[0], named, variables) if is_large(buffer) else None
            if start is not None and start.variables().isdisjoint(bound):
                found.setdefault(hash(buffer), (buffer, []))[1].append(start)
        for buffer, starts in found.values():
            if all(start.plus(starts[0], -1).is_number for start in starts):
                yield Rows(buffer, starts, sums.tiles, steps)


def _asks(rows: Rows, dialect: Dialect) -> tuple[Any, Asks] | None:
    """Return a loop, and what asks in it for the lines that its trips read in the next tile."""
    tir, line = dialect.tir, line_elements(rows.buffer)
    further, (around, passes) = to_next(rows.tiles, rows.starts[0], tir), passes_in(rows.tiles, rows.starts[0])
    trips = {hash(loop.loop_var): number_of(loop.extent) or 0 for loop in (*rows.steps, *passes)}
    places: list[Sum] = []
    for start in rows.starts:
        if all(abs(start.plus(other, -1).number) >= line for other in places):
            places.append(start)
    inner = len(rows.steps)  # of the loops, those within a line are left out
    while inner and trips[hash(rows.steps[inner - 1].loop_var)] * abs(rows.stride(rows.steps[inner - 1])) <= line:
        inner -= 1
    if further is None or not inner or len(places) > LINES_ASKED or not all(trips.values()):
        return None
    if rows.run() * LONG_ROWS >= int(estimate("page")):
        return None
    loop, within = rows.steps[inner - 1], {hash(step.loop_var) for step in rows.steps[inner:]}
    every = power_of_two(line // abs(rows.stride(loop)))  # trips in a line
    if every > 1 and within:
        return None

    def at(var: Any, number: int) -> Any:
        return tir.const(number, dtype_of_node(var))

    def counted(loops: Sequence[Any]) -> Any:
        """Return the number of the trip of several loops, in their order."""
        total = None
        for one in loops:
            var, many = one.loop_var, trips[hash(one.loop_var)]
            if one is loop and every > 1:
                var, many = tir.truncdiv(var, at(var, every)), -(-many // every)
            total = var if total is None else total * at(total, many) + var
        return total

    asks = in_order([
        dialect.asking(rows.buffer, Sum(start.number, {
            key: term for key, term in start.terms.items() if key not in within
        }).expression(tir) + further, FIRST_LEVEL)
        for start in places
    ], tir)  # fmt: skip
    several = prod(trips[hash(one.loop_var)] for one in passes)
    if several > 1:
        turn = counted(rows.steps[:inner])
        mine = tir.EQ(tir.truncmod(turn, at(turn, several)), counted(passes).astype(dtype_of_node(turn)))
        asks = tir.IfThenElse(mine, asks, None)
    if rows.bytes_read() <= int(estimate("l2_largest")):  # later passes find them in a core's cache
        for one in around:
            asks = tir.IfThenElse(tir.EQ(one.loop_var, at(one.loop_var, 0)), asks, None)
    return loop, Asks(asks, every)
