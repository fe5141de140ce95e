"""Recipe gpu.direct: no reuse worth staging, so only the outermost level is tiled; a thread has outputs of its own.

Its loops (``b`` blocks, ``t`` threads, ``i`` a thread's own, ``v`` elements of a vector)::

    b -> blockIdx   t -> threadIdx   i   v -> vector               output; anchor inside i
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.geometry import Geometry, Operand, Tile, in_memory
from ..micro_perf.gpu import (
    GpuRates,
    busiest_unit,
    far_traffic,
    in_waves,
    instructions,
    sectors,
)
from ..micro_perf.gpu_constants import (
    IN_FLIGHT,
    LOAD_GUARD_OVERHEAD,
    LOAD_OVERHEAD,
    LOOP_REGISTERS,
    OUTPUT_OVERHEAD,
    PER_GUARD,
    POINTWISE_REGISTERS,
    SPECIAL,
    UNROLL_MOST,
    UNROLLED_REGISTERS,
    WINDOW_IN_FLIGHT,
)
from ..micro_perf.gpu_kernel import fetch_latency
from ..micro_perf.gpu_nest import Array, GpuNest, ceil_div, product
from ..micro_perf.gpu_times import Times
from ..micro_perf.occupancy import resident_blocks
from ..micro_perf.registers import within_cap
from ..roller.alignment import Rejection
from ..roller.loops import fuse, open_parts
from ..roller.rprogram import RProgram
from ..roller.steps import Bind, ComputeAt, Reorder, Split, Step, Unroll, Vectorize
from .gpu_loops import begin
from .gpu_nests import candidates, linear_tiles
from .gpu_rules import Rules
from .kinds import multiplies_constants
from .recipe import Candidate, Context, Fit, Recipe
from .row_nests import RowNest

#: Dtypes whose vectors in CUDA, or TVM's conversions to them, have at most four elements.
NO_LONG_VECTORS = frozenset({"float64", "int64", "uint64", "bool"})
#: Outputs of a thread that are tried.
ITEMS = (1, 2, 4)
#: A line of L1 has at most so many sectors for each of its own; a lane reads words of so many bytes at a time.
SECTORS_A_LINE, WORD_BYTES = 4, 4
#: Lines that a window's row touches beside its own, as it starts anywhere in one.
ANYWHERE_IN_A_LINE = 0.5
NO_LOOP = Rejection("execution unit", "an output axis to give to threads", "none", "keep a dimension of one element")


class GpuDirect(Recipe):
    """Each thread's outputs straight from global memory."""

    name = "gpu.direct"
    says = "each thread computes its outputs straight from global memory"

    def applies(self, ctx: Context) -> Fit:
        if ctx.device.kind == "cpu" or isinstance(ctx.nest, RowNest):
            return Fit.NO
        if ctx.geometry.stage.uneven:
            return Fit.YES
        last = multiplies_constants(ctx.geometry) or ctx.geometry.is_contraction()
        return Fit.LAST_RESORT if last else Fit.YES

    def construct(self, ctx: Context, top: int) -> list[Candidate]:
        """Return ranked candidates of recipe gpu.direct: threads per block, outputs per thread, vector width."""
        g, device = ctx.geometry, ctx.device
        if ctx.reject(None if g.spatial else NO_LOOP) or ctx.reject(_own_stage(ctx)):
            return []
        outputs, warp = prod(g.extents[i] for i in g.spatial), device.vector_width
        most = device.limits.most_threads
        counts = [warp << n for n in range((most // warp).bit_length())]
        every = [(t, i, v) for v in _vector_widths(g, device) for i in ITEMS for t in counts]
        ctx.considered += len(every)
        threads, items, vector = np.array(every, np.int64).reshape(len(every), 3).T
        length = threads * items * vector
        rules = Rules(len(every), lambda n: "{} threads x {} x {}".format(*every[n]))
        rules.room("outputs", np.where(threads > warp, length, 0), outputs * 2, "use fewer threads")
        ctx.rejections.add(rules.rejected())
        at = np.flatnonzero(rules.alive)
        threads, items, vector, length = threads[at], items[at], vector[at], length[at]
        nest = GpuNest.of(g if g.reduce else in_memory(g, ctx.nest.inlined))
        block, thread = linear_tiles(nest, length), linear_tiles(nest, vector)
        times = direct_times(nest, device, block, thread, threads, items, vector)

        def program(n: int) -> RProgram:
            tiles = (ctx.rtile("block", _tile(block, n)), ctx.rtile("register", _tile(thread, n)))
            choices = (("threads", int(threads[n])), ("items", int(items[n])), ("vector", int(vector[n])),
                       ("blocks", int(times.blocks[n])))  # fmt: skip
            return ctx.program(self.name, tiles, choices)

        return candidates(self.name, times, times.fastest_first[: 2 * top].tolist(), program)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
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


def _vector_widths(geometry: Geometry, device: DeviceSpec) -> list[int]:
    """Return vector widths at which every operand and the output move whole aligned vectors.

    CUDA has no vectors of more than four 64-bit or boolean values, converted or not.
    """
    widths = [1]
    g = geometry
    types = {g.stage.dtype, *(g.expression.tensors[a.tensor].dtype for op in g.operands for a in op.sources)}
    most = device.vector_bytes // max(g.output_bytes, *(op.element_bytes for op in g.operands), 1)
    if types & NO_LONG_VECTORS:
        most = min(most, 4)
    total = prod(geometry.extents[i] for i in geometry.spatial)
    if geometry.reduce or not geometry.spatial:
        return widths
    last = geometry.spatial[-1]
    for width in (2, 4, 8):
        if width > most or total % width:
            break
        same = all(
            not op.guarded
            and (op.stride_of(last) == 0 or (op.stride_of(last) == 1 and op.dims[-1] == ((last, 1),)))
            and _starts_aligned(geometry, op, width)
            for op in geometry.operands
        )
        linear = all(op.shape == geometry.stage.shape and op.stride_of(last) == 1 for op in geometry.operands)
        if same and (linear or geometry.extents[last] % width == 0):
            widths.append(width)
    return widths


def _starts_aligned(geometry: Geometry, operand: Operand, width: int) -> bool:
    """Return whether vectors of an operand start at multiples of their width: no offset, rows of whole vectors."""
    if operand.stride_of(geometry.spatial[-1]) == 0:
        return True
    for access in operand.sources:
        shape = geometry.expression.tensors[access.tensor].shape
        rows = shape != geometry.stage.shape and prod(shape[:-1]) > 1
        if access.indices and (access.indices[-1].const % width or (rows and shape[-1] % width)):
            return False
    return True


def _own_stage(ctx: Context) -> Rejection | None:
    """Return a rejection if a thread's sums would need a stage of their own beside the stored one, else None."""
    stage = ctx.geometry.stage
    if not stage.reduce or stage.results == 1 or ctx.nest.output != ctx.nest.anchor:
        return None
    limit = f"none for {stage.results} results that are stored themselves"
    return Rejection("execution unit", "a stage of its own for a thread's sums", limit, "share them among threads")


def _tile(table: Array, n: int) -> Tile:
    """Return a column of a table as a tile."""
    return tuple(table[:, n].tolist())


def direct_times(
    nest: GpuNest, device: DeviceSpec, block: Array, thread: Array, threads: Array, items: Array, vector: Array
) -> Times:
    """Return the predicted times of recipe gpu.direct: every thread computes its outputs from global memory.

    Parameters
    ----------
    block, thread : array of (axes, N)
        Boxes around the outputs of a block, and around those of one item of a thread.
    threads, items, vector : array
        A block computes ``threads * items * vector`` consecutive outputs.
    """
    geometry, count = nest.geometry, len(threads)
    rates = GpuRates.of(device, geometry.stage.dtype)
    warps = ceil_div(threads, device.vector_width)
    reduction = prod(geometry.extents[i] for i in geometry.reduce)
    arithmetic = instructions(geometry)
    registers = within_cap(device, direct_registers(nest, thread, items, vector), threads)
    fitting, limit = resident_blocks(device, threads, registers, np.zeros_like(threads))
    outputs = nest.outputs_whole
    blocks = ceil_div(outputs, threads * items * vector)
    resident = np.maximum(1, np.minimum(fitting, ceil_div(blocks, device.units)))
    busiest, waves = busiest_unit(device, blocks, resident)
    whole, own = block.copy(), thread.copy()
    whole[nest.inner] = own[nest.inner] = nest.extents[nest.inner]
    # Consecutive outputs go on in the next row: there are fewer blocks than boxes of their length that cover each row.
    boxes_whole = product(nest.grid(block), count)
    share = np.minimum(1.0, blocks / boxes_whole)
    boxes = nest.boxes(whole)
    per_box = (sectors(nest, boxes, rates.sector) * _rows_read(nest, boxes, whole) * share).astype(np.int64)
    far = far_traffic(nest, device, whole, device.units * resident, per_box)
    again = np.zeros(count)
    for op, moved in zip(geometry.operands, per_box, strict=True):
        again += moved * _fetched_again(geometry, op, device, rates, threads * resident)
    near = again * boxes_whole / blocks

    # One item of a thread: `vector` outputs.
    loads, slots, wavefronts = np.zeros(count), np.zeros(count), np.zeros(count)
    for op, elements in zip(geometry.operands, nest.elements(nest.boxes(own)), strict=True):
        wide = vector if _contiguous(geometry, op) else np.ones_like(vector)
        loads += elements / wide
        guards = LOAD_GUARD_OVERHEAD * op.guarded + op.arithmetic
        slots += elements / wide * (1 + LOAD_OVERHEAD) + elements * guards
        wavefronts += elements / wide * _wavefronts(geometry, op, thread, wide, rates, threads / device.vector_width)
    slots += vector * (reduction * arithmetic + geometry.epilogue_flops) + OUTPUT_OVERHEAD
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    terms = {
        "compute": items * vector * reduction * arithmetic * threads / rates.lanes,
        "issue": items * slots * warps / rates.issue,
        "dram": (far + store_bytes) / blocks / rates.dram,
        "l2": (near + store_bytes / blocks) / rates.l2,
        "shared": items * (wavefronts + vector) * warps * rates.line / rates.shared,
    }
    flying = float(WINDOW_IN_FLIGHT if reduction <= UNROLL_MOST else IN_FLIGHT)
    rounds = np.maximum(1.0, items * loads / flying)
    # What other outputs' windows loaded is near.
    missed = np.minimum(1.0, far / np.maximum(1.0, near * blocks))
    alone = terms["issue"] * rates.issue / np.minimum(warps, rates.issue)
    chain = fetch_latency(device, rates, missed) * rounds + alone
    seconds, bound = in_waves(device, rates, terms, chain, resident, busiest, blocks)
    scale = blocks / device.units * rates.cycle
    levels = {device.far.name: (far + store_bytes, terms["dram"] * scale)}
    if device.has("l2"):
        levels["l2"] = near * blocks + store_bytes, terms["l2"] * scale
    return Times(
        seconds, bound, terms["compute"] * scale, levels, geometry.stage.flops + geometry.epilogue_flops * outputs,
        blocks, waves, np.where(fitting == 0, 0, resident), limit, threads, registers, np.zeros_like(threads),
        blocks / (busiest * device.units),
    )  # fmt: skip


def direct_registers(nest: GpuNest, thread: Array, items: Array, vector: Array) -> Array:
    """Return the registers of threads of recipe gpu.direct (see ``direct_times``)."""
    geometry = nest.geometry
    if not geometry.reduce:
        ahead = vector * items * sum(1.0 + PER_GUARD * op.guarded for op in geometry.operands)
        inside = any(op.functions for op in geometry.operands)
        special = inside or geometry.stage.functions or geometry.epilogue_functions
        return POINTWISE_REGISTERS + vector + np.ceil(ahead).astype(np.int64) + (SPECIAL if special else 0)
    if prod(geometry.extents[i] for i in geometry.reduce) > UNROLL_MOST:
        return LOOP_REGISTERS + vector * (1 + len(geometry.operands))
    own = thread.copy()
    own[nest.inner] = nest.extents[nest.inner]
    loads = np.zeros(len(vector))
    for op, elements in zip(geometry.operands, nest.elements(nest.boxes(own)), strict=True):
        loads += elements * (1 + PER_GUARD * op.guarded)
    return np.maximum(LOOP_REGISTERS, UNROLLED_REGISTERS + vector + np.ceil(loads).astype(np.int64))


def _rows_read(nest: GpuNest, boxes: Array, tiles: Array) -> Array:
    """Return the share of boxes' rows that are read, (operands, N): strides wider than the window skip some."""
    share = np.minimum(1.0, nest.points_along(tiles) / boxes)
    return np.multiply.reduce(np.where(nest.indexed, share, 1.0)[:, :-1], axis=1)


def _contiguous(geometry: Geometry, operand: Operand) -> bool:
    """Return whether neighbouring outputs read neighbouring elements."""
    return bool(geometry.spatial) and operand.stride_of(geometry.spatial[-1]) == 1 and not operand.guarded


def _fetched_again(geometry: Geometry, operand: Operand, device: DeviceSpec, rates: GpuRates, threads: Array) -> Array:
    """Return how often a sector is loaded from L2 if one thread reads it, element by element, during its reduction.

    Once, while the unit's cache has room for the lines of all its threads; once per element, if the lines take twice
    that room.
    """
    once = np.ones(threads.shape)
    along = geometry.reduce[-1] if geometry.reduce else None
    if along is None or not geometry.spatial or operand.stride_of(along) != 1:
        return once
    if operand.stride_of(geometry.spatial[-1]) * operand.element_bytes < rates.sector:
        return once
    cache = device.limits.global_cache_bytes
    lost = np.minimum(1.0, np.maximum(0.0, threads * rates.line / cache - 1)) if cache else 0.0 * once
    elements = min(rates.sector // operand.element_bytes, prod(geometry.extents[i] for i in geometry.reduce))
    return 1 + (elements - 1) * lost


def _wavefronts(
    geometry: Geometry, operand: Operand, thread: Array, wide: Array, rates: GpuRates, warp_share: Array
) -> Array:  # fmt: skip
    """Return the cycles of one load instruction of a warp at L1: lines touched, or one if all lanes read the same.

    ``warp_share`` is the number of threads in a block, in warps.
    """
    if not geometry.spatial:
        return np.ones(wide.shape)
    step = operand.stride_of(geometry.spatial[-1])
    if step == 0:
        return wide.astype(float)
    most = float(rates.line // rates.sector * SECTORS_A_LINE)
    words = wide * step * np.maximum(1, thread[geometry.spatial[-1]] // wide) * operand.element_bytes / WORD_BYTES
    lines = np.minimum(most, words) * np.minimum(1.0, warp_share)
    windowed = any(len(dim) > 1 for dim in operand.dims)  # starts anywhere in a line
    return np.maximum(1.0, lines) + (ANYWHERE_IN_A_LINE if windowed else 0.0)