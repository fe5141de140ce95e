"""Lowering: a plan as a printable list of schedule steps (no TVM)."""

from __future__ import annotations

from ..plan.program import Plan
from .cpu import lower_cpu_direct, lower_cpu_tiled
from .gpu import lower_direct, lower_reduce, lower_tiled
from .steps import RFactor, Split, Step, render, step_from_json

_RECIPES = {
    "gpu.tiled": lower_tiled,
    "gpu.direct": lower_direct,
    "gpu.reduce": lower_reduce,
    "cpu.tiled": lower_cpu_tiled,
    "cpu.direct": lower_cpu_direct,
}


def lower(plan: Plan) -> tuple[Step, ...]:
    """The schedule steps of a plan, rProgram by rProgram from the last one back.

    A consumer's loops have to exist before a producer can be computed inside them.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.expr.operators import operator
    >>> from roller_tvm.plan import construct
    >>> plan = construct(operator("relu", shape=(64, 64)), load_device("v100"), top=1).best.plan
    >>> print(render(lower(plan)).splitlines()[-1])
    vectorize(compute, element)
    """
    steps: list[Step] = []
    for stage, axis, parts in plan.split_reductions:
        length = plan.expression.stage(f"{stage}.rf").extents[f"{axis}.i"]
        steps.append(Split(stage, axis, (length,), (f"{axis}.p", f"{axis}.i")))
        steps.append(RFactor(stage, f"{axis}.p", 0, f"{stage}.rf"))
        assert plan.expression.stage(f"{stage}.rf").extents[f"{axis}.p"] == parts
    for program in reversed(plan.programs):
        steps += _RECIPES[program.recipe](plan.expression, program)
    return tuple(steps)


__all__ = ["Step", "lower", "render", "step_from_json"]
