"""Loops in blocks of few trips: an outer loop over the blocks, the loop itself over one's trips, which LLVM unrolls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...micro_perf.cpu_constants import TRIP_STEPS
from ...te.numbering import SERIAL, dtype_of_node
from ..dialect import Dialect
from ..flat import in_order, number_of, with_body

#: Trips of a block. Of eight steps of a sum LLVM loads the elements of a row as a vector, takes that apart, and spills
#: the sums (measured on a Zen 3, LLVM 22: 2.5 times the time).
BLOCK_TRIPS = (TRIP_STEPS, 2, 1)


def block_of(loop: Any, most: int = BLOCK_TRIPS[0]) -> int:
    """Return the trips of a block, at most `most`, that divide a serial loop from 0; 1 for others and for open ones."""
    trips = number_of(loop.extent) or 1
    if int(loop.kind) != SERIAL or number_of(loop.min) != 0:
        return 1
    return next(n for n in BLOCK_TRIPS if n <= most and trips % n == 0)


def in_blocks(loop: Any, before: Sequence[tuple[Any, int]], dialect: Dialect) -> Any:
    """Return a loop in blocks, with statements before some of them.

    Parameters
    ----------
    before : sequence of (Stmt, int)
        Each with the trips from one time to the next, a power of two. They stand in the loop as given: of its variable
        they see a block's first trip.
    """
    tir, var = dialect.tir, loop.loop_var
    size = block_of(loop, min((every for _, every in before), default=BLOCK_TRIPS[0]))
    dtype = dtype_of_node(var)

    def const(value: int) -> Any:
        return tir.const(value, dtype)

    block = var if size == 1 else tir.Var(f"{var.name}_block", dtype)
    first = var if size == 1 else block * const(size)
    body = loop.body
    if size > 1:
        body = with_body(loop, dialect.substituted(body, var, first + var), tir, const(size))
    statements = []
    for statement, every in before:
        made = statement if size == 1 else dialect.substituted(statement, var, first)
        blocks = every // size
        if blocks > 1:
            made = tir.IfThenElse(tir.EQ(tir.truncmod(block, const(blocks)), const(0)), made, None)
        statements.append(made)
    number = loop.extent if size == 1 else const((number_of(loop.extent) or 0) // size)
    body = in_order([*statements, body], tir)
    return tir.For(block, loop.min, number, loop.kind, body, loop.thread_binding, loop.annotations)
