"""Construction of products with constant matrices on a CPU (the transforms of Winograd's algorithm).

Everything is unrolled for one vector of the other axes. TVM then inserts the constants' values and drops the products
with 0 and 1.

Micro-performance model of recipe cpu.unrolled: a product with constant matrices, all of it for one vector.

Recipe cpu.unrolled as schedule steps::

rest, pieces -> parallel    whole..  unrolled      vector    output
                            k.. whole..  unrolled  vector    anchor, in registers
                            d..  unrolled          vector    inputs computed from others
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, prod

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.cpu import epilogue_cycles, vector_of
from ..micro_perf.cpu_caches import crowded, stored_bytes
from ..micro_perf.cpu_constants import GUARDED_LOADS, TILES_EXPOSED
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.estimate import ProgramEstimate
from ..micro_perf.geometry import Geometry, Operand, Tile, operand_of
from ..micro_perf.other_cores import between_nests
from ..roller.alignment import capacity
from ..roller.loops import fuse, open_parts, source_loops
from ..roller.partition import NestShape
from ..roller.rprogram import RProgram
from ..roller.steps import (
    CacheWrite,
    ComputeAt,
    Inline,
    Parallel,
    Reorder,
    Split,
    Step,
    StorageAlign,
    Unroll,
    Vectorize,
)
from .cpu_direct import Cycles, streamed
from .cpu_tiles import vector_tiles
from .gpu_unrolled import THREAD_STATEMENTS, own_tile
from .kinds import Kind
from .recipe import Context, CpuRecipe, Fit, Ranked


def construct_unrolled(ctx: Context, top: int) -> Ranked:
    """Return the candidate of recipe cpu.unrolled; none if a constant matrix has the vector axis."""
    g, device = ctx.geometry, ctx.device
    own, last = own_tile(g), g.vector_axis
    if last is None or own[last] > 1:
        return []
    if ctx.reject(capacity("unrolled statements", prod(own), THREAD_STATEMENTS), "cpu.unrolled"):
        return []
    ctx.considered += 1
    lanes = CpuRates.of(device, g).lanes
    vector = vector_of(vector_tiles(g.extents[last], lanes, 1)[-1], lanes)
    tile = tuple(vector if i == last else e for i, e in enumerate(own))
    tiles = (ctx.rtile("l2", tile), ctx.rtile("register", tile))
    program = ctx.program("cpu.unrolled", tiles, (("vector", vector), *_apart(g, own, ctx.nest, ctx.rates)))
    return [(program, unrolled_estimate(g, device, vector))]


def _apart(geometry: Geometry, own: Tile, nest: NestShape, rates: CpuRates) -> list[tuple[str, int]]:
    """Return the tensors whose planes start apart by an odd number of lines, as choices: elements of a line of each.

    A tile has a vector of each of many planes. They evict each other from the nearest cache if the planes' distance is
    a multiple of much of a way.
    """
    return [
        (f"apart:{name}", rates.line // op.element_bytes)
        for name, (op, _) in _planes(geometry, own, nest.output, nest.inlined).items()
        if crowded(op, [i for i in op.axes if own[i] > 1], own, rates)
    ]


def _planes(
    geometry: Geometry, own: Tile, output: str, inlined: Collection[str]
) -> dict[str, tuple[Operand, int]]:  # fmt: skip
    """Return the tensors in memory between stages of which a tile has several planes, and their innermost dimension."""
    expression, position = geometry.expression, {name: n for n, name in enumerate(geometry.axes)}
    between = {s.name for s in expression.stages if s not in expression.outputs} - {*inlined}
    tensors = [op for op in geometry.operands if not op.computed and op.name in between]
    if output == geometry.stage.name and output in between:
        tensors.append(operand_of(expression, geometry.stage.write(), position, ()))
    found = {}
    for op in tensors:
        if dims := [d for d, dim in enumerate(op.dims[:-1]) if any(own[axis] > 1 for axis, _ in dim)]:
            found[op.name] = op, dims[-1]
    return found


def unrolled_estimate(geometry: Geometry, device: DeviceSpec, vector: int) -> ProgramEstimate:
    """Return the predicted time of recipe cpu.unrolled.

    Sums are taken one axis after the other where the matrices allow it (`codegen/tensorir_separable.py`; without them,
    TVM drops products with zeros, which leaves about as many). Zeros of the matrices are unknown: none is skipped.

    Parameters
    ----------
    vector : int
        Neighbours along the vector axis that are computed at a time.
    """
    g = geometry
    rates = CpuRates.of(device, g)
    own = own_tile(g)
    outputs = prod(g.extents[i] for i in g.spatial)
    stored = prod(own[i] for i in g.spatial)
    vectors = outputs // stored // vector * ceil(vector / rates.lanes)
    read = [op for op in g.operands if not op.computed]
    inputs = sum(op.elements(own) for op in read)
    loads = inputs + sum(op.elements(own) * GUARDED_LOADS for op in read if op.guarded)
    cycles = multiply_adds(g, own) / rates.fma + (loads + stored) / rates.loads
    cycles += epilogue_cycles(g, stored, stored * min(vector, rates.lanes), rates)
    moved = sum(op.source_bytes for op in read) + stored_bytes(g)
    chunks = outputs // stored // vector
    flops = g.stage.flops + g.epilogue_flops * outputs
    written = outputs * g.output_bytes
    return streamed(
        device, rates, [Cycles(vectors * cycles)], moved, chunks, flops, written=written, exposed=TILES_EXPOSED,
        waits=between_nests(g, device, rates),
    ).row(0)  # fmt: skip


def multiply_adds(geometry: Geometry, own: Tile) -> int:
    """Return the multiply-adds of a product with constant matrices, whose sums are taken one after the other.

    Each matrix turns its axis of the reduction into an axis of the result: of 6 x 6 numbers, two of 6 x 6 take 432.
    """
    left, made, found = {i for i in geometry.reduce if own[i] > 1}, 1, 0
    for op in (op for op in geometry.operands if op.computed):
        over, into = left.intersection(op.axes), prod(own[i] for i in op.axes if i in geometry.spatial_set)
        found += made * prod(own[i] for i in left) * into
        left, made = left - over, made * into
    return prod(own) if left else found


def lower_cpu_unrolled(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.unrolled."""
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    geometry = Geometry.of(expression, program.anchor, program.inlined, program.output)
    own, last, out = own_tile(geometry), geometry.vector_axis, output.name
    assert last is not None
    made = [op for op in geometry.operands if not op.computed and op.name in program.inlined]
    steps: list[Step] = [Inline(name) for name in program.inlined if name not in {op.name for op in made}]
    planes = _planes(geometry, own, program.output, program.inlined)
    for name, line in program.choices_of("apart").items():
        axis = source_loops(expression.stage(name).spatial)[planes[name][1]]
        steps.append(StorageAlign(name, axis, 2 * line, line))
    inner = anchor.name
    if anchor is output:
        inner = f"{anchor.name}.local"
        steps.append(CacheWrite(anchor.name, "local", inner))
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    mine = [loop for n, loop in enumerate(loops) if own[n] > 1]
    one = [(axis.name, loop) for n, (axis, loop) in enumerate(zip(anchor.spatial, loops, strict=True))
           if own[n] == 1 and n != last]  # fmt: skip
    rest = [loop for _, loop in sorted(one, key=lambda pair: pair[0] not in program.slices)]
    piece, vector = f"{loops[last]}.o", f"{loops[last]}.v"
    steps.append(Split(out, loops[last], (program.choice("vector"),), (piece, vector)))
    steps.append(Reorder(out, (*rest, piece, *mine, vector)))
    whole = fuse(steps, out, (*rest, piece), "whole")
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


class CpuUnrolled(CpuRecipe):
    """Products with constant matrices."""

    name = "cpu.unrolled"
    says = "a product with constant matrices, unrolled for one vector"
    suits = {Kind.CONSTANTS: Fit.YES}

    def takes_slices(self, ctx: Context) -> bool:
        return True  # the loops over them stand first, wherever the axes do

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_unrolled(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_unrolled(expression, program)
