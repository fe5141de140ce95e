"""Recipe gpu.rows as schedule steps::

    block -> blockIdx  row -> threadIdx.y   serial  lane -> threadIdx.x  v -> vector     output
                            serial  lane -> threadIdx.x                                  every kept stage, at row
             row -> threadIdx.y   serial  lane -> threadIdx.x  v -> vector               kept inputs, at block, shared

A reduction ends in a tree over the lanes, which gives its result to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..expr import Axis, TensorExpression
from ..plan.program import RProgram
from .gpu import fuse
from .steps import Bind, CacheRead, ComputeAt, Inline, Split, Step, Vectorize


def long_loops(axes: Sequence[Axis]) -> list[str]:
    """Return the source's loops of these axes, without loops of one iteration at either end.

    TVM finds regions through fused loops less well if one of them has a single iteration.

    Examples
    --------
    >>> long_loops([Axis("n*c*h", 24, fused_of=(("n", 1), ("c", 12), ("h", 2))), Axis("w", 1)])
    ['c', 'h']
    """
    loops = [loop for a in axes for loop in (a.fused_of or ((a.name, a.extent),))]
    long = [n for n, (_, extent) in enumerate(loops) if extent > 1] or [0]
    return [name for name, _ in loops[long[0] : long[-1] + 1]]


def lower_rows(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe gpu.rows."""
    steps: list[Step] = [Inline(name) for name in program.inlined]
    output, shared = expression.stage(program.output), program.choice("row_axes")
    out, lanes, vector = output.name, program.choice("lanes"), program.choice("vector")

    def walk(stage: str, loops: Sequence[str], width: int) -> None:
        """Append steps that deal a row out to the lanes."""
        whole = fuse(steps, stage, loops, "columns")
        if width > 1:
            steps.append(Split(stage, whole, (lanes, width), ("serial", "lane", "element")))
            steps.append(Vectorize(stage, "element"))
        else:
            steps.append(Split(stage, whole, (lanes,), ("serial", "lane")))
        steps.append(Bind(stage, "lane", "threadIdx.x"))

    columns = long_loops(output.spatial[shared:])
    if shared:
        row = fuse(steps, out, long_loops(output.spatial[:shared]), "rows")
        steps.append(Split(out, row, (program.choice("rows"),), ("block", "row")))
    else:  # all of it is one row, and needs a loop to be computed in
        length = prod(a.extent for a in output.spatial)
        whole = fuse(steps, out, columns, "columns")
        steps.append(Split(out, whole, (1, length), ("block", "row", "only")))
        columns = ["only"]
    steps += [Bind(out, "block", "blockIdx.x"), Bind(out, "row", "threadIdx.y")]
    walk(out, columns, vector)
    for name in reversed(program.staged):
        stage = expression.stage(name)
        steps.append(ComputeAt(name, out, "row"))
        walk(name, long_loops(stage.reduce or stage.spatial[shared:]), 1)
    for name in program.choices_of("keep"):
        tensor = expression.tensors[name]
        extents = tensor.fused_of or tuple((extent,) for extent in tensor.shape)
        dims = [Axis(f"d{n}", extent) for n, extent in enumerate(sum(extents, ()))]
        ahead = sum(map(len, extents[:shared]))
        kept = f"{name}.shared"
        readers = tuple(s.name for s in expression.consumers(name))
        steps += [CacheRead(name, "shared", readers, kept), ComputeAt(kept, out, "block")]
        if shared:
            ours = fuse(steps, kept, long_loops(dims[:ahead]), "rows")
            steps.append(Split(kept, ours, (program.choice("rows"),), ("round", "row")))  # a bound loop starts at 0
            steps.append(Bind(kept, "row", "threadIdx.y"))
        walk(kept, long_loops(dims[ahead:]), vector)
    return steps
