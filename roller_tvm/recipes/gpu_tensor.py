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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, gcd

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..ir.matrices import MatrixRoles, matrix_roles, run_along
from ..micro_perf.estimate import LevelTime, ProgramEstimate
from ..micro_perf.geometry import Geometry, Operand
from ..micro_perf.gpu import GpuRates, busiest_unit, started
from ..micro_perf.gpu_kernel import BLOCK_CYCLES, DRAM_SHARE, FMA_SHARE, OVERLAP_LOSS, fetch_latency
from ..micro_perf.occupancy import occupancy
from ..micro_perf.registers import BASE, FETCHES, ROUNDED_TO, register_cap, usable_registers
from ..micro_perf.storage import VECTOR_ALIGNMENT
from ..roller.alignment import Rejection, capacity
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
from .gpu_direct import linear_tile
from .gpu_loops import fuse
from .gpu_tiled import COPY_LEAST, FETCH_OVERHEAD, GUARD_OVERHEAD
from .search import Search


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


def shapes(product_: Product, device: DeviceSpec) -> Iterator[TensorShape]:
    """Yield tiles of whole fragments, none larger than twice the product's own extents."""
    _, m, n, k = product_.sizes
    depth = DEPTH_BYTES // product_.element_bytes
    most = (device.limits.max_threads_per_block or 1024) // device.vector_width
    for bm, bn in product(BLOCKS, BLOCKS):
        if (bm > 1 and bm * FRAGMENT >= 2 * m) or (bn > 1 and bn * FRAGMENT >= 2 * n):
            continue
        for wm, wn, steps in product(WARPS, WARPS, STEPS):
            if bm % wm or bn % wn or (bm // wm) * (bn // wn) > most or (steps > 1 and steps * depth >= 2 * k):
                continue
            block = (bm * FRAGMENT, bn * FRAGMENT, steps * depth)
            yield TensorShape(block, (wm * FRAGMENT, wn * FRAGMENT), 1, _vectors(product_, block))


def _vectors(made: Product, block: tuple[int, int, int]) -> tuple[int, int]:
    """Return the elements of a copy, for each operand.

    TVM cannot write more single-byte zeros at once than a register holds, nor find a run that goes on in the next row.
    """
    _, *sizes = made.sizes
    result = []
    for matrix, vector, row in zip(made.matrices, made.vectors, made.rows, strict=True):
        filled = matrix.guarded or sizes[matrix.rows] % block[matrix.rows] or sizes[2] % block[2]
        within = min(vector, INDEXED) if row % vector else vector
        result.append(min(within, COPY_LEAST) if filled and matrix.element_bytes == 1 else within)
    return result[0], result[1]


def construct_tensor(search: Search, top: int, features: Features) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe gpu.tensor: tiles of block and warp, steps, buffers, raster."""
    g, device = search.geometry, search.device
    made = product_of(g, features.tf32)
    if isinstance(made, Rejection):
        search.reject(made)
        return []
    if not device.peak(made.dtype, tensor=True):
        search.reject(_refused(f"tensor cores for {made.dtype}", "none"))
        return []
    ahead = features.async_copy and all(v * made.element_bytes >= COPY_LEAST for v in made.vectors)
    limit = replace(features, dynamic_shared=features.dynamic_shared and made.dynamic).shared_limit(device)
    found: list[tuple[TensorShape, ProgramEstimate]] = []
    for shape in shapes(made, device):
        search.considered += 1
        label = f"block {shape.block} warp {shape.warp}"
        threads = shape.warps * device.vector_width
        needed, _ = tensor_registers(device, made.matrices, shape, g.accumulator_bytes)
        usable = usable_registers(device, threads)
        if usable is not None and search.reject(capacity("registers", needed, usable), label):
            continue
        # One count for both operands would leave threads without work: whole copies of every thread are best.
        counts = [
            ceil(shape.block[n] * shape.block[2] / (threads * v)) for n, v in enumerate(shape.vectors)
        ]
        if search.reject(capacity("fetches per thread", max(counts), FETCHES, "use more warps"), label):
            continue
        # Fewer buffers rather than no tile.
        options = [replace(shape, stages=s) for s in (STAGES if ahead else (1,))]
        fitting = [s for s in options if shared_bytes(made.matrices, s) <= limit and s.stages <= _steps(made, s)]
        if not fitting:
            search.reject(capacity("shared memory of a block", shared_bytes(made.matrices, options[-1]), limit), label)
            continue
        for candidate in fitting:
            estimate = tensor_estimate(g, device, made.matrices, made.sizes, candidate, made.dtype, ahead)
            if estimate is not None:
                found.append((candidate, estimate))
    found.sort(key=lambda c: (c[1].seconds, c[0].stages))
    ranked = [_rastered(search, made, shape, estimate, ahead) for shape, estimate in found[: 4 * top]]
    ranked.sort(key=lambda c: (c[1].seconds, c[0].stages))
    return [(program(search, made, shape, ahead), estimate) for shape, estimate in ranked[: 2 * top]]


def _steps(made: Product, shape: TensorShape) -> int:
    return max(1, ceil(made.sizes[3] / shape.block[2]))


def _rastered(
    search: Search, made: Product, shape: TensorShape, estimate: ProgramEstimate, ahead: bool
) -> tuple[TensorShape, ProgramEstimate]:
    """Return the shape with the raster of blocks whose waves load least, if that is faster."""
    best = (shape, estimate)
    rows = ceil(made.sizes[1] / shape.block[0])
    for band in BANDS[1:]:
        if rows % band:
            break
        wider = replace(shape, raster=band)
        new = tensor_estimate(search.geometry, search.device, made.matrices, made.sizes, wider, made.dtype, ahead)
        if new is not None and new.seconds < best[1].seconds:
            best = (wider, new)
    return best


def program(search: Search, made: Product, shape: TensorShape, ahead: bool) -> RProgram:
    """Return the candidate as an rProgram; its rTiles are boxes around as many consecutive rows, columns and terms."""
    g = search.geometry

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
        search.rtile("shared", box(*shape.block), padding),
        search.rtile("register", box(*shape.warp, min(shape.block[2], DEPTH_BYTES // made.element_bytes))),
    )
    # A lane holds pairs of neighbours along n: they are stored together if they are neighbours in memory.
    last = next((i for i in reversed(g.spatial) if g.extents[i] > 1), None)
    paired = bool(made.roles.n) and last == made.roles.n[-1] and g.extents[last] % PAIR == 0
    choices = {
        "threads": shape.warps * search.device.vector_width, "block_m": shape.block[0], "block_n": shape.block[1],
        "block_k": shape.block[2], "warp_m": shape.warp[0], "warp_n": shape.warp[1], "stages": shape.stages,
        "async": int(ahead and shape.stages > 1), "raster": shape.raster, "dynamic": int(made.dynamic),
        "store": PAIR if paired else 1, **({"tf32": 1} if made.dtype == TF32 else {}),
        f"vector:{made.roles.left.tensor}": shape.vectors[0], f"vector:{made.roles.right.tensor}": shape.vectors[1],
    }  # fmt: skip
    staged = (made.roles.left.tensor, made.roles.right.tensor)
    return search.program("gpu.tensor", tiles, tuple(choices.items()), staged)


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
