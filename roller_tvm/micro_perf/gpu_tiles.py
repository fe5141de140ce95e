"""Micro-performance models of tiles that blocks stage in shared memory: candidates of recipe gpu.tiled.

Footprint, traffic and time per level, occupancy, waves. Everything is counted for *aligned* tiles (Roller, section
3.3): a block's step loads its input tiles from global into shared memory, its threads load operands from shared memory
into registers and compute. Throughput of a unit with several resident blocks and the latency of one block's own chain
of load - synchronise - compute are both evaluated; the slower one is the time of a step.

There are two depths of it. ``quick_estimates`` leads construction to the tiles that are worth a closer look.
``staged_estimates`` ranks those. It is the model of any staged kernel, effect by effect (``effects``); recorded
schedules are compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..device import DeviceSpec
from .geometry import Geometry, Operand, Tile
from .gpu import (
    GpuRates,
    busiest_unit,
    far_traffic,
    instructions,
    overlapped,
    sectors,
    slowest_of,
    spread,
)
from .gpu_constants import (
    BLOCK_CYCLES,
    COMPILER_STATEMENTS,
    FETCH_GUARD_OVERHEAD,
    FETCH_OVERHEAD,
    QUICK_CONFLICTS_MOST,
)
from .gpu_kernel import staged_times
from .gpu_nest import Array, GpuNest, ceil_div, columns, product, round_up
from .gpu_times import Times
from .kernel import StagedTable
from .occupancy import resident_blocks
from .registers import RegisterTiles, body_of
from .storage import read_widths

#: Bytes that shared memory delivers in one cycle: a word from each bank.
WAVEFRONT_BYTES = 128


@dataclass(frozen=True)
class Tiled:
    """Candidates of recipe gpu.tiled: a column each.

    Parameters
    ----------
    block : array of (axes, N)
        Spatial axes: the block's tile; reduction axes: one step.
    thread : array of (axes, N)
        A thread's register tile; 1 along reductions.
    vthreads : array of (axes, N)
    unrolled : array of (axes, N)
        Along reductions: iterations of a step that are unrolled.
    vectors, padding : array of (operands, N)
        Elements that a fetch instruction moves, and that are added to a row in shared memory.
    store : array
        Elements that a store instruction moves.
    threads : array
        Threads of a block.
    stages : array
        Buffers of each staged tile: copies run ahead of what reads them by one less.
    """

    nest: GpuNest
    block: Array
    thread: Array
    vthreads: Array
    unrolled: Array
    vectors: Array
    padding: Array
    store: Array
    threads: Array
    stages: Array

    @classmethod
    def of(
        cls, geometry: Geometry, block: Tile, thread: Tile, vthreads: Tile, unrolled: Tile, vectors: Sequence[int],
        padding: Sequence[int], store: int = 1, stages: int = 1,
    ) -> Tiled:  # fmt: skip
        """Return one candidate as a table."""
        nest = GpuNest.of(geometry)
        b, t, v, u, width, added = (
            columns([tile], len(tile)) for tile in (block, thread, vthreads, unrolled, vectors, padding)
        )
        threads = product(ceil_div(b[nest.outer], t[nest.outer]), 1)
        return cls(nest, b, t, v, u, width, added, np.array([store]), threads, np.array([stages]))

    @property
    def count(self) -> int:
        return self.block.shape[1]

    def take(self, rows: Sequence[int] | Array) -> Tiled:
        """Return some of the candidates."""
        at = np.asarray(rows, np.int64)
        return Tiled(
            self.nest, self.block[:, at], self.thread[:, at], self.vthreads[:, at], self.unrolled[:, at],
            self.vectors[:, at], self.padding[:, at], self.store[at], self.threads[at], self.stages[at],
        )  # fmt: skip

    @cached_property
    def kernels(self) -> StagedTable:
        """The candidates as any staged kernels: a step's reductions are split in two, the inner parts unrolled."""
        nest = self.nest
        body = self.body.copy()
        statements, rolled = nest.outputs(body) * nest.depth(body), np.zeros(self.count, bool)
        limit = np.maximum(statements, COMPILER_STATEMENTS)
        for i in reversed(nest.reduce):  # outer parts that the compiler unrolls by itself, the inner first
            outer = self.block[i] // self.unrolled[i]
            if (outer == 1).all():
                continue
            fits = (outer == 1) | (~rolled & (outer * statements <= limit))
            expanded = np.where(fits, outer, 1)
            body[i] *= expanded
            statements, rolled = statements * expanded, rolled | ~fits
        return StagedTable(
            nest, self.block, self.thread, self.vthreads, body, np.zeros(self.count, bool), nest.depth(self.block),
            self.vectors, self.padding, self.store, self.stages, np.ones(self.count, bool),
        )  # fmt: skip

    @cached_property
    def rounds(self) -> Array:
        """Fetches of a thread in a step, (operands, N)."""
        return ceil_div(self.kernels.elements, self.vectors * self.threads)

    @cached_property
    def fetched(self) -> Array:
        """Elements that a thread fetches in a step."""
        return np.add.reduce(self.rounds * self.vectors, axis=0)

    @cached_property
    def body(self) -> Array:
        """Extents of the code that the schedule unrolls."""
        return body_of(self.nest, self.thread, self.unrolled)

    @cached_property
    def body_boxes(self) -> Array:
        """Extents of the operands' parts that this code reads, (operands, dimensions, N)."""
        return self.nest.boxes(self.body)

    @cached_property
    def read(self) -> Array:
        """Elements that this code reads, (operands, N)."""
        return self.nest.elements(self.body_boxes)

    @cached_property
    def register_tiles(self) -> RegisterTiles:
        return RegisterTiles.of(self.nest, self.thread)

    def registers(self, device: DeviceSpec) -> Array:
        """Return the registers that the compiler is expected to take."""
        return self.register_tiles.predicted(device, self.read, self.threads, self.rounds, self.vectors)


