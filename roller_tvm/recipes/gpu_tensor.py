"""Construction of matrix products on tensor cores: tiles of whole fragments, as many buffers as the latency needs.

Micro-performance model of recipe gpu.tensor: tiles of matrices on tensor cores, copies running ahead.

A block's step loads a tile of each matrix into shared memory; its warps load fragments from there and multiply. With
several buffers, the loads of later steps are under way meanwhile, and hide the latency behind the steps that they run
ahead. Memory traffic, and the cost of starting and storing a block, are as for any staged kernel (``gpu_kernel``), so
that both recipes' times can be compared.

Recipe gpu.tensor as schedule steps::

blocks of m, n -> blockIdx   warps -> threadIdx.y   k.0  k.1  m.f n.f  [fragment m n k]    product, in fragments
   lanes -> threadIdx.x  elements of a lane                                                output, at warps
                                                    at k.0: threads, vectors               tiles, in shared memory
                                                         at k.1: [fragment]                fragments, in registers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

import numpy as np

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..ir.matrices import MatrixRoles, matrix_roles, run_along
from ..micro_perf.geometry import Geometry, Operand
from ..micro_perf.gpu import GpuRates, busiest_unit, overlapped, slowest_of, started
from ..micro_perf.gpu_constants import (
    BASE,
    DRAM_SHARE,
    FETCH_GUARD_OVERHEAD,
    FETCH_OVERHEAD,
    FETCHES,
    FMA_SHARE,
    PER_COPY,
    ROUNDED_TO,
    STAGED_BLOCK_CYCLES,
    STAGED_OVERLAP_LOSS,
    WAITING,
)
from ..micro_perf.gpu_kernel import fetch_latency
from ..micro_perf.gpu_nest import Array, ceil_div, round_up
from ..micro_perf.gpu_times import Times
from ..micro_perf.occupancy import resident_blocks
from ..micro_perf.registers import register_caps, usable_limits
from ..micro_perf.storage import VECTOR_ALIGNMENT
from ..roller.alignment import Rejection
from ..roller.features import Features
from ..roller.rprogram import RProgram
from ..roller.steps import (
    Bind,
    CacheRead,
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
from ..roller.tensor_steps import Fragment, Matrices, Pipeline, StoreAt, StoreVector, Tensorize, Tile, UnrollCompiled
from .fetching import INDEXED
from .gpu_loops import fuse
from .gpu_nests import linear_tile, tiles_loops
from .gpu_rules import Rules
from .gpu_tiled import COPY_LEAST
from .recipe import Context, Fit, Ranked, Recipe


class GpuTensor(Recipe):
    """Products of matrices on tensor cores."""

    name = "gpu.tensor"
    says = "blocks stage tiles of matrices in shared memory, warps multiply fragments on tensor cores"

    def applies(self, ctx: Context) -> Fit:
        return Fit.YES if tiles_loops(ctx) and ctx.features.tensor_cores and ctx.geometry.reduce else Fit.NO

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_tensor(ctx, top, ctx.features)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_tensor(expression, program)

    def peak(self, expression: TensorExpression, program: RProgram, device: DeviceSpec) -> float | None:
        own = expression.tensors[program.staged[0]].dtype
        return device.peak(TF32 if program.choice("tf32") else own, tensor=True)

    def accumulators(self, program: RProgram, geometry: Geometry, device: DeviceSpec) -> int:
        return program.choice("warp_m") * program.choice("warp_n") // device.vector_width


@dataclass(frozen=True)
class Instruction:
    """Abilities of TVM's intrinsics for one pair of dtypes.

    Parameters
    ----------
    turns : bool
        True if ldmatrix can transpose tiles of its operands.
    dynamic : bool
        True if ldmatrix can read dynamic shared memory.
    """

    turns: bool = True
    dynamic: bool = True


#: (dtype of the operands, dtype of the sums) -> instruction.
INSTRUCTIONS = {
    ("float16", "float32"): Instruction(), ("float16", "float16"): Instruction(),
    ("bfloat16", "float32"): Instruction(),
    ("int8", "int32"): Instruction(turns=False, dynamic=False),
}  # fmt: skip
#: Further instructions, for users who allow rounding of the operands.
ROUNDING = {("float32", "float32"): Instruction()}
# Neighbouring elements of a row that a lane holds in the sums of an mma (PTX ISA, fragments of m16n8k16).
PAIR = 2
#: Threads of a block if a device names no limit.
MOST_THREADS = 1024
#: Bytes that memory moves at most per byte of a short copy: neighbouring lanes share the rest of a sector.
MOST_WASTE = 2.0
# Breadth of the search, not device facts: tiles in fragments, buffers, bands of the raster.
BLOCKS, WARPS, STEPS, STAGES, BANDS = (1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 4), (4, 3, 2, 1), (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Product:
    """A nest as a product of matrices; ``rows`` are the lengths of its operands' innermost axes."""

    roles: MatrixRoles
    matrices: tuple[Matrix, Matrix]
    sizes: tuple[int, int, int, int]
    vectors: tuple[int, int]
    dtype: str
    dynamic: bool
    rows: tuple[int, int]

    @property
    def element_bytes(self) -> int:
        return self.matrices[0].element_bytes


