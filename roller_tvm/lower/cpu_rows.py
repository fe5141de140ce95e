"""Recipe cpu.rows: an rProgram as schedule steps.

Shape of the loops::

    cpu.rows     row -> parallel   rest   v -> vector                          output
                   rest   reduction   v -> vector                              every kept stage, at row
"""

from __future__ import annotations

from ..expr import Stage, TensorExpression
from ..plan.program import RProgram
from .loops import open_parts
from .steps import ComputeAt, Fuse, Inline, Parallel, Reorder, Split, Step, Vectorize


def lower_cpu_rows(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.rows."""
    steps: list[Step] = [Inline(name) for name in program.inlined]
    output, rows = expression.stage(program.output), program.choice("rows")
    steps += _in_vectors(output, program)
    loops = [a.name for a in output.spatial[:rows]]
    if rows > 1:
        steps.append(Fuse(output.name, tuple(loops), "row"))
        loops = ["row"]
    if program.choice("parallel"):
        steps.append(Parallel(output.name, loops[0]))
    for name in reversed(program.staged):
        if rows:  # a single row needs no loop to be computed in
            steps.append(ComputeAt(name, output.name, loops[0]))
        steps += _in_vectors(expression.stage(name), program)
    return steps


def _in_vectors(stage: Stage, program: RProgram) -> list[Step]:
    """Return the steps of one stage's loops: axes in order, the reduction, and vectors of the last axis innermost."""
    steps, spatial = open_parts(stage.name, stage.spatial)
    opened, reduce = open_parts(stage.name, stage.reduce)
    steps += opened
    vector = program.choice(f"vector:{stage.name}")
    if not vector:
        return steps
    at = next(n for n in reversed(range(len(spatial))) if stage.spatial[n].extent > 1)
    last = spatial[at]
    inner = last
    if vector < stage.spatial[at].extent:
        inner = f"{last}.v"
        steps.append(Split(stage.name, last, (vector,), (f"{last}.o", inner)))
        spatial[at] = f"{last}.o"
    else:
        del spatial[at]
    steps.append(Reorder(stage.name, (*spatial, *reduce, inner)))
    steps.append(Vectorize(stage.name, inner))
    return steps
