"""Micro-performance model of recipe gpu.tensor: tiles of matrices on tensor cores, copies running ahead.

A block's step loads a tile of each matrix into shared memory; its warps load fragments from there and multiply. With
several buffers, the loads of later steps are under way meanwhile, and hide the latency behind the steps that they run
ahead. Memory traffic, and the cost of starting and storing a block, are as for any staged kernel (``gpu_kernel``), so
that both recipes' times can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..device import DeviceSpec
from .geometry import Geometry
from .gpu import GpuRates, busiest_unit, overlapped, slowest_of, started
from .gpu_constants import (
    ADDRESSES,
    CHAIN_EXPOSED,
    DRAM_SHARE,
    FETCH_GUARD_OVERHEAD,
    FETCH_OVERHEAD,
    FRAGMENT_ADDRESSES,
    GATHER_SLOTS,
    MEETING_CYCLES,
    PIECE,
    REGISTERS_LEAST,
    ROLLED_CYCLES,
    ROLLED_SLOTS,
    ROUNDED_TO,
    STAGED_BLOCK_CYCLES,
    STAGED_OVERLAP_LOSS,
    STORE_CYCLES,
    TENSOR_SHARE,
    UNROLLED_COPIES,
    WAITING,
)
from .gpu_kernel import fetch_latency
from .gpu_nest import Array, ceil_div, round_up
from .gpu_times import Times
from .occupancy import resident_blocks
from .registers import register_caps
from .storage import VECTOR_ALIGNMENT

#: Bytes that memory moves at most per byte of a short copy: neighbouring lanes share the rest of a sector.
MOST_WASTE = 2.0
# ldmatrix reads eight rows at a time, 16 bytes of each: rows padded by 16 bytes start in different banks.
PADDING_BYTES = VECTOR_ALIGNMENT
# Rows, columns and (in bytes) depth of a fragment.
FRAGMENT, DEPTH_BYTES = 16, 32
#: The dtype for float32 operands if a user allows it: their upper 19 bits, to which every operand is rounded.
TF32 = "tfloat32"


@dataclass(frozen=True)
class TensorShape:
    """A candidate of recipe gpu.tensor (see ``TensorShapes``)."""

    block: tuple[int, int, int]
    warp: tuple[int, int]
    stages: int
    vectors: tuple[int, int]
    raster: int
    warps: int


@dataclass(frozen=True)
class TensorShapes:
    """N candidates of recipe gpu.tensor, a column each.

    Parameters
    ----------
    block, warp : array of (m, n, k) and of (m, n)
        Tiles of a block's step and of a warp, (3, N) and (2, N).
    stages : array
        Buffers of each tile.
    vectors : array of (2, N)
        Elements that a copy instruction moves, for left and right.
    raster : array
        Rows of blocks that are walked together.
    """

    block: Array
    warp: Array
    stages: Array
    vectors: Array
    raster: Array

    @classmethod
    def of(
        cls, block: Sequence[int], warp: Sequence[int], stages: int, vectors: Sequence[int], raster: int = 1
    ) -> TensorShapes:
        """Return one candidate as a table."""
        return cls(*(np.array(a, np.int64)[..., None] for a in (block, warp, stages, vectors, raster)))

    @property
    def count(self) -> int:
        return self.block.shape[1]

    @property
    def warps(self) -> Array:
        return self.block[0] // self.warp[0] * (self.block[1] // self.warp[1])

    def take(self, rows: Array) -> TensorShapes:
        """Return some of the candidates."""
        return TensorShapes(
            self.block[:, rows], self.warp[:, rows], self.stages[rows], self.vectors[:, rows], self.raster[rows]
        )

    def row(self, n: int) -> TensorShape:
        """Return one candidate."""
        block, warp, vectors = (tuple(a[:, n].tolist()) for a in (self.block, self.warp, self.vectors))
        return TensorShape(block, warp, int(self.stages[n]), vectors, int(self.raster[n]), int(self.warps[n]))


@dataclass(frozen=True)
class Matrix:
    """One operand: rows along m or n, columns along k; the other way around if turned.

    Parameters
    ----------
    rows : int
        0 for m, 1 for n.
    turned : bool
    element_bytes : int
    source_bytes : int
        Bytes of the tensor in memory; an implicit matrix has more.
    guarded : bool
    """

    rows: int
    turned: bool
    element_bytes: int
    source_bytes: int
    guarded: bool

    def padded_row(self, block: Array) -> tuple[Array, Array]:
        """Return (rows, elements of a row with padding) of a tile in shared memory."""
        own, depth = block[self.rows], block[2]
        rows, columns = (depth, own) if self.turned else (own, depth)
        return rows, columns + PADDING_BYTES // self.element_bytes

    def tile_bytes(self, block: Array) -> Array:
        rows, row = self.padded_row(block)
        return rows * row * self.element_bytes


def shared_bytes(matrices: tuple[Matrix, Matrix], shapes_: TensorShapes) -> Array:
    """Return the shared memory of a block in bytes: every buffer of both tiles."""
    left, right = (m.tile_bytes(shapes_.block) for m in matrices)
    return shapes_.stages * (left + right)


def tensor_registers(
    device: DeviceSpec, matrices: tuple[Matrix, Matrix], shapes_: TensorShapes, accumulator_bytes: int
) -> tuple[Array, Array]:
    """Return (registers below which a thread spills, registers that the compiler is expected to take)."""
    warp = device.vector_width
    held = shapes_.warp[0] * shapes_.warp[1] * accumulator_bytes // (4 * warp)
    for matrix in matrices:
        held = held + shapes_.warp[matrix.rows] * DEPTH_BYTES // (4 * warp)
    taken = round_up(np.maximum(held + FRAGMENT_ADDRESSES, REGISTERS_LEAST), ROUNDED_TO)
    return held + ADDRESSES, np.minimum(taken, register_caps(device, shapes_.warps * warp))


def fetches(device: DeviceSpec, matrix: Matrix, shapes_: TensorShapes, vector: Array) -> Array:
    """Return the number of copy instructions of a thread in a step."""
    elements = shapes_.block[matrix.rows] * shapes_.block[2]
    return ceil_div(elements, shapes_.warps * device.vector_width * vector)


def tensor_times(
    geometry: Geometry, device: DeviceSpec, matrices: tuple[Matrix, Matrix], sizes: tuple[int, int, int, int],
    shapes_: TensorShapes, dtype: str, ahead: bool,
) -> Times:  # fmt: skip
    """Return the predicted times.

    Parameters
    ----------
    sizes : tuple of int
        Extents of b, m, n and k.
    dtype : str
        Dtype of the operands, for the rate of the tensor cores.
    ahead : bool
        True if copies bypass the registers, so that they run ahead.
    """
    rates = GpuRates.of(device, geometry.stage.dtype)
    (bm, bn, bk), warps, stages = shapes_.block, shapes_.warps, shapes_.stages
    batch, m, n, k = sizes
    threads, shared = warps * device.vector_width, shared_bytes(matrices, shapes_)
    _, registers = tensor_registers(device, matrices, shapes_, geometry.accumulator_bytes)
    fitting, limit = resident_blocks(device, threads, registers, shared)
    grid = (batch, ceil_div(m, bm), ceil_div(n, bn))
    blocks, steps = grid[0] * grid[1] * grid[2], ceil_div(k, bk)
    resident = np.maximum(1, np.minimum(fitting, ceil_div(blocks, device.units)))

    # One block, one step, in cycles of its unit.
    flops = device.peak(dtype, tensor=True) / (device.units * device.clock_ghz)
    schedulers = rates.issue
    multiplied = 2 * bm * bn * bk / (flops * TENSOR_SHARE)  # by warps on every scheduler
    compute = multiplied * np.maximum(1.0, schedulers / (warps * resident))
    element = matrices[0].element_bytes
    deep = bk * element / DEPTH_BYTES
    products = bm * bn / (FRAGMENT * FRAGMENT) * deep * 2
    words = FRAGMENT * DEPTH_BYTES // (4 * device.vector_width)  # of a fragment, each lane
    pipelined = (stages > 1) & ahead
    each = np.where(pipelined, 1, 2) + FETCH_OVERHEAD  # past the registers it is one instruction
    loads, rounding, moved = (np.zeros(shapes_.count) for _ in range(3))
    copying, tile_bytes, waits = (np.zeros(shapes_.count, np.int64) for _ in range(3))
    for matrix, vector in zip(matrices, shapes_.vectors, strict=True):
        fragments = warps * shapes_.warp[matrix.rows] / FRAGMENT * deep
        loads += fragments
        if dtype == TF32:  # each is rounded, and read alone if rows lie across the sum
            rounding += fragments * (words + (words - 1) * matrix.turned)
        copies = fetches(device, matrix, shapes_, vector)
        rolled = (copies > UNROLLED_COPIES) & matrix.guarded
        coordinates = FETCH_GUARD_OVERHEAD * matrix.guarded + GATHER_SLOTS * (vector == 1) + ROLLED_SLOTS * rolled
        copying += copies * (each + coordinates)
        waits += ROLLED_CYCLES * copies * rolled
        own = shapes_.block[matrix.rows] * bk * element
        tile_bytes += own
        moved += own * _waste(vector * element, matrix, rates.sector)
    far = _far_bytes(device, matrices, grid, shapes_, (m, n, k), device.units * resident)
    pipes = {
        "compute": compute, "issue": (products + loads + rounding + copying * warps) / rates.issue,
        "shared": (loads * FRAGMENT * DEPTH_BYTES + tile_bytes) / rates.shared, "l2": moved / rates.l2,
        "dram": far / (blocks * steps) / (rates.dram * DRAM_SHARE),
    }  # fmt: skip
    throughput = _beside(*pipes.values())
    alone = _beside(multiplied, pipes["issue"], pipes["shared"]) * np.maximum(1.0, schedulers / warps)
    arrive = fetch_latency(device, rates, np.minimum(1.0, far / (moved * blocks * steps))) + pipes["l2"]
    # A load has the steps that it runs ahead to arrive in; of what is left, other blocks hide their share.
    chain = np.where(pipelined, CHAIN_EXPOSED * (arrive / np.maximum(1, stages - 1) + alone), arrive + alone + waits)
    busiest, waves = busiest_unit(device, blocks, resident)
    step = throughput + (MEETING_CYCLES + chain) / resident
    outputs = batch * m * n
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    stored = np.maximum(
        store_bytes / blocks / min(rates.l2, rates.dram * DRAM_SHARE),
        STORE_CYCLES * bm * bn / PIECE,
    )
    cycles = busiest * (steps * step + stored + STAGED_BLOCK_CYCLES / resident) + rates.dram_latency
    seconds = np.maximum(cycles * rates.cycle, started(device, blocks)) + device.launch_overhead_us * 1e-6
    per_unit = blocks * steps / device.units * rates.cycle
    levels = {device.far.name: (far + store_bytes, (far + store_bytes) / (device.far.bandwidth_gbps * 1e9))}
    if device.has("l2"):
        levels["l2"] = moved * blocks * steps, pipes["l2"] * per_unit
    levels["shared"] = loads * FRAGMENT * DEPTH_BYTES * blocks * steps, pipes["shared"] * per_unit
    return Times(
        seconds, np.where(step < WAITING * throughput, slowest_of(pipes), "latency"), compute * TENSOR_SHARE * per_unit,
        levels, geometry.stage.flops + geometry.epilogue_flops * outputs, blocks, waves,
        np.where(fitting == 0, 0, resident), limit, threads, registers, shared, blocks / (busiest * device.units),
    )  # fmt: skip


def _beside(*pipes: Array) -> Array:
    """Return the time of pipes that work at once, as in ``staged_times``: the slowest, plus a share of the others."""
    return overlapped(pipes, STAGED_OVERLAP_LOSS)


def _waste(run_bytes: Array, matrix: Matrix, sector: int) -> Array:
    """Return the bytes that memory moves per byte used; neighbouring lanes may share sectors."""
    apart = np.minimum(MOST_WASTE, sector / run_bytes)
    return np.where((run_bytes >= VECTOR_ALIGNMENT) | matrix.turned, 1.0, apart)


def _far_bytes(
    device: DeviceSpec, matrices: tuple[Matrix, Matrix], grid: tuple[int, Array, Array], shapes_: TensorShapes,
    extents: tuple[int, int, int], resident: Array,
) -> Array:  # fmt: skip
    """Return the bytes from the farthest level: blocks of a wave, `raster` rows of them, share rows and columns."""
    batch, rows, columns = grid
    blocks = batch * rows * columns
    wave = np.minimum(resident, blocks)
    band = np.minimum(shapes_.raster, rows)
    across = np.minimum(columns, ceil_div(wave, band))
    down = np.minimum(rows, band * ceil_div(wave, band * columns))
    images = ceil_div(wave, rows * columns)
    l2 = device.level("l2").capacity_bytes if device.has("l2") else 0
    total = np.zeros(shapes_.count)
    for matrix in matrices:
        # Data that is read again stays in L2 if there is room for it.
        if matrix.source_bytes <= l2 // 2:
            total += matrix.source_bytes
            continue
        whole = extents[matrix.rows] * extents[2] * matrix.element_bytes * batch
        share = min(1.0, matrix.source_bytes / whole)
        different = (down, across)[matrix.rows] * images
        own = shapes_.block[matrix.rows]
        traffic = blocks / wave * different * own * extents[2] * matrix.element_bytes * share
        total += np.maximum(traffic, matrix.source_bytes)
    return total