def product_of(geometry: Geometry, tf32: bool = False) -> Product | Rejection:
    """Return the nest as a product for tensor cores, or a rejection that says why it is none."""
    stage, tensors = geometry.stage, geometry.expression.tensors
    roles = matrix_roles(stage)
    if isinstance(roles, str):
        return _refused("a product of two matrices", roles)
    own = (tensors[roles.left.tensor].dtype, tensors[roles.right.tensor].dtype)
    instructions = INSTRUCTIONS | ROUNDING if tf32 else INSTRUCTIONS
    instruction = instructions.get((own[0], stage.dtype))
    if own[0] != own[1] or instruction is None:
        known = ", ".join(f"{a} with sums of {c}" for a, c in instructions)
        return _refused(known, f"{own[0]} and {own[1]} with sums of {stage.dtype}")
    for access, turned in ((roles.left, roles.left_turned), (roles.right, roles.right_turned)):
        if turned and not instruction.turns:
            return _refused(f"neighbours of '{access.tensor}' along the sum", "single bytes along its rows")
    by_name = {op.name: op for op in geometry.operands}
    operands = (by_name[roles.left.tensor], by_name[roles.right.tensor])
    sides = (roles.left_turned, roles.right_turned)
    matrices = [
        Matrix(n, t, op.element_bytes, op.source_bytes, op.guarded)
        for n, (op, t) in enumerate(zip(operands, sides, strict=True))
    ]
    groups = (roles.m if roles.left_turned else roles.k, roles.n if roles.right_turned else roles.k)
    vectors = [copy_vector(geometry, op, group) for op, group in zip(operands, groups, strict=True)]
    dtype = TF32 if (own[0], stage.dtype) in ROUNDING else own[0]
    rows = [next((geometry.extents[i] for i in reversed(group) if geometry.extents[i] > 1), 1) for group in groups]
    return Product(roles, (matrices[0], matrices[1]), roles.sizes(stage), (vectors[0], vectors[1]), dtype,
                   instruction.dynamic, (rows[0], rows[1]))


def _refused(required: str, limit: str) -> Rejection:
    return Rejection("tensor cores", required, limit, "another recipe computes it on the ordinary units")