def estimates(candidates: Tiled, device: DeviceSpec) -> Times:
    """Return the model's estimates of candidates: with every effect for a GPU, the quick ones for other devices."""
    return (staged_estimates if device.kind == "gpu" else quick_estimates)(candidates, device)


@dataclass(frozen=True)
class QuickTimes:
    """Predicted times of staged contractions, with few effects: a column each.

    Parameters
    ----------
    seconds : array
    fitting, limit : array
        Blocks that fit on a unit, and the resource that limits them.
    resident, busiest, waves : array
        Blocks on a unit at a time, blocks of the busiest unit, rounds of blocks over the device.
    registers : array
        Registers of a thread.
    pipes : dict
        Cycles of a step in each pipe; `near` and `shared` bytes of it, and bytes from the farthest level in all.
    throughput, chain : array
        Cycles of a step if pipes limit it, and if one block's own chain does.
    """

    seconds: Array
    fitting: Array
    limit: Array
    resident: Array
    busiest: Array
    waves: Array
    registers: Array
    pipes: dict[str, Array]
    throughput: Array
    chain: Array
    near: Array
    shared: Array
    far: Array


def quick_estimates(made: Tiled, device: DeviceSpec) -> Times:
    """Return the estimates of staged contractions, with few effects."""
    told = quick_times(made, device)
    bound = np.where(told.chain > told.throughput, "latency", slowest_of(told.pipes))
    total = made.kernels.blocks * made.kernels.steps
    moved = {device.far.name: told.far, "l2": told.near * total, "shared": told.shared * total}
    resident = np.where(told.fitting == 0, 0, told.resident), told.limit
    return _times(
        made, device, told.seconds, bound, told.pipes, moved, resident, told.registers, told.busiest, told.waves
    )


def quick_times(made: Tiled, device: DeviceSpec) -> QuickTimes:
    """Return the predicted times of staged contractions, with few effects."""
    nest, kernels = made.nest, made.kernels
    g = nest.geometry
    rates, warp = GpuRates.of(device, g.stage.dtype), device.vector_width
    threads, warps = made.threads, ceil_div(made.threads, warp)
    registers = made.registers(device)
    fitting, limit = resident_blocks(device, threads, registers, kernels.shared_bytes)
    blocks, steps = kernels.blocks, kernels.steps
    resident = np.maximum(1, np.minimum(fitting, ceil_div(blocks, device.units)))

    # One block, one step; `rounds` register tiles of a thread.
    rounds = ceil_div(product(kernels.lanes, made.count), threads)
    points = kernels.outputs * kernels.depth * rounds
    arithmetic = instructions(g)
    compute = points * arithmetic * threads / rates.lanes
    load_slots, wavefronts = shared_reads(made, warp)
    shared_bytes = wavefronts * kernels.depth * rounds * warps * rates.line
    shared_read = shared_bytes / rates.shared
    of_step = sectors(nest, kernels.boxes, rates.sector)
    near = np.add.reduce(of_step, axis=0)
    fetch = 2 + FETCH_OVERHEAD + FETCH_GUARD_OVERHEAD * nest.guarded + nest.arithmetic * made.vectors
    fetch_slots = np.add.reduce(made.rounds * fetch, axis=0)
    slots = (points * arithmetic + load_slots * kernels.depth * rounds) + fetch_slots
    issue = slots * warps / rates.issue
    staged_bytes = np.add.reduce(kernels.elements * nest.element_bytes, axis=0)

    # The whole grid: how many blocks the busiest unit runs, and how many are there at a time.
    busiest, waves = busiest_unit(device, blocks, resident)
    far = far_traffic(nest, device, made.block, device.units * resident, of_step * steps)
    pipes = {
        "compute": compute, "issue": issue, "shared": shared_read + staged_bytes / rates.shared,
        "l2": near / rates.l2, "dram": far / (blocks * steps) / rates.dram,
    }  # fmt: skip
    throughput = overlapped(list(pipes.values()))
    sync = 2 * rates.shared_latency
    alone = np.maximum(np.maximum(compute, issue), shared_read) / np.minimum(1.0, warps / rates.issue)
    chain = rates.dram_latency + sync + np.maximum(pipes["l2"], pipes["dram"]) + alone
    # With several buffers, a load has the steps that it runs ahead to arrive in.
    ahead = np.maximum(alone + sync, (chain - sync) / np.maximum(1, made.stages - 1))
    chain = np.where(made.stages > 1, ahead, chain) / resident
    cycles = busiest * (steps * np.maximum(throughput, chain) + BLOCK_CYCLES)

    # Store and epilogue.
    last, outputs = nest.spatial[-1], nest.outputs_whole
    run = made.block[last] * g.output_bytes
    waste = np.where(made.block[last] < nest.extents[last], round_up(run, rates.sector) / run, 1.0)
    store_bytes = outputs * g.output_bytes * waste + g.epilogue_bytes
    store = store_bytes / (rates.dram * device.units) + rates.dram_latency
    seconds = (cycles + store) * rates.cycle + device.launch_overhead_us * 1e-6
    return QuickTimes(
        seconds, fitting, limit, resident, busiest, waves, registers, pipes, throughput, chain, near, shared_bytes,
        far + store_bytes,
    )  # fmt: skip


