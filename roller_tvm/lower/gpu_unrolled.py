"""Recipe gpu.unrolled as schedule steps::

    rest -> blockIdx, threadIdx    whole..  unrolled      output
                                   k.. whole..  unrolled  anchor, in registers
                                   d..  unrolled          inputs, in registers
"""

from __future__ import annotations

from ..expr import TensorExpression
from ..model.geometry import Geometry
from ..model.gpu_unrolled import own_tile
from ..plan.program import RProgram
from .gpu import begin, fuse
from .loops import open_parts
from .steps import Bind, CacheRead, ComputeAt, Reorder, Split, Step, Unroll


def lower_unrolled(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe gpu.unrolled."""
    steps, anchor, output, inner = begin(expression, program)
    geometry = Geometry.of(expression, program.anchor, program.inlined, program.output)
    own, out = own_tile(geometry), output.name
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    # An axis of one iteration is a thread's and the block's alike.
    mine = [loop for loop, e, a in zip(loops, own, anchor.spatial, strict=False) if e == a.extent > 1]
    rest = [loop for loop in loops if loop not in mine]
    steps.append(Reorder(out, (*rest, *mine)))
    whole = fuse(steps, out, rest, "whole")
    steps.append(Split(out, whole, (program.choice("threads"),), ("block", "thread")))
    steps += [Bind(out, "block", "blockIdx.x"), Bind(out, "thread", "threadIdx.x")]
    steps += [Unroll(out, loop) for loop in mine]
    steps.append(ComputeAt(inner, out, "thread"))
    opened_spatial, spatial = open_parts(inner, anchor.spatial)
    opened, reduce = open_parts(inner, anchor.reduce)
    steps += opened_spatial + opened
    steps.append(Reorder(inner, (*reduce, *spatial)))
    steps += [Unroll(inner, loop) for loop in (*reduce, *spatial)]
    for op in geometry.operands:
        if op.computed:
            continue
        kept = f"{op.name}.local"
        steps += [CacheRead(op.name, "local", (inner,), kept), ComputeAt(kept, out, "thread")]
        steps += [Unroll(kept, f"d{d}") for d in range(len(op.shape))]
    return steps