def copy_vector(geometry: Geometry, operand: Operand, group: tuple[int, ...]) -> int:
    """Return how many elements of an operand one copy can move along the columns of its matrix."""
    if operand.arithmetic or any(operand.opaque):
        return 1
    run = run_along(geometry.stage, operand.access, operand.shape, group)
    if not operand.as_stored or operand.guarded:
        # A padded tensor: along its last axis, if nothing is padded there.
        last = next((i for i in reversed(group) if geometry.extents[i] > 1), None)
        source = operand.sources[0].indices[-1] if operand.sources and operand.sources[0].indices else None
        plain = source is not None and len(source.axes) == 1 and not source.const and source.divisor == 1
        if last is None or last in operand.guard_axes or not plain:
            return 1
        source_row = geometry.expression.tensors[operand.sources[0].tensor].shape[-1]
        run = gcd(run, geometry.extents[last], source_row)
    return gcd(run, VECTOR_ALIGNMENT // operand.element_bytes)


def shapes(product_: Product, device: DeviceSpec) -> TensorShapes:
    """Return tiles of whole fragments, none larger than twice the product's own extents."""
    _, m, n, k = product_.sizes
    depth = DEPTH_BYTES // product_.element_bytes
    most = (device.limits.max_threads_per_block or MOST_THREADS) // device.vector_width
    bm, bn, wm, wn, steps = np.array(list(product(BLOCKS, BLOCKS, WARPS, WARPS, STEPS)), np.int64).T
    fits = ((bm == 1) | (bm * FRAGMENT < 2 * m)) & ((bn == 1) | (bn * FRAGMENT < 2 * n))
    fits &= (bm % wm == 0) & (bn % wn == 0) & ((bm // wm) * (bn // wn) <= most)
    fits &= (steps == 1) | (steps * depth < 2 * k)
    block = np.array([bm[fits] * FRAGMENT, bn[fits] * FRAGMENT, steps[fits] * depth])
    warp, one = np.array([wm[fits] * FRAGMENT, wn[fits] * FRAGMENT]), np.ones(block.shape[1], np.int64)
    return TensorShapes(block, warp, one, _vectors(product_, block), one)


def _vectors(made: Product, block: Array) -> Array:
    """Return the elements of a copy, for each operand.

    TVM cannot write more single-byte zeros at once than a register holds, nor find a run that goes on in the next row.
    """
    _, *sizes = made.sizes
    result = []
    for matrix, vector, row in zip(made.matrices, made.vectors, made.rows, strict=True):
        filled = (sizes[matrix.rows] % block[matrix.rows] != 0) | (sizes[2] % block[2] != 0) | matrix.guarded
        within = min(vector, INDEXED) if row % vector else vector
        narrow = min(within, COPY_LEAST) if matrix.element_bytes == 1 else within
        result.append(np.where(filled, narrow, within))
    return np.array(result)


def construct_tensor(ctx: Context, top: int, features: Features) -> Ranked:
    """Return ranked candidates of recipe gpu.tensor: tiles of block and warp, steps, buffers, raster."""
    g, device = ctx.geometry, ctx.device
    made = product_of(g, features.tf32)
    if isinstance(made, Rejection):
        ctx.reject(made)
        return []
    if not device.peak(made.dtype, tensor=True):
        ctx.reject(_refused(f"tensor cores for {made.dtype}", "none"))
        return []
    ahead = features.async_copy and all(v * made.element_bytes >= COPY_LEAST for v in made.vectors)
    limit = replace(features, dynamic_shared=features.dynamic_shared and made.dynamic).shared_limit(device)
    every = shapes(made, device)
    ctx.considered += every.count
    threads = every.warps * device.vector_width
    needed, _ = tensor_registers(device, made.matrices, every, g.accumulator_bytes)
    rules = Rules(
        every.count, lambda n: f"block {tuple(every.block[:, n].tolist())} warp {tuple(every.warp[:, n].tolist())}"
    )
    rules.room("registers", needed, usable_limits(device, threads))
    # One count for both operands would leave threads without work: whole copies of every thread are best.
    counts = [ceil_div(every.block[n] * every.block[2], threads * v) for n, v in enumerate(every.vectors)]
    rules.room("fetches per thread", np.maximum(*counts), FETCHES, "use more warps")
    # Fewer buffers rather than no tile.
    rules.room("shared memory of a block", shared_bytes(made.matrices, every), limit)
    ctx.rejections.add(rules.rejected())
    alive = np.flatnonzero(rules.alive)
    buffers = np.array(STAGES if ahead else (1,))
    staged = replace(every.take(np.repeat(alive, len(buffers))), stages=np.tile(buffers, len(alive)))
    steps = np.maximum(1, ceil_div(made.sizes[3], staged.block[2]))
    staged = staged.take(np.flatnonzero((shared_bytes(made.matrices, staged) <= limit) & (staged.stages <= steps)))
    if not staged.count:
        return []

    def times(of: TensorShapes) -> Times:
        return tensor_times(g, device, made.matrices, made.sizes, of, made.dtype, ahead)

    found = times(staged)
    best = np.lexsort((staged.stages, found.seconds))
    best = best[found.resident[best] > 0][: 4 * top]
    # Each with the raster of blocks whose waves load least.
    rows = ceil_div(made.sizes[1], staged.block[0, best])
    of = np.concatenate([best[_divides(band, rows)] for band in BANDS])
    at = np.concatenate([np.flatnonzero(_divides(band, rows)) for band in BANDS])
    bands = np.concatenate([np.full(np.count_nonzero(_divides(band, rows)), band) for band in BANDS])
    rastered = replace(staged.take(of), raster=bands)
    found = times(rastered)
    order = np.lexsort((bands, found.seconds, at))
    chosen = order[np.unique(at[order], return_index=True)[1]]
    rastered, found = rastered.take(chosen), found.take(chosen)
    order = np.lexsort((rastered.stages, found.seconds))[: 2 * top].tolist()
    return [(program(ctx, made, rastered, n, ahead), found.estimate(n)) for n in order]


def _divides(band: int, rows: Array) -> Array:
    """Return whether bands of this width and of all narrower ones divide the rows of blocks."""
    return np.logical_and.reduce([rows % narrower == 0 for narrower in BANDS if narrower <= band])


def program(ctx: Context, made: Product, shapes_: TensorShapes, number: int, ahead: bool) -> RProgram:
    """Return a candidate as an rProgram; its rTiles are boxes around as many consecutive rows, columns and terms."""
    shape = shapes_.row(number)
    g = ctx.geometry

    def box(m: int, n: int, k: int) -> tuple[int, ...]:
        tile = [1] * len(g.extents)
        for group, length in ((made.roles.m, m), (made.roles.n, n), (made.roles.k, k)):
            covered = linear_tile(g, length, group)
            for i in group:
                tile[i] = covered[i]
        return tuple(tile)

    padding = {
        access.tensor: PADDING_BYTES // matrix.element_bytes
        for access, matrix in zip((made.roles.left, made.roles.right), made.matrices, strict=True)
    }
    tiles = (
        ctx.rtile("shared", box(*shape.block), padding),
        ctx.rtile("register", box(*shape.warp, min(shape.block[2], DEPTH_BYTES // made.element_bytes))),
    )
    # A lane holds pairs of neighbours along n: they are stored together if they are neighbours in memory.
    last = next((i for i in reversed(g.spatial) if g.extents[i] > 1), None)
    paired = bool(made.roles.n) and last == made.roles.n[-1] and g.extents[last] % PAIR == 0
    choices = {
        "threads": shape.warps * ctx.device.vector_width, "block_m": shape.block[0], "block_n": shape.block[1],
        "block_k": shape.block[2], "warp_m": shape.warp[0], "warp_n": shape.warp[1], "stages": shape.stages,
        "async": int(ahead and shape.stages > 1), "raster": shape.raster, "dynamic": int(made.dynamic),
        "store": PAIR if paired else 1, **({"tf32": 1} if made.dtype == TF32 else {}),
        f"vector:{made.roles.left.tensor}": shape.vectors[0], f"vector:{made.roles.right.tensor}": shape.vectors[1],
    }  # fmt: skip
    staged = (made.roles.left.tensor, made.roles.right.tensor)
    return ctx.program("gpu.tensor", tiles, tuple(choices.items()), staged)


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
    needed = shapes_.warp[0] * shapes_.warp[1] * accumulator_bytes // (4 * warp) + BASE
    copies = np.zeros(shapes_.count, np.int64)
    for matrix, vector in zip(matrices, shapes_.vectors, strict=True):
        needed = needed + shapes_.warp[matrix.rows] * DEPTH_BYTES // (4 * warp)
        copies += fetches(device, matrix, shapes_, vector)
    taken = round_up(needed + PER_COPY * np.minimum(copies, FRAGMENT), ROUNDED_TO)
    return needed, np.minimum(taken, register_caps(device, shapes_.warps * warp))


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
    multiplied = 2 * bm * bn * bk / (flops * FMA_SHARE)  # by warps on every scheduler
    compute = multiplied * np.maximum(1.0, schedulers / (warps * resident))
    element = matrices[0].element_bytes
    deep = bk * element / DEPTH_BYTES
    products = bm * bn / (FRAGMENT * FRAGMENT) * deep * 2
    words = FRAGMENT * DEPTH_BYTES // (4 * device.vector_width)  # of a fragment, each lane
    pipelined = (stages > 1) & ahead
    each = np.where(pipelined, 1, 2) + FETCH_OVERHEAD  # past the registers it is one instruction
    loads, rounding, moved = (np.zeros(shapes_.count) for _ in range(3))
    copying, tile_bytes = np.zeros(shapes_.count, np.int64), np.zeros(shapes_.count, np.int64)
    for matrix, vector in zip(matrices, shapes_.vectors, strict=True):
        fragments = warps * shapes_.warp[matrix.rows] / FRAGMENT * deep
        loads += fragments
        if dtype == TF32:  # each is rounded, and read alone if rows lie across the sum
            rounding += fragments * (words + (words - 1) * matrix.turned)
        copying += fetches(device, matrix, shapes_, vector) * (each + FETCH_GUARD_OVERHEAD * matrix.guarded)
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
    sync = (2 + deep) * rates.shared_latency  # two barriers, the first fragments of each round
    arrive = fetch_latency(device, rates, np.minimum(1.0, far / (moved * blocks * steps))) + pipes["l2"]
    # A load has the steps that it runs ahead to arrive in.
    overlap = np.maximum(alone + sync, (arrive + alone) / np.maximum(1, stages - 1))
    latency = np.where(pipelined, overlap, arrive + alone + sync)
    busiest, waves = busiest_unit(device, blocks, resident)
    # A block keeps its unit busy for a share of a step's latency; blocks know nothing of one another's phases, so that
    # the unit idles when all of them wait.
    busy = np.minimum(1.0, throughput / latency)
    step = throughput / (1 - (1 - busy) ** resident)
    outputs = batch * m * n
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    store = store_bytes / blocks / min(rates.l2, rates.dram * DRAM_SHARE)
    cycles = busiest * (steps * step + store + STAGED_BLOCK_CYCLES / resident) + rates.dram_latency
    seconds = np.maximum(cycles * rates.cycle, started(device, blocks)) + device.launch_overhead_us * 1e-6
    per_unit = blocks * steps / device.units * rates.cycle
    levels = {device.far.name: (far + store_bytes, (far + store_bytes) / (device.far.bandwidth_gbps * 1e9))}
    if device.has("l2"):
        levels["l2"] = moved * blocks * steps, pipes["l2"] * per_unit
    levels["shared"] = loads * FRAGMENT * DEPTH_BYTES * blocks * steps, pipes["shared"] * per_unit
    return Times(
        seconds, np.where(step < WAITING * throughput, slowest_of(pipes), "latency"), compute * FMA_SHARE * per_unit,
        levels, geometry.stage.flops + geometry.epilogue_flops * outputs, blocks, waves,
        np.where(fitting == 0, 0, resident), limit, threads, registers, shared, blocks / (busiest * device.units),
    )  # fmt: skip


def _beside(*pipes: Array) -> Array:
    """Return the time of pipes that work at once, as in ``staged_times``: the slowest, plus a share of the others."""
    return overlapped(pipes, STAGED_OVERLAP_LOSS)


def _waste(run_bytes: Array, matrix: Matrix, sector: int) -> Array:
    """Return the bytes that memory moves per byte used; neighbouring lanes may share sectors."""
    apart = np.minimum(MOST_WASTE, sector / np.maximum(1, run_bytes))
    return np.where((run_bytes >= VECTOR_ALIGNMENT) | matrix.turned, 1.0, apart)


def _far_bytes(
    device: DeviceSpec, matrices: tuple[Matrix, Matrix], grid: tuple[int, Array, Array], shapes_: TensorShapes,
    extents: tuple[int, int, int], resident: Array,
) -> Array:  # fmt: skip
    """Return the bytes from the farthest level: blocks of a wave, `raster` rows of them, share rows and columns."""
    batch, rows, columns = grid
    blocks = batch * rows * columns
    wave = np.maximum(1, np.minimum(resident, blocks))
    band = np.minimum(shapes_.raster, rows)
    across = np.minimum(columns, ceil_div(wave, band))
    down = np.minimum(rows, band * ceil_div(wave, band * columns))
    images = np.maximum(1, ceil_div(wave, rows * columns))
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


#: Short names of dtypes in TVM's intrinsics.
_SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int8": "i8", "int32": "i32"}
_LANES = 32


def lower_tensor(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe gpu.tensor."""
    stage = expression.stage(program.anchor)
    roles = matrix_roles(stage)
    if isinstance(roles, str):
        raise ValueError(f"'{stage.name}' is no product of matrices: {roles}")
    name, out = f"{stage.name}.product", stage.name
    tensors = expression.tensors
    element = tensors[roles.left.tensor]
    size = element.bytes // element.elements
    depth = DEPTH_BYTES // size
    block = tuple(program.choice(f"block_{a}") for a in "mnk")
    warp = tuple(program.choice(f"warp_{a}") for a in "mn")
    warps = program.choice("threads") // _LANES
    loops = [a.name for a in stage.axes]
    batch, m, n, k = (tuple(loops[i] for i in group) for group in (roles.batch, roles.m, roles.n, roles.k))
    turned = (int(roles.left_turned), int(roles.right_turned))
    steps: list[Step] = [
        Matrices(out, roles.left.tensor, roles.right.tensor, batch, m, n, k, *turned, block, name)
    ]
    steps += [Inline(inlined) for inlined in program.inlined]
    for axis, tile, own, fragment in (
        ("m", block[0], warp[0], FRAGMENT), ("n", block[1], warp[1], FRAGMENT),
    ):  # fmt: skip
        names = (f"{axis}.b", f"{axis}.w", f"{axis}.f", f"{axis}.i")
        steps.append(Split(name, axis, (tile // own, own // fragment, fragment), names))
    steps.append(Split(name, "k", (block[2] // depth, depth), ("k.0", "k.1", "k.i")))
    raster = program.choice("raster", 1)
    order = ["b", "m.b", "n.b"]
    if raster > 1:  # blocks walk down bands of rows: what a wave of them loads stays in L2
        steps.append(Split(name, "m.b", (raster,), ("m.band", "m.row")))
        order = ["b", "m.band", "n.b", "m.row"]
    steps.append(Reorder(name, (*order, "m.w", "n.w", "k.0", "k.1", "m.f", "n.f", "m.i", "n.i", "k.i")))
    steps += [Fuse(name, tuple(order), "block"), Bind(name, "block", "blockIdx.x")]
    steps += [Fuse(name, ("m.w", "n.w"), "warp"), Bind(name, "warp", "threadIdx.y")]
    steps.append(Tile(name, "m.i", f"{name}.tile"))
    short, dynamic = _SHORT[element.dtype], program.choice("dynamic")
    if program.choice("tf32", 0):
        short = "tf32"
    for access, flip, side, own in (
        (roles.left, roles.left_turned, "a", block[0]), (roles.right, not roles.right_turned, "b", block[1]),
    ):  # fmt: skip
        # mma takes its right operand with rows along k: what has them along n is the transposed one.
        rows_along_k = flip if side == "a" else not flip
        row, vector = own if rows_along_k else block[2], program.choice(f"vector:{access.tensor}", 1)
        steps += _stage(access.tensor, name, "shared.dyn" if dynamic else "shared", row, size, warps, vector)
        shape = (depth, FRAGMENT) if rows_along_k else (FRAGMENT, depth)
        load = f"mma_ldmatrix_{short}_{side}{'_trans' if flip else ''}{'_dyn' if dynamic else ''}"
        kept, staged = f"{access.tensor}.fragment", f"{access.tensor}.shared"
        steps += [CacheRead(staged, "warp", (name,), kept), ComputeAt(kept, name, "k.1"), Fragment(kept, *shape, load)]
    steps.append(StoreAt(out, name, "warp", program.output))
    steps.append(Fragment(name, FRAGMENT, FRAGMENT))
    result = _SHORT[stage.dtype]
    trans = ("_trans_a" if roles.left_turned else "") + ("" if roles.right_turned else "_trans_b")
    clear, multiply = f"mma_fill_16x16_{result}", f"mma_{short}{short}{result}{trans}"
    steps.append(Tensorize(name, "k.0", f"{name}.tile", clear, multiply))
    steps += _store(out)
    if program.choice("store", 1) > 1:
        steps.append(StoreVector(out, "n.pair"))
    if program.choice("stages", 1) > 1:
        steps.append(Pipeline(name, "k.0", 2, program.choice("stages"), program.choice("async")))
    return steps


def _stage(tensor: str, name: str, scope: str, row: int, size: int, warps: int, vector: int) -> list[Step]:
    """Return the steps that copy a matrix tile to shared memory; padding starts eight rows in different banks."""
    staged = f"{tensor}.shared"
    steps: list[Step] = [CacheRead(f"{tensor}.matrix", scope, (name,), staged), ComputeAt(staged, name, "k.0")]
    steps.append(StorageAlign(staged, "d1", row + PADDING_BYTES // size, 0))
    whole = fuse(steps, staged, ("d0", "d1", "d2"), "whole")
    steps.append(Split(staged, whole, (warps, _LANES, vector), ("round", "warp", "lane", "elements")))
    steps += [Bind(staged, "warp", "threadIdx.y"), Bind(staged, "lane", "threadIdx.x")]
    if vector > 1:
        steps.append(Vectorize(staged, "elements"))
    return steps


def _store(out: str) -> list[Step]:
    """Return the steps by which each lane stores its elements: eight rows at a time, four lanes a row, column pairs."""
    return [
        Split(out, "m", (2, 8), ("m.f", "m.half", "m.row")),
        Split(out, "n", (2, 4, 2), ("n.f", "n.half", "n.lane", "n.pair")),
        Reorder(out, ("b", "m.f", "n.f", "m.row", "n.lane", "n.half", "m.half", "n.pair")),
        Fuse(out, ("m.row", "n.lane"), "lane"),
        Bind(out, "lane", "threadIdx.x"),
        UnrollCompiled(out, "m.f"),
        UnrollCompiled(out, "n.f"),
        Unroll(out, "n.half"),
        Unroll(out, "m.half"),
        Unroll(out, "n.pair"),
    ]


__all__ = ["lower_tensor"]
