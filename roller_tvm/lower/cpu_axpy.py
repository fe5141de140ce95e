"""Recipe cpu.axpy: an rProgram as schedule steps.

Shape of the loops::

    cpu.axpy   outer.. -> parallel   rest   row          output
               reduction   row                           sums of a row, in the nearest cache; LLVM vectorises
"""

from __future__ import annotations

from ..expr import TensorExpression
from ..plan.program import RProgram
from .cpu import vector_last
from .loops import open_parts
from .steps import CacheWrite, ComputeAt, Fuse, Inline, Parallel, Reorder, Step


def lower_cpu_axpy(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.axpy."""
    anchor, out = expression.stage(program.anchor), program.output
    steps: list[Step] = [Inline(name) for name in program.inlined]
    inner = anchor.name
    if anchor.name == out:
        inner = f"{anchor.name}.local"
        steps.append(CacheWrite(anchor.name, "local", inner))
    opened, loops = open_parts(out, expression.stage(out).spatial)
    loops = vector_last(loops, anchor)
    steps += [*opened, Reorder(out, tuple(loops))]
    outer, rest = program.choice("parallel"), loops[:-1]
    whole = rest[0]
    if outer > 1:
        whole = "outer"
        steps.append(Fuse(out, tuple(rest[:outer]), whole))
    steps += [Parallel(out, whole), ComputeAt(inner, out, whole if outer == len(rest) else rest[-1])]
    opened, own = open_parts(inner, anchor.spatial)
    opened_reduce, reduce = open_parts(inner, anchor.reduce)
    own = vector_last(own, anchor)
    return [*steps, *opened, *opened_reduce, Reorder(inner, (*own[:-1], *reduce, own[-1]))]
