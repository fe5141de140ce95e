"""Schedules in the words of tiles, so that a winner's can be read beside another's."""

from __future__ import annotations

from roller_tvm.plan.program import Plan


def plan_tiles(plan: Plan) -> str:
    """A plan in one line: the recipe and tiles of each nest, axes of one iteration left out.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.expr.operators import matmul
    >>> from roller_tvm.plan import construct
    >>> best = construct(matmul(m=64, n=64, k=64), load_device("a100"), top=1).best
    >>> plan_tiles(best.plan).startswith("gpu.tiled shared(")
    True
    """
    parts = []
    for program in plan.programs:
        tiles = [
            f"{t.level}({' '.join(f'{axis}={e}' for axis, e in t.extents if e > 1) or '1'})" for t in program.tiles
        ]
        staged = [f"staged({' '.join(program.staged)})"] if program.staged else []
        choices = [f"{name}={value}" for name, value in program.choices]
        parts.append(" ".join([program.recipe, *tiles, *staged, *choices]))
    return "; ".join([*map(str, plan.split_reductions), *parts])
