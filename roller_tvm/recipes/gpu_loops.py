"""The GPU recipes: an rProgram as schedule steps.

Shapes of the loops (``b`` blocks, ``v`` virtual threads, ``t`` threads, ``i`` a thread's own)::

    gpu.tiled    b.. -> blockIdx   v.. -> vthread   t.. -> threadIdx   i..      output
                   k.0.. k.1.. k.2.. i..                                        anchor, in registers
                     fetch -> threadIdx, vectors                                staged inputs, in shared memory
    gpu.direct   b -> blockIdx   t -> threadIdx   i   v -> vector               output; anchor inside i
    gpu.reduce   b -> blockIdx   r -> threadIdx.y  lanes -> threadIdx.x         anchor
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..ir import Stage, TensorExpression
from ..micro_perf.geometry import Geometry
from ..roller.loops import open_parts
from ..roller.rprogram import RProgram
from ..roller.steps import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    Reorder,
    Split,
    Step,
    StorageAlign,
    Unroll,
    Vectorize,
)
from ..roller.tensor_steps import Pipeline
from .gpu_direct import UNROLL_MOST
from .staging import storage_alignment


def begin(expression: TensorExpression, program: RProgram) -> tuple[list[Step], Stage, Stage, str]:
    """Return the first steps (inlining), anchor, output, and the anchor's stage: a separate one if it is the output."""
    steps: list[Step] = [Inline(name) for name in program.inlined]
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    inner = program.anchor
    if anchor is output and anchor.reduce:
        inner = f"{program.anchor}.local"
        steps.append(CacheWrite(program.anchor, "local", inner))
    return steps, anchor, output, inner


