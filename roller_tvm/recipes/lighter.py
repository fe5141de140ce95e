"""Lighter forms of a staged GPU program, for a compiler that spills a few addresses in spite of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..roller.rprogram import RProgram

# Reduction steps that one shared-memory load can cover.
VECTOR = 4


def lighter_programs(program: RProgram) -> Iterator[tuple[str, RProgram]]:
    """Yield programs with the same tiles and fewer values for the compiler to keep at a time.

    The order is that in which they helped on compiled kernels, cheapest first: a shorter unrolled body (at least a
    vector of the reduction), none, scalar stores, last the register tile left as loops.

    Yields
    ------
    (str, RProgram)
        A name and the program.
    """
    unrolled = program.choices_of("unroll")
    rolled = {f"unroll:{a}": 1 for a in unrolled}
    shorter = {f"unroll:{a}": VECTOR for a, u in unrolled.items() if u > VECTOR and u % VECTOR == 0}
    if shorter:
        yield "reduction unrolled less", _choose(program, shorter)
    if unrolled:
        yield "reduction not unrolled", _choose(program, rolled)
    if program.choice("store", 1) > 1:
        yield "scalar stores", _choose(program, {"store": 1})
        if unrolled:
            yield "reduction not unrolled, scalar stores", _choose(program, {**rolled, "store": 1})
    yield "register tile not unrolled", _choose(program, {"unroll_tile": 0})
    if unrolled:
        yield "nothing unrolled", _choose(program, {**rolled, "unroll_tile": 0})


def _choose(program: RProgram, changes: dict[str, int]) -> RProgram:
    return replace(program, choices=tuple({**dict(program.choices), **changes}.items()))