def staged_estimates(made: Tiled, device: DeviceSpec) -> Times:
    """Return the times predicted for any schedules of the same tiles."""
    nest, kernels, g = made.nest, made.kernels, made.nest.geometry
    rates, registers = GpuRates.of(device, g.stage.dtype), made.registers(device)
    told = staged_times(kernels, device, registers=registers)
    busiest, waves = busiest_unit(device, kernels.blocks, told.resident)
    total = kernels.blocks * kernels.steps
    compute = kernels.outputs * kernels.depth * instructions(g) * made.threads / rates.lanes
    moved = {
        device.far.name: told.far_bytes + nest.outputs_whole * g.output_bytes + g.epilogue_bytes,
        "l2": told.pipes["l2"] * rates.l2 * total, "shared": told.pipes["shared"] * rates.shared * total,
    }  # fmt: skip
    bound = np.where((told.bound == "dram") | (told.bound == "store"), device.far.name, told.bound)
    resident = np.where(told.held.resident == 0, 0, told.resident), told.held.limit
    pipes = {**told.pipes, "compute": compute}
    return _times(made, device, told.seconds, bound, pipes, moved, resident, registers, busiest, waves)


def _times(
    made: Tiled, device: DeviceSpec, seconds: Array, bound: Array, pipes: dict[str, Array], moved: dict[str, Array],
    resident: tuple[Array, Array], registers: Array, busiest: Array, waves: Array,
) -> Times:  # fmt: skip
    """Return estimates from the cycles of a step in each pipe, and the bytes of all steps by level."""
    g, kernels = made.nest.geometry, made.kernels
    unit_seconds = kernels.blocks * kernels.steps / device.units * GpuRates.of(device, g.stage.dtype).cycle
    far = moved[device.far.name]
    levels = {device.far.name: (far, far / (device.far.bandwidth_gbps * 1e9))}
    if device.has("l2"):
        levels["l2"] = moved["l2"], pipes["l2"] * unit_seconds
    levels["shared"] = moved["shared"], pipes["shared"] * unit_seconds
    return Times(
        seconds, bound, pipes["compute"] * unit_seconds, levels,
        g.stage.flops + g.epilogue_flops * made.nest.outputs_whole, kernels.blocks, waves, *resident, made.threads,
        registers, kernels.shared_bytes, kernels.blocks / (busiest * device.units),
    )  # fmt: skip


def shared_reads(made: Tiled, warp: int) -> tuple[Array, Array]:
    """Return, per point of the reduction, load instructions of a thread and cycles-wide wavefronts of a warp.

    An element that a thread reads twice in the unrolled part of a step (a sliding window) is loaded once. Contiguous,
    aligned rows are loaded as vectors.
    """
    nest, kernels = made.nest, made.kernels
    own = made.body
    part = own.copy()
    part[nest.outer] //= made.vthreads[nest.outer]
    loads = nest.read_once(made.body_boxes, own)
    slots = loads / read_widths(nest, kernels.boxes, made.body_boxes, made.padding, made.block, part)
    over = nest.over_own_axes(spread(kernels.lanes, np.full(made.count, warp)))
    conflicts = np.array([[_conflict(nest.geometry, op)] for op in nest.geometry.operands])
    words = loads * nest.element_bytes * over / WAVEFRONT_BYTES * conflicts
    points = nest.depth(made.unrolled)
    return np.add.reduce(slots, axis=0) / points, np.add.reduce(np.maximum(slots, words), axis=0) / points


def _conflict(geometry: Geometry, operand: Operand) -> float:
    """Return how many lanes of a warp read words of one bank: the distance between their reads, up to a limit."""
    last = geometry.spatial[-1] if geometry.spatial else -1
    if operand.dims and any(a == last for a, _ in operand.dims[-1]):
        return min(QUICK_CONFLICTS_MOST, float(max(1, operand.stride_of(last))))
    return 1.0
