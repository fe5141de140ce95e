"""Recipe cpu.direct: an rProgram as schedule steps.

Shape of the loops::

    cpu.direct   outer.. -> parallel   rest   v -> vector                      output; anchor inside
                 last -> parallel                                              if no vector divides the only loop
"""

from __future__ import annotations

from ..expr import TensorExpression
from ..plan.program import RProgram
from .cpu import vector_last, vector_name
from .loops import open_parts
from .steps import ComputeAt, Fuse, Inline, Parallel, Reorder, Split, Step, Vectorize


def lower_cpu_direct(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.direct."""
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    steps: list[Step] = [Inline(name) for name in program.inlined]
    out, vector, outer = output.name, program.choice("vector"), program.choice("parallel")
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    if not loops:
        return steps
    at = next(n for n, a in enumerate(anchor.spatial) if a.name == vector_name(anchor))
    rest, last = [*loops[:at], *loops[at + 1 :]], loops[at]
    # The loop just outside the vectors; reductions are computed there.
    if vector > 1 and vector < anchor.spatial[at].extent:
        steps.append(Split(out, last, (vector,), (f"{last}.o", f"{last}.v")))
        rest, last = [*rest[:at], f"{last}.o", *rest[at:]], f"{last}.v"
    reduce: list[str] = []
    if anchor is output:
        opened, reduce = open_parts(out, anchor.reduce)
        steps += opened
    steps.append(Reorder(out, (*rest, *reduce, last) if vector > 1 else (*rest, last, *reduce)))
    inside = rest[-1] if rest else ""
    if outer > 0:
        shared = (*rest, last)[:outer]  # the last one if it is the only loop
        whole = shared[0]
        if outer > 1:
            whole = "outer"
            steps.append(Fuse(out, shared, whole))
        inside = whole if outer >= len(rest) else inside
        steps.append(Parallel(out, whole))
    if vector > 1:
        steps.append(Vectorize(out, last))
    if anchor is not output and inside:
        steps.append(ComputeAt(anchor.name, out, inside))
        if anchor.reduce and vector > 1:
            opened, own = open_parts(anchor.name, anchor.spatial)
            opened_reduce, reduce = open_parts(anchor.name, anchor.reduce)
            own = vector_last(own, anchor)
            steps += [*opened, *opened_reduce, Reorder(anchor.name, (*own[:-1], *reduce, own[-1]))]
            steps.append(Vectorize(anchor.name, own[-1]))
    return steps
