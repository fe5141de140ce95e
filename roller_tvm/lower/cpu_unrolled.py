"""Recipe cpu.unrolled as schedule steps::

rest, pieces -> parallel    whole..  unrolled      vector    output
                            k.. whole..  unrolled  vector    anchor, in registers
                            d..  unrolled          vector    inputs computed from others
"""

from __future__ import annotations

from ..expr import TensorExpression
from ..model.geometry import Geometry
from ..model.gpu_unrolled import own_tile
from ..plan.program import RProgram
from .loops import open_parts, source_loops
from .steps import CacheWrite, ComputeAt, Fuse, Inline, Parallel, Reorder, Split, Step, Unroll, Vectorize


def lower_cpu_unrolled(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.unrolled."""
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    geometry = Geometry.of(expression, program.anchor, program.inlined, program.output)
    own, last, out = own_tile(geometry), geometry.vector_axis, output.name
    assert last is not None
    made = [op for op in geometry.operands if not op.computed and op.name in program.inlined]
    steps: list[Step] = [Inline(name) for name in program.inlined if name not in {op.name for op in made}]
    inner = anchor.name
    if anchor is output:
        inner = f"{anchor.name}.local"
        steps.append(CacheWrite(anchor.name, "local", inner))
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    mine = [loop for n, loop in enumerate(loops) if own[n] > 1]
    rest = [loop for n, loop in enumerate(loops) if own[n] == 1 and n != last]
    piece, vector = f"{loops[last]}.o", f"{loops[last]}.v"
    steps.append(Split(out, loops[last], (program.choice("vector"),), (piece, vector)))
    steps.append(Reorder(out, (*rest, piece, *mine, vector)))
    whole = piece
    if rest:
        whole = "whole"
        steps.append(Fuse(out, (*rest, piece), whole))
    steps += [Parallel(out, whole), *(Unroll(out, loop) for loop in mine), Vectorize(out, vector)]
    steps.append(ComputeAt(inner, out, whole))
    opened, spatial = open_parts(inner, anchor.spatial)
    steps += opened
    opened, reduce = open_parts(inner, anchor.reduce)
    steps += opened
    along = spatial[last]
    spatial = [loop for loop in spatial if loop != along]
    steps.append(Reorder(inner, (*reduce, *spatial, along)))
    steps += [*(Unroll(inner, loop) for loop in (*reduce, *spatial)), Vectorize(inner, along)]
    for op in made:
        loops = source_loops(expression.stage(op.name).spatial)
        steps.append(ComputeAt(op.name, out, whole))
        for loop, dim in zip(loops, op.dims, strict=True):
            vectors = any(axis == last for axis, _ in dim)
            steps.append(Vectorize(op.name, loop) if vectors else Unroll(op.name, loop))
    return steps
