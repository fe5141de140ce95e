"""Variants of a plan, for kernels in which the compiler spills a few addresses in spite of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..recipes import RECIPES
from ..roller.rprogram import RProgram
from .construction import RankedPlan


def variants(program: RProgram) -> Iterator[tuple[str, RProgram]]:
    """Yield ('', the program itself), then its lighter forms by name, cheapest first."""
    yield "", program
    yield from RECIPES[program.recipe].lighter(program)


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
        for _, changed in RECIPES[program.recipe].lighter(program):
            plan = replace(ranked.plan, programs=(*programs[:n], changed, *programs[n + 1 :]))
            found.append(replace(ranked, plan=plan))
    return found
