"""Recipe gpu.transpose as schedule steps::

    tiles.. -> blockIdx   inside a tile: serial  thread -> threadIdx.x      output, along its own rows
                          serial  fetch -> threadIdx.x                      staged inputs, along theirs, in shared
"""

from __future__ import annotations

from ..expr import TensorExpression
from ..model.geometry import Geometry
from ..model.storage import alignments
from ..plan.gpu_transpose import reading
from ..plan.program import RProgram
from .gpu import fetch, fuse
from .loops import open_parts
from .steps import Bind, CacheRead, ComputeAt, Inline, Reorder, Split, Step, StorageAlign


def lower_transpose(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe gpu.transpose."""
    steps: list[Step] = [Inline(name) for name in program.inlined]
    geometry = Geometry.of(expression, program.anchor, program.inlined, program.output)
    shared, output, threads = program.tile("shared"), expression.stage(program.output), program.choice("threads")
    tile, padding, out = tuple(shared[a] for a in geometry.axes), dict(shared.padding), output.name
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    outer: list[str] = []
    inner: list[str] = []
    for axis, loop in zip(output.spatial, loops, strict=True):
        if shared[axis.name] == 1:
            outer.append(loop)
        else:
            steps.append(Split(out, loop, (shared[axis.name],), (f"{loop}.b", f"{loop}.t")))
            outer.append(f"{loop}.b")
            inner.append(f"{loop}.t")
    steps.append(Reorder(out, (*outer, *inner)))
    block = fuse(steps, out, outer, "block")
    steps.append(Bind(out, block, "blockIdx.x"))
    # Before the tile is one loop of rounds of threads: these may go past its end, and TensorIR would fetch that too.
    for op in reading(geometry, program.inlined).staged:
        staged = f"{op.name}.shared"
        dims = tuple(f"d{n}" for n in range(len(op.shape)))
        readers = tuple(s.name for s in expression.consumers(op.name) if s.name in (*program.inlined, out))
        steps += [CacheRead(op.name, "shared", readers, staged), ComputeAt(staged, out, block)]
        steps += [
            StorageAlign(staged, f"d{dim}", factor, 0)
            for dim, factor in alignments(op.box(tile), padding.get(op.name, 0), 1)
        ]
        steps += fetch(staged, dims, threads, 1)
    whole = fuse(steps, out, inner, "tile")
    steps += [Split(out, whole, (threads,), ("serial", "thread")), Bind(out, "thread", "threadIdx.x")]
    return steps
