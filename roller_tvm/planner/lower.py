"""Lowering: a plan as a printable list of schedule steps (no TVM)."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.split import partial_name
from ..recipes import RECIPES
from ..roller.loops import source_loops
from ..roller.rprogram import Plan, RProgram, SplitReduction
from ..roller.steps import CacheWrite, Fuse, Inline, Parallel, RFactor, Split, Step, render, step_from_json
from ..roller.tensor_steps import Merge

#: Loop over the slices of a plan whose nests run slice by slice.
SLICE = "slice"


def lower(plan: Plan) -> tuple[Step, ...]:
    """Return the schedule steps of a plan, rProgram by rProgram from the last one back.

    A consumer's loops have to exist before a producer can be computed inside them.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import operator
    >>> from roller_tvm.planner import construct
    >>> plan = construct(operator("relu", shape=(64, 64)), load_device("v100"), top=1).best.plan
    >>> print(render(lower(plan)).splitlines()[0])
    fuse(relu, [i0, i1], i0*i1)
    """
    steps: list[Step] = []
    for number, split in _from_the_last(plan.split_reductions):
        partial = plan.expression.stage(partial_name(split.stage, number))
        part, inner = f"{split.axis}.p", f"{split.axis}.i"
        if split.loops:
            steps.append(Fuse(split.stage, split.loops, split.axis))
        if split.lanes:
            steps.append(Split(split.stage, split.axis, (split.parts,), (inner, part)))
        else:
            steps.append(Split(split.stage, split.axis, (partial.extents[inner],), (part, inner)))
        position = source_loops(partial.spatial).index(part)
        steps.append(RFactor(split.stage, part, position, partial.name))
    start = len(steps)
    for program in reversed(plan.programs):
        more = RECIPES[program.recipe].lower(plan.expression, program)
        if plan.slices:
            more = _slice_by_slice(plan, program, more)
        # A stage that several nests compute in place is inlined once.
        steps += [step for step in more if not (isinstance(step, Inline) and step in steps)]
    if len(plan.programs) > 1 and RECIPES[plan.programs[0].recipe].on_cpu:
        # From the first to the last: a record's steps say stages by number, and what inserts a stage among those
        # before it (TVM does, to repack a weight) finds each step by its stage's final number.
        own = [step for step in steps[start:] if isinstance(step, CacheWrite)]
        steps[start:] = [*reversed(own), *(step for step in steps[start:] if step not in own)]
    if plan.slices:
        *before, last = (program.output for program in plan.programs)
        steps += [Merge(last, SLICE, tuple(before)), Parallel(last, SLICE)]
    return tuple(steps)


def _slice_by_slice(plan: Plan, program: RProgram, steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a nest with its parallel loop cut in slices, which its loop `SLICE` goes through."""
    each = program.blocks(plan.expression.stage(program.anchor)) // plan.slices
    return [
        Split(step.stage, step.axis, (each,), (SLICE, step.axis)) if isinstance(step, Parallel) else step
        for step in steps
    ]


def _from_the_last(splits: Sequence[SplitReduction]) -> list[tuple[int, SplitReduction]]:
    """Return (earlier splits of its stage, split), last stage first: TE loses the operations after a split stage."""
    stages = reversed(dict.fromkeys(s.stage for s in splits))
    return [(n, s) for name in stages for n, s in enumerate(s for s in splits if s.stage == name)]


__all__ = ["Step", "lower", "render", "step_from_json"]
