"""Micro-performance model of recipe gpu.tensor: tiles of matrices on tensor cores, copies running ahead.

A block's step loads a tile of each matrix into shared memory; its warps load fragments from there and multiply. With
several buffers, the loads of later steps are under way meanwhile, and hide the latency behind the steps that they run
ahead. Memory traffic, and the cost of starting and storing a block, are as for any staged kernel (``gpu_kernel``), so
that both recipes' times can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..device import DeviceSpec
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry
from .gpu import GpuRates, busiest_unit, started
from .gpu_kernel import BLOCK_CYCLES, DRAM_SHARE, FMA_SHARE, OVERLAP_LOSS, fetch_latency
from .gpu_tiled import FETCH_OVERHEAD, GUARD_OVERHEAD
from .occupancy import occupancy
from .registers import BASE, ROUNDED_TO, register_cap
from .storage import VECTOR_ALIGNMENT

# ldmatrix reads eight rows at a time, 16 bytes of each: rows padded by 16 bytes start in different banks.
PADDING_BYTES = VECTOR_ALIGNMENT
# Rows, columns and (in bytes) depth of a fragment.
FRAGMENT, DEPTH_BYTES = 16, 32
#: The dtype for float32 operands if a user allows it: their upper 19 bits, to which every operand is rounded.
TF32 = "tfloat32"
# Registers for each 64-bit address of a copy that runs ahead.
PER_COPY = 2
# A step of at least so many times its busiest pipe's cycles is bound by latency.
WAITING = 1.1


@dataclass(frozen=True)
class TensorShape:
    """A candidate of recipe gpu.tensor.

    Parameters
    ----------
    block, warp : tuple of (m, n, k) and (m, n)
        Tiles of a block's step and of a warp.
    stages : int
        Buffers of each tile.
    vectors : tuple of int
        Elements that a copy instruction moves, for left and right.
    raster : int
        Rows of blocks that are walked together.
    """

    block: tuple[int, int, int]
    warp: tuple[int, int]
    stages: int
    vectors: tuple[int, int]
    raster: int = 1

    @property
    def warps(self) -> int:
        return self.block[0] // self.warp[0] * (self.block[1] // self.warp[1])


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

    def padded_row(self, block: tuple[int, int, int]) -> tuple[int, int]:
        """Return (rows, elements of a row with padding) of a tile in shared memory."""
        own, depth = block[self.rows], block[2]
        rows, columns = (depth, own) if self.turned else (own, depth)
        return rows, columns + PADDING_BYTES // self.element_bytes

    def tile_bytes(self, block: tuple[int, int, int]) -> int:
        rows, row = self.padded_row(block)
        return rows * row * self.element_bytes


def shared_bytes(matrices: tuple[Matrix, Matrix], shape: TensorShape) -> int:
    """Return the shared memory of a block in bytes: every buffer of both tiles."""
    return shape.stages * sum(m.tile_bytes(shape.block) for m in matrices)


def tensor_registers(
    device: DeviceSpec, matrices: tuple[Matrix, Matrix], shape: TensorShape, accumulator_bytes: int
) -> tuple[int, int]:
    """Return (registers below which a thread spills, registers that the compiler is expected to take)."""
    warp = device.vector_width
    sums = shape.warp[0] * shape.warp[1] * accumulator_bytes // (4 * warp)
    fragments = sum(shape.warp[m.rows] * DEPTH_BYTES // (4 * warp) for m in matrices)
    copies = sum(fetches(device, m, shape, v) for m, v in zip(matrices, shape.vectors, strict=True))
    needed = sums + fragments + BASE
    taken = ceil((needed + PER_COPY * min(copies, FRAGMENT)) / ROUNDED_TO) * ROUNDED_TO
    cap = register_cap(device, shape.warps * warp)
    return needed, taken if cap is None else min(taken, cap)


def fetches(device: DeviceSpec, matrix: Matrix, shape: TensorShape, vector: int) -> int:
    """Return the number of copy instructions of a thread in a step."""
    return ceil(shape.block[matrix.rows] * shape.block[2] / (shape.warps * device.vector_width * vector))


def tensor_estimate(
    geometry: Geometry, device: DeviceSpec, matrices: tuple[Matrix, Matrix], sizes: tuple[int, int, int, int],
    shape: TensorShape, dtype: str, ahead: bool,
) -> ProgramEstimate | None:  # fmt: skip
    """Return the predicted time; None if not even one block fits on a unit.

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
    (bm, bn, bk), warps = shape.block, shape.warps
    batch, m, n, k = sizes
    threads, shared = warps * device.vector_width, shared_bytes(matrices, shape)
    _, registers = tensor_registers(device, matrices, shape, geometry.accumulator_bytes)
    resident, limit = occupancy(device, threads, registers, shared)
    if resident == 0:
        return None
    grid = (batch, ceil(m / bm), ceil(n / bn))
    blocks, steps = grid[0] * grid[1] * grid[2], ceil(k / bk)
    resident = min(resident, ceil(blocks / device.units))

    # One block, one step, in cycles of its unit.
    flops = device.peak(dtype, tensor=True) / (device.units * device.clock_ghz)
    schedulers = rates.issue
    multiplied = 2 * bm * bn * bk / (flops * FMA_SHARE)  # by warps on every scheduler
    compute = multiplied * max(1.0, schedulers / (warps * resident))
    element = matrices[0].element_bytes
    deep = bk * element / DEPTH_BYTES
    products = bm * bn / (FRAGMENT * FRAGMENT) * deep * 2
    fragments = [warps * shape.warp[a.rows] / FRAGMENT * deep for a in matrices]
    loads = sum(fragments)
    counts = [fetches(device, a, shape, v) for a, v in zip(matrices, shape.vectors, strict=True)]
    each = (1 if ahead and shape.stages > 1 else 2) + FETCH_OVERHEAD  # past the registers it is one instruction
    copying = sum(c * (each + GUARD_OVERHEAD * a.guarded) for c, a in zip(counts, matrices, strict=True))
    words = FRAGMENT * DEPTH_BYTES // (4 * device.vector_width)  # of a fragment, each lane
    rounding = 0.0
    if dtype == TF32:  # each is rounded, and read alone if rows lie across the sum
        rounding = sum(f * (words + (words - 1) * a.turned) for f, a in zip(fragments, matrices, strict=True))
    issue = (products + loads + rounding + copying * warps) / rates.issue
    tile_bytes = sum((bm, bn)[a.rows] * bk * element for a in matrices)
    shared_time = (loads * FRAGMENT * DEPTH_BYTES + tile_bytes) / rates.shared
    moved = sum(
        (bm, bn)[a.rows] * bk * element * _waste(v * element, a, rates.sector)
        for a, v in zip(matrices, shape.vectors, strict=True)
    )
    l2_time = moved / rates.l2
    far = _far_bytes(device, matrices, grid, shape, (m, n, k), device.units * resident)
    dram_time = far / (blocks * steps) / (rates.dram * DRAM_SHARE)
    pipes = {"compute": compute, "issue": issue, "shared": shared_time, "l2": l2_time, "dram": dram_time}
    throughput = _beside(*pipes.values())
    alone = _beside(multiplied, issue, shared_time) * max(1.0, schedulers / warps)
    sync = (2 + deep) * rates.shared_latency  # two barriers, the first fragments of each round
    arrive = fetch_latency(device, rates, min(1.0, far / (moved * blocks * steps))) + l2_time
    if ahead and shape.stages > 1:
        # A load has the steps that it runs ahead to arrive in.
        latency = max(alone + sync, (arrive + alone) / (shape.stages - 1))
    else:
        latency = arrive + alone + sync
    busiest, waves = busiest_unit(device, blocks, resident)
    # A block keeps its unit busy for a share of a step's latency; blocks know nothing of one another's phases, so that
    # the unit idles when all of them wait.
    busy = min(1.0, throughput / latency)
    step = throughput / (1 - (1 - busy) ** resident)
    outputs = batch * m * n
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    store = store_bytes / blocks / min(rates.l2, rates.dram * DRAM_SHARE)
    cycles = busiest * (steps * step + store + BLOCK_CYCLES / resident) + rates.dram_latency
    seconds = max(cycles * rates.cycle, started(device, blocks)) + device.launch_overhead_us * 1e-6
    bound = max(pipes, key=lambda pipe: pipes[pipe]) if step < WAITING * throughput else "latency"
    per_unit = blocks * steps / device.units * rates.cycle
    levels = (
        LevelTime(device.far.name, far + store_bytes, (far + store_bytes) / (device.far.bandwidth_gbps * 1e9)),
        *([LevelTime("l2", moved * blocks * steps, l2_time * per_unit)] if device.has("l2") else []),
        LevelTime("shared", loads * FRAGMENT * DEPTH_BYTES * blocks * steps, shared_time * per_unit),
    )
    return ProgramEstimate(
        seconds, compute * FMA_SHARE * per_unit, levels, bound,
        geometry.stage.flops + geometry.epilogue_flops * outputs, blocks, waves, resident, limit, threads, registers,
        shared, blocks / (busiest * device.units),
    )  # fmt: skip


