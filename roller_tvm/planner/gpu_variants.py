"""Variants of a staged GPU program, for kernels in which the compiler spills a few addresses in spite of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..roller.rprogram import RProgram
from .construction import RankedPlan

# Reduction steps that one shared-memory load can cover.
VECTOR = 4


def variants(program: RProgram) -> Iterator[tuple[str, RProgram]]:
    """Yield the program itself, then the same tiles with fewer values for the compiler to keep at a time.

    The order is that in which they helped on compiled kernels, cheapest first: a shorter unrolled body (at least a
    vector of the reduction), none, scalar stores, last the register tile left as loops.

    Yields
    ------
    (str, RProgram)
        A name ('' for the program itself), and the program.
    """
    yield "", program
    if program.recipe != "gpu.tiled":
        return
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


def plan_variants(ranked: RankedPlan) -> list[RankedPlan]:
    """Return plans with one program replaced by a variant: they are built if the plan itself spills.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.planner import construct
    >>> best = construct(matmul(m=1024, n=1024, k=1024), load_device("v100"), top=1).best
    >>> len(plan_variants(best)) > 2 and best not in plan_variants(best)
    True
    """
    found = []
    programs = ranked.plan.programs
    for n, program in enumerate(programs):
        for name, changed in variants(program):
            if name:
                plan = replace(ranked.plan, programs=(*programs[:n], changed, *programs[n + 1 :]))
                found.append(replace(ranked, plan=plan))
    return found


def _choose(program: RProgram, changes: dict[str, int]) -> RProgram:
    return replace(program, choices=tuple({**dict(program.choices), **changes}.items()))
