"""Construction of products with constant matrices on a GPU (the transforms of Winograd's algorithm).

A thread computes whole tiles of the constant matrices' axes, everything unrolled. TVM then inserts the constants'
values and drops the products with 0 and 1.

Micro-performance model of recipe gpu.unrolled: a product with constant matrices, all of it in one thread.

Recipe gpu.unrolled as schedule steps::

rest -> blockIdx, threadIdx    whole..  unrolled      output
                               k.. whole..  unrolled  anchor, in registers
                               d..  unrolled          inputs, in registers
"""

from __future__ import annotations

from math import ceil, prod

import numpy as np

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.estimate import LevelTime, ProgramEstimate
from ..micro_perf.geometry import Geometry, Tile
from ..micro_perf.gpu import GpuRates, busiest_unit, far_traffic, in_waves, instructions, sectors
from ..micro_perf.gpu_constants import LOAD_GUARD_OVERHEAD, LOAD_OVERHEAD, LOOP_REGISTERS, OUTPUT_OVERHEAD
from ..micro_perf.gpu_nest import GpuNest, columns
from ..micro_perf.occupancy import occupancy
from ..micro_perf.registers import register_cap
from ..roller.alignment import capacity
from ..roller.loops import fuse, open_parts
from ..roller.rprogram import RProgram
from ..roller.steps import Bind, CacheRead, ComputeAt, Reorder, Split, Step, Unroll
from .gpu_loops import begin
from .gpu_nests import linear_tile
from .kinds import multiplies_constants
from .recipe import Context, Fit, Ranked, Recipe
from .row_nests import RowNest

#: Most statements of a thread, all unrolled: two 6 x 6 matrices (Winograd's F(4, 3)) have 1296.
THREAD_STATEMENTS = 2048


class GpuUnrolled(Recipe):
    """Products with constant matrices."""

    name = "gpu.unrolled"
    says = "a thread computes a product with constant matrices, unrolled"

    def applies(self, ctx: Context) -> Fit:
        own = multiplies_constants(ctx.geometry) and not ctx.geometry.stage.uneven
        return Fit.YES if ctx.device.kind != "cpu" and not isinstance(ctx.nest, RowNest) and own else Fit.NO

    def construct(self, ctx: Context, top: int) -> Ranked:
        """Return ranked candidates of recipe gpu.unrolled: threads per block."""
        g, device = ctx.geometry, ctx.device
        own = own_tile(g)
        rest = [i for i in g.spatial if own[i] < g.extents[i] or g.extents[i] == 1]
        if not rest or ctx.reject(capacity("unrolled statements", prod(own), THREAD_STATEMENTS), "gpu.unrolled"):
            return []
        count = prod(g.extents[i] for i in rest)
        found: Ranked = []
        threads, most = device.vector_width, device.limits.most_threads
        while threads <= most and (threads == device.vector_width or threads < 2 * count):
            ctx.considered += 1
            near = linear_tile(g, threads, rest)
            block = tuple(near[i] if i in rest else e for i, e in enumerate(own))
            limit = register_cap(device, threads)
            full = capacity("registers", unrolled_registers(g), limit or THREAD_STATEMENTS, "use fewer threads")
            if ctx.reject(full, f"{threads} threads"):
                break
            estimate = unrolled_estimate(g, device, block, threads)
            if estimate is not None:
                tiles = (ctx.rtile("block", block), ctx.rtile("register", own))
                choices = (("threads", threads), ("blocks", ceil(count / threads)))
                found.append((ctx.program("gpu.unrolled", tiles, choices), estimate))
            threads *= 2
        return sorted(found, key=lambda c: c[1].seconds)[: 2 * top]

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
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


def own_tile(geometry: Geometry) -> Tile:
    """Return the tile of one thread: the axes of constant operands and all reductions whole, one point of the others.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> own_tile(Geometry.of(matmul(m=8, n=8, k=16), "matmul"))
    (1, 1, 16)
    """
    whole = set(geometry.reduce) | {a for op in geometry.operands if op.computed for a in op.axes}
    return tuple(e if i in whole else 1 for i, e in enumerate(geometry.extents))


def unrolled_registers(geometry: Geometry) -> int:
    """Return the registers of a thread: its inputs, its outputs, addresses."""
    own = own_tile(geometry)
    held = sum(op.elements(own) for op in geometry.operands if not op.computed)
    return LOOP_REGISTERS + held + prod(own[i] for i in geometry.spatial)


def unrolled_estimate(geometry: Geometry, device: DeviceSpec, block: Tile, threads: int) -> ProgramEstimate | None:
    """Return the predicted time of recipe gpu.unrolled, or None if not even one block fits on a unit.

    Zeros of the constant matrices are unknown: none is skipped.

    Parameters
    ----------
    block : Tile
        Box around the outputs of a block's threads.
    threads : int
        Threads per block.
    """
    rates = GpuRates.of(device, geometry.stage.dtype)
    own = own_tile(geometry)
    registers = unrolled_registers(geometry)
    resident, limit = occupancy(device, threads, registers, 0)
    if resident == 0:
        return None
    stored = prod(own[i] for i in geometry.spatial)
    outputs = prod(geometry.extents[i] for i in geometry.spatial)
    blocks = ceil(outputs // stored / threads)
    resident = min(resident, ceil(blocks / device.units))
    busiest, waves = busiest_unit(device, blocks, resident)
    read = [op for op in geometry.operands if not op.computed]
    nest, tile = GpuNest.of(geometry), columns([block], len(block))
    from_memory = np.array([[not op.computed] for op in geometry.operands])
    per_block = sectors(nest, nest.boxes(tile), rates.sector) * from_memory
    far = float(far_traffic(nest, device, tile, np.array([device.units * resident]), per_block)[0])
    near = float(per_block.sum())

    warps = ceil(threads / device.vector_width)
    points = prod(own)
    loads = sum(op.elements(own) for op in read)
    slots = points * instructions(geometry) + stored * (1 + geometry.epilogue_flops) + OUTPUT_OVERHEAD
    slots += sum(
        op.elements(own) * (1 + LOAD_OVERHEAD + LOAD_GUARD_OVERHEAD * op.guarded + op.arithmetic) for op in read
    )
    compute = points * instructions(geometry) * threads / rates.lanes
    issue = slots * warps / rates.issue
    l1 = (loads + stored) * warps * rates.line / rates.shared
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    dram = (far + store_bytes) / blocks / rates.dram
    l2 = (near + store_bytes / blocks) / rates.l2
    chain = rates.dram_latency + issue * rates.issue / min(warps, rates.issue)
    terms = {"compute": compute, "issue": issue, "dram": dram, "l2": l2, "shared": l1}
    seconds, bound = in_waves(device, rates, terms, chain, resident, busiest, blocks)
    scale = blocks / device.units * rates.cycle
    levels = (
        LevelTime(device.far.name, far + store_bytes, dram * scale),
        *([LevelTime("l2", near * blocks + store_bytes, l2 * scale)] if device.has("l2") else []),
    )
    return ProgramEstimate(
        float(seconds), compute * scale, levels, str(bound),
        geometry.stage.flops + geometry.epilogue_flops * outputs, blocks, waves, resident, limit, threads,
        registers, 0, blocks / (busiest * device.units),
    )  # fmt: skip