def _beside(*pipes: float) -> float:
    """Return the time of pipes that work at once, as in ``staged_time``: the slowest, plus a share of the others."""
    return max(pipes) + OVERLAP_LOSS * (sum(pipes) - max(pipes))


def _waste(run_bytes: int, matrix: Matrix, sector: int) -> float:
    """Return the bytes that memory moves per byte used; neighbouring lanes may share sectors."""
    return 1.0 if run_bytes >= VECTOR_ALIGNMENT or matrix.turned else min(2.0, sector / max(1, run_bytes))


def _far_bytes(
    device: DeviceSpec, matrices: tuple[Matrix, Matrix], grid: tuple[int, int, int], shape: TensorShape,
    extents: tuple[int, int, int], resident: int,
) -> float:  # fmt: skip
    """Return the bytes from the farthest level: blocks of a wave, `raster` rows of them, share rows and columns."""
    batch, rows, columns = grid
    blocks = batch * rows * columns
    wave = max(1, min(resident, blocks))
    band = min(shape.raster, rows)
    across = min(columns, ceil(wave / band))
    down = min(rows, band * ceil(wave / (band * columns)))
    images = max(1, ceil(wave / (rows * columns)))
    l2 = device.level("l2").capacity_bytes if device.has("l2") else 0
    total = 0.0
    for matrix in matrices:
        whole = extents[matrix.rows] * extents[2] * matrix.element_bytes * batch
        share = min(1.0, matrix.source_bytes / whole)
        different = (down, across)[matrix.rows] * images
        traffic = blocks / wave * different * shape.block[matrix.rows] * extents[2] * matrix.element_bytes * share
        # Data that is read again stays in L2 if there is room for it.
        total += matrix.source_bytes if matrix.source_bytes <= l2 // 2 else max(traffic, matrix.source_bytes)
    return total