def lower_tiled(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe gpu.tiled."""
    steps, anchor, output, inner = begin(expression, program)
    geometry = Geometry.of(expression, program.anchor, program.inlined, program.output)
    block, thread = program.tile("shared"), program.tile("register")
    virtual = program.choices_of("vthread")
    out, top = output.name, anchor.spatial

    opened, loops = open_parts(output.name, output.spatial)
    steps += opened
    for axis, loop in zip(top, loops, strict=True):
        v = virtual.get(axis.name, 1)
        own = thread[axis.name]
        names = tuple(f"{loop}.{c}" for c in "bvti")
        steps.append(Split(out, loop, (v, block[axis.name] // own, own // v), names))
    groups = {c: tuple(f"{loop}.{c}" for loop in loops) for c in "bvti"}
    steps.append(Reorder(out, groups["b"] + groups["v"] + groups["t"] + groups["i"]))
    for c, name, place in (("b", "block", "blockIdx.x"), ("v", "virtual", "vthread"), ("t", "thread", "threadIdx.x")):
        steps += [Fuse(out, groups[c], name), Bind(out, name, place)]
    width = program.choice("store", 1)
    own_loops = list(groups["i"])
    if width > 1:
        last = own_loops.pop()
        steps += [Split(out, last, (width,), (f"{last}o", f"{last}v")), Vectorize(out, f"{last}v")]
        own_loops.append(f"{last}o")
    steps += [Unroll(out, loop) for loop in own_loops]
    steps.append(ComputeAt(inner, out, "thread"))

    opened, spatial = open_parts(inner, anchor.spatial)
    steps += opened
    opened, reduce = open_parts(inner, anchor.reduce)
    steps += opened
    for axis, loop in zip(anchor.reduce, reduce, strict=True):
        step, u = block[axis.name], program.choice(f"unroll:{axis.name}", 1)
        steps.append(Split(inner, loop, (step // u, u), tuple(f"{loop}.{n}" for n in (0, 1, 2))))
    stages = program.choice("stages", 1)
    outer = list(zip(reduce, anchor.reduce, strict=True))
    if stages > 1:  # copies run ahead in the loop that they stand in: the longest
        outer.sort(key=lambda o: -(-o[1].extent // block[o[1].name]))
    order = [*(f"{loop}.0" for loop, _ in outer), *(f"{loop}.{n}" for n in (1, 2) for loop in reduce)]
    steps.append(Reorder(inner, (*order, *spatial)))
    # Expanded by TVM, not by the compiler: accumulators are then indexed by constants and live in registers.
    expanded = (*order[2 * len(reduce):], *(spatial if program.choice("unroll_tile", 1) else ()))
    steps += [Unroll(inner, loop) for loop in expanded]

    stage_loop = order[len(reduce) - 1]
    align = storage_alignment(geometry, program)
    for name in program.staged:
        staged = f"{name}.shared"
        dims = tuple(f"d{n}" for n in range(len(expression.tensors[name].shape)))
        scope = "shared" if stages == 1 else "shared.dyn"
        steps += [CacheRead(name, scope, (inner,), staged), ComputeAt(staged, inner, stage_loop)]
        steps += [StorageAlign(staged, f"d{dim}", factor, 0) for dim, factor in align[name]]
        steps += fetch(staged, dims, program.choice("threads"), program.choice(f"vector:{name}", 1))
    if stages > 1:
        steps.append(Pipeline(inner, stage_loop, len(program.staged), stages, 1))
    return steps


def fetch(staged: str, dims: tuple[str, ...], threads: int, vector: int) -> list[Step]:
    """Return the steps of a cooperative fetch: all threads copy the block's tile, `vector` elements each at a time."""
    whole = dims[0]
    steps: list[Step] = []
    if len(dims) > 1:
        whole = "whole"
        steps.append(Fuse(staged, dims, whole))
    steps.append(Split(staged, whole, (threads, vector), ("round", "fetch", "elements")))
    steps.append(Bind(staged, "fetch", "threadIdx.x"))
    if vector > 1:
        steps.append(Vectorize(staged, "elements"))
    return steps


def lower_direct(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe gpu.direct."""
    steps, anchor, output, inner = begin(expression, program)
    out = output.name
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    whole = fuse(steps, out, loops, "whole")
    items, threads, vector = program.choice("items", 1), program.choice("threads"), program.choice("vector", 1)
    steps.append(Split(out, whole, (items, threads, vector), ("block", "item", "thread", "element")))
    steps.append(Reorder(out, ("block", "thread", "item", "element")))
    steps += [Bind(out, "block", "blockIdx.x"), Bind(out, "thread", "threadIdx.x")]
    if vector > 1:
        steps.append(Vectorize(out, "element"))
    if anchor.reduce:
        steps.append(ComputeAt(inner, out, "element" if vector == 1 else "item"))
        opened, reduce = open_parts(inner, anchor.reduce)
        opened_spatial, spatial = open_parts(inner, anchor.spatial)
        steps += opened_spatial + opened
        # A reduction whose length depends on an output axis stands inside of it, as a loop.
        steps.append(Reorder(inner, (*spatial, *reduce) if anchor.uneven else (*reduce, *spatial)))
        if not anchor.uneven and prod(a.extent for a in anchor.reduce) <= program.choice("unroll", UNROLL_MOST):
            steps += [Unroll(inner, loop) for loop in reduce]
    return steps


def lower_reduce(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe gpu.reduce."""
    steps: list[Step] = [Inline(name) for name in program.inlined]
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    out, inner, lanes, rows = output.name, anchor.name, program.choice("lanes"), program.choice("rows", 1)
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    if loops:
        whole = fuse(steps, out, loops, "whole")
        if anchor is output:
            opened, reduce = open_parts(inner, anchor.reduce)
            steps += opened
        steps.append(Split(out, whole, (rows,), ("block", "row")))
        steps += [Bind(out, "block", "blockIdx.x"), Bind(out, "row", "threadIdx.y")]
        if anchor is not output:
            steps.append(ComputeAt(inner, out, "row"))
    if anchor is not output or not loops:
        opened, reduce = open_parts(inner, anchor.reduce)
        steps += opened
    summed = fuse(steps, inner, reduce, "reduction")
    steps += [Split(inner, summed, (lanes,), ("serial", "lane")), Bind(inner, "lane", "threadIdx.x")]
    return steps


def fuse(steps: list[Step], stage: str, loops: Sequence[str], name: str) -> str:
    """Append a step that fuses the loops and return the new loop; a single loop keeps its name."""
    if len(loops) == 1:
        return loops[0]
    steps.append(Fuse(stage, tuple(loops), name))
    return name
