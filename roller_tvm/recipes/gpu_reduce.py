"""Recipe gpu.reduce: the threads of a block share reductions.

Its loops (``b`` blocks, ``r`` rows, ``lanes`` of a row)::

    b -> blockIdx   r -> threadIdx.y  lanes -> threadIdx.x         anchor
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from ..device import DeviceSpec
from ..ir import TensorExpression, dtype_bytes
from ..ir.affine import Index
from ..micro_perf.geometry import Geometry
from ..micro_perf.gpu import GpuRates, busiest_unit, instructions, overlapped, slowest_of, started
from ..micro_perf.gpu_constants import (
    BLOCK_CYCLES,
    IN_FLIGHT,
    LOAD_OVERHEAD,
    PER_ROUND,
    STREAMS,
    TREE_SLOTS,
    UNROLL_MOST,
)
from ..micro_perf.gpu_nest import Array, GpuNest, ceil_div, looked_up
from ..micro_perf.gpu_times import Times
from ..micro_perf.occupancy import resident_blocks
from ..micro_perf.registers import within_cap
from ..roller.alignment import Rejection
from ..roller.loops import fuse, open_parts
from ..roller.rprogram import RProgram
from ..roller.steps import Bind, ComputeAt, Inline, Split, Step
from .gpu_direct import NO_LOOP
from .gpu_nests import candidates, linear_tile, tiles_loops
from .gpu_rules import Rules
from .recipe import Candidate, Context, Fit, Recipe


class GpuReduce(Recipe):
    """Reductions that the threads of a block share."""

    name = "gpu.reduce"
    says = "the threads of a block share one reduction"

    def applies(self, ctx: Context) -> Fit:
        g = ctx.geometry
        if not tiles_loops(ctx) or not g.reduce or not (len(g.operands) == 1 or g.stage.results > 1 or streams(g)):
            return Fit.NO
        return Fit.LAST_RESORT if g.is_contraction() else Fit.YES

    def construct(self, ctx: Context, top: int) -> list[Candidate]:
        """Return ranked candidates of recipe gpu.reduce: lanes that share a reduction, rows of them in a block."""
        g, device = ctx.geometry, ctx.device
        if not g.reduce or g.stage.indivisible or (g.stage.combiner == "other" and g.stage.results == 1):
            return []
        if any(ctx.reject(shuffled(dtype)) for dtype in _moved(g)):
            return []
        # Stages after the reduction would have no loop either, and be left to the host.
        if ctx.reject(None if g.spatial or ctx.nest.output == ctx.nest.anchor else NO_LOOP, ctx.nest.output):
            return []
        length = prod(g.extents[i] for i in g.reduce)
        outputs = prod(g.extents[i] for i in g.spatial)
        most = device.limits.most_threads
        every: list[tuple[int, int]] = []
        lane = device.vector_width
        # If gpu.direct does not apply, even a reduction shorter than a warp is shared.
        longest = 2 * length if g.spatial and g.stage.results == 1 else max(2 * length, lane + 1)
        while lane <= most and lane < longest:
            row = 1
            while row * lane <= most and row < 2 * outputs:
                every.append((row, lane))
                row *= 2
            lane *= 2
        ctx.considered += len(every)
        rows, lanes = np.array(every, np.int64).reshape(len(every), 2).T
        rules = _guarded(ctx, rows, lanes)
        ctx.rejections.add(rules.rejected())
        at = np.flatnonzero(rules.alive)
        rows, lanes = rows[at], lanes[at]
        times = reduce_times(GpuNest.of(g), device, rows, lanes)

        def program(n: int) -> RProgram:
            tiles = (ctx.rtile("block", linear_tile(g, int(rows[n]))), ctx.rtile("register", (1,) * len(g.extents)))
            choices = (("threads", int(rows[n] * lanes[n])), ("lanes", int(lanes[n])), ("rows", int(rows[n])))
            return ctx.program(self.name, tiles, choices)

        return candidates(self.name, times, times.fastest_first[: 2 * top].tolist(), program)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
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


def streams(geometry: Geometry) -> bool:
    """Return whether each element of some operand is used once, as in a matrix-vector product: bound by memory.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> [streams(Geometry.of(matmul(m=m, n=1000, k=2048), "matmul")) for m in (1, 64)]
    [True, False]
    """
    every = {i for i, e in enumerate(geometry.extents) if e > 1}
    return any(every <= op.axes for op in geometry.operands)


def _guarded(ctx: Context, rows: Array, lanes: Array) -> Rules:
    """Return the rules by which the last block's threads store no rows beyond the output.

    TVM does not guard the store of a reduction over threads unless another stage follows. If the sums are not read
    whole, it computes and allocates only the part that is.
    """
    g, anchor = ctx.geometry, ctx.nest.anchor
    outputs = prod(g.extents[i] for i in g.spatial)
    rules = Rules(len(rows), lambda n: f"{lanes[n]} lanes x {rows[n]} rows")

    def part(n: int) -> Rejection:
        return Rejection("tensor shape", f"{rows[n]} rows", "1 if sums are read in part", "read all of them")

    def beyond(n: int) -> Rejection:
        limit = "none for sums stored as they are"
        return Rejection("tensor shape", f"a guard for {rows[n]} rows of {outputs}", limit,
                         "let the rows divide the outputs")

    if not _read_whole(g.expression, anchor):
        rules.hold(rows == 1, part)
    if ctx.nest.output == anchor:
        rules.hold(outputs % rows == 0, beyond)
    return rules


def _read_whole(expression: TensorExpression, name: str) -> bool:
    """Return whether every stage that reads a tensor, directly or through others, reads all of it."""
    tensors, reached = expression.tensors, {name}
    for stage in expression.stages:
        extents = {axis.name: axis.extent for axis in stage.axes}
        for access in stage.reads:
            if access.tensor not in reached:
                continue
            reached.add(stage.name)
            dimensions = zip(access.indices, tensors[access.tensor].shape, strict=True)
            if not all(spans(index, extents, dimension) for index, dimension in dimensions):
                return False
    return True


def spans(index: Index, extents: Mapping[str, int], dimension: int) -> bool:
    """Return whether an index goes from a dimension's first element to its last; assumed if it is opaque or clamped."""
    if index.opaque or index.clamped:
        return True
    ends = [(extents[axis] - 1) * coefficient for axis, coefficient in index.terms]
    least = (index.const + sum(e for e in ends if e < 0)) // index.divisor
    most = (index.const + sum(e for e in ends if e > 0)) // index.divisor
    return least <= 0 and most >= dimension - 1


