"""Recipe cpu.lanes: an rProgram as schedule steps.

Shape of the loops (``p`` parallel chunks, ``m`` register tiles of a chunk, ``i`` inside a register tile)::

    cpu.lanes    p.. -> parallel   m.. in the plan's order   i.. (vectors)           output
                   reduction   i.. unrolled   lanes -> vector                        anchor, at the last m
                   i..   terms unrolled   the remaining lanes -> vector              merges, at the last m
"""

from __future__ import annotations

from ..expr import Stage, TensorExpression
from ..plan.program import RProgram
from .loops import open_parts
from .steps import ComputeAt, Fuse, Inline, Parallel, Reorder, Split, Step, Unroll, Vectorize


def lower_cpu_lanes(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.lanes."""
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    *partial, last = program.staged
    steps: list[Step] = [Inline(name) for name in program.inlined]
    inside, opened = _outer_loops(anchor, output, program)
    steps += opened
    if last == output.name:
        steps += [Unroll(last, loop) for loop in open_parts(last, output.reduce)[1]]
    else:
        neighbours = program.tile("register")[anchor.spatial[-2].name]
        if neighbours > 1:
            steps.append(Vectorize(output.name, f"{open_parts(last, output.spatial)[1][-1]}.i"))
        steps += _merge(expression.stage(last), output, inside, vector=False)
    for name in reversed(partial):
        steps += _merge(expression.stage(name), output, inside, vector=True)
    opened, spatial = open_parts(anchor.name, anchor.spatial)
    more, reduce = open_parts(anchor.name, anchor.reduce)
    steps += [ComputeAt(anchor.name, output.name, inside), *opened, *more]
    steps.append(Reorder(anchor.name, (*reduce, *spatial)))
    tile = program.tile("register")
    for axis, loop in zip(anchor.spatial[:-1], spatial, strict=False):
        if tile[axis.name] > 1:
            steps.append(Unroll(anchor.name, loop))
    steps.append(Vectorize(anchor.name, spatial[-1]))
    return steps


def _outer_loops(anchor: Stage, output: Stage, program: RProgram) -> tuple[str, list[Step]]:
    """Return the loop in which a register tile is computed, and the steps of the output's loops."""
    chunk, tile, order = program.tile("l2"), program.tile("register"), program.choices_of("order")
    axes = [a.name for a in anchor.spatial[:-1]]  # the output has no lanes
    steps, loops = open_parts(output.name, output.spatial)
    opened, reduce = open_parts(output.name, output.reduce)
    steps += opened
    for name, loop in zip(axes, loops, strict=True):
        lengths = (chunk[name] // tile[name], tile[name])
        steps.append(Split(output.name, loop, lengths, tuple(f"{loop}.{c}" for c in "pmi")))
    ranked = sorted(zip(axes, loops, strict=True), key=lambda pair: order.get(pair[0], -1))
    parallel, middle = tuple(f"{loop}.p" for loop in loops), tuple(f"{loop}.m" for _, loop in ranked)
    steps.append(Reorder(output.name, (*parallel, *middle, *(f"{loop}.i" for loop in loops), *reduce)))
    whole = parallel[0]
    if len(parallel) > 1:
        whole = "parallel"
        steps.append(Fuse(output.name, parallel, whole))
    steps.append(Parallel(output.name, whole))
    return middle[-1], steps


def _merge(stage: Stage, output: Stage, inside: str, vector: bool) -> list[Step]:
    """Return the steps of a stage that merges lanes in the tile: unrolled terms around vectors of remaining lanes."""
    opened, spatial = open_parts(stage.name, stage.spatial)
    more, reduce = open_parts(stage.name, stage.reduce)
    steps: list[Step] = [ComputeAt(stage.name, output.name, inside), *opened, *more]
    own = spatial[:-1] if vector else spatial
    steps.append(Reorder(stage.name, (*own, *reduce, *spatial[len(own) :])))
    steps += [Unroll(stage.name, loop) for loop in reduce]
    if vector:
        steps.append(Vectorize(stage.name, spatial[-1]))
    return steps