def shuffled(dtype: str) -> Rejection | None:
    """Return a rejection if shuffles cannot move a dtype that lanes reduce together, else None.

    Other dtypes go through shared memory. TVM then relies on the lanes of a warp to run in step, or has barriers
    that only half of the warp reaches.

    Examples
    --------
    >>> print(shuffled("int8"))
    execution unit: needs shuffles of int8, limit float16, and types of 4 and 8 bytes (give each sum a thread)
    """
    if dtype == "float16" or dtype_bytes(dtype) in (4, 8):
        return None
    limit = "float16, and types of 4 and 8 bytes"
    return Rejection("execution unit", f"shuffles of {dtype}", limit, "give each sum a thread")


def _moved(geometry: Geometry) -> list[str]:
    """Return the dtypes exchanged by warp shuffles: the stage's own, and its inputs' if it has several results."""
    stage, tensors = geometry.stage, geometry.expression.tensors
    read = [tensors[access.tensor].dtype for access in stage.reads] if stage.results > 1 else []
    return list(dict.fromkeys([stage.dtype, *read]))


def reduce_shared_bytes(geometry: Geometry, device: DeviceSpec, rows: Array, lanes: Array) -> Array:
    """Return the shared bytes of reductions over threads: 0 within a warp, else a partial per warp and a result.

    Follows the allocation of TVM's cross-thread reduction; checked against compiled kernels for 11 (lanes, rows).
    """
    warp = device.vector_width
    return np.where(lanes <= warp, 0, geometry.accumulator_bytes * rows * (1 + lanes // warp))


def reduce_times(nest: GpuNest, device: DeviceSpec, rows: Array, lanes: Array) -> Times:
    """Return the predicted times of recipe gpu.reduce: `lanes` threads a row, `rows` rows a block."""
    geometry = nest.geometry
    rates = GpuRates.of(device, geometry.stage.dtype)
    threads = rows * lanes
    length = prod(geometry.extents[i] for i in geometry.reduce)
    rounds = ceil_div(length, lanes)
    ahead = np.ceil(STREAMS + PER_ROUND * np.minimum(rounds, UNROLL_MOST)).astype(np.int64)
    registers = within_cap(device, ahead, threads)
    shared_bytes = reduce_shared_bytes(geometry, device, rows, lanes)
    fitting, limit = resident_blocks(device, threads, registers, shared_bytes)
    outputs = nest.outputs_whole
    blocks = ceil_div(outputs, rows)
    resident = np.maximum(1, np.minimum(fitting, ceil_div(blocks, device.units)))
    busiest, waves = busiest_unit(device, blocks, resident)
    warps = ceil_div(threads, device.vector_width)
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    waste = _reduce_waste(geometry, lanes, rates.sector)
    far = sum(op.source_bytes for op in geometry.operands) * waste + store_bytes
    # Operands that do not depend on the row are read by all of a block's rows from the nearest cache.
    near = waste * length * sum(
        [op.element_bytes * (outputs if op.axes & geometry.spatial_set else blocks) for op in geometry.operands]
    )
    dram, l2 = far / blocks / rates.dram, near / blocks / rates.l2
    doublings = looked_up(lambda n: n.bit_length() - 1, lanes)
    loads = len(geometry.operands) * (1 + LOAD_OVERHEAD)
    issue = (rounds * (instructions(geometry) + loads) + TREE_SLOTS * doublings) * warps / rates.issue
    chain = rates.dram_latency * np.maximum(1.0, rounds / IN_FLIGHT) + doublings * rates.shared_latency
    per_block = np.maximum(overlapped([issue, dram, l2]), chain / resident) + BLOCK_CYCLES
    busy, starts = (busiest * per_block + rates.dram_latency) * rates.cycle, started(device, blocks)
    seconds = np.maximum(busy, starts) + device.launch_overhead_us * 1e-6
    slowest = slowest_of({"issue": issue, device.far.name: dram, "l2": l2, "latency": chain / resident})
    scale = blocks / device.units * rates.cycle
    return Times(
        seconds, np.where(busy > starts, slowest, "blocks"),
        rounds * threads * instructions(geometry) / rates.lanes * scale, {device.far.name: (far, dram * scale)},
        geometry.stage.flops + geometry.epilogue_flops * outputs, blocks, waves, np.where(fitting == 0, 0, resident),
        limit, threads, registers, shared_bytes, blocks / (busiest * device.units),
    )  # fmt: skip


def _reduce_waste(geometry: Geometry, lanes: Array, sector: int) -> Array:
    """Return the bytes moved per byte used if `lanes` neighbours walk along the innermost reduction axis."""
    last, worst = geometry.reduce[-1], np.ones(lanes.shape)
    for op in geometry.operands:
        step = op.stride_of(last)
        if step > 1:
            worst = np.maximum(worst, min(sector, step * op.element_bytes) / op.element_bytes)
        elif step == 1:
            run = np.minimum(lanes, geometry.extents[last]) * op.element_bytes
            worst = np.maximum(worst, ceil_div(run, sector) * sector / run)
    return worst