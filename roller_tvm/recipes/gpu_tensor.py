"""Recipe gpu.tensor: matrix products on tensor cores, tiles of whole fragments, as many buffers as the latency needs.

The estimates stand in ``micro_perf/gpu_fragments.py``.

Its loops::

    blocks of m, n -> blockIdx   warps -> threadIdx.y   k.0  k.1  m.f n.f  [fragment m n k]    product, in fragments
       lanes -> threadIdx.x  elements of a lane                                                output, at warps
                                                        at k.0: threads, vectors               tiles, in shared memory
                                                             at k.1: [fragment]                fragments, in registers
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import gcd

import numpy as np

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..ir.matrices import MatrixRoles, matrix_roles, run_along
from ..micro_perf.geometry import Geometry, Operand
from ..micro_perf.gpu_constants import FETCHES
from ..micro_perf.gpu_fragments import (
    DEPTH_BYTES,
    FRAGMENT,
    PADDING_BYTES,
    TF32,
    Matrix,
    TensorShapes,
    shared_bytes,
    tensor_registers,
    tensor_times,
)
from ..micro_perf.gpu_nest import Array, ceil_div
from ..micro_perf.gpu_times import Times
from ..micro_perf.registers import usable_limits
from ..micro_perf.storage import VECTOR_ALIGNMENT
from ..roller.alignment import Rejection
from ..roller.loops import fuse
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
from .gpu_nests import candidates, copies_ahead, linear_tile, tiles_loops
from .gpu_rules import Rules
from .gpu_tiled import COPY_LEAST
from .recipe import Candidate, Context, Fit, Recipe


class GpuTensor(Recipe):
    """Products of matrices on tensor cores."""

    name = "gpu.tensor"
    says = "blocks stage tiles of matrices in shared memory, warps multiply fragments on tensor cores"

    def applies(self, ctx: Context) -> Fit:
        return Fit.YES if tiles_loops(ctx) and ctx.features.tensor_cores and ctx.geometry.reduce else Fit.NO

    def construct(self, ctx: Context, top: int) -> list[Candidate]:
        """Return ranked candidates of recipe gpu.tensor: tiles of block and warp, steps, buffers, raster."""
        g, device = ctx.geometry, ctx.device
        made = product_of(g, ctx.features.tf32)
        if isinstance(made, Rejection):
            ctx.reject(made)
            return []
        if not device.peak(made.dtype, tensor=True):
            ctx.reject(_refused(f"tensor cores for {made.dtype}", "none"))
            return []
        ahead = copies_ahead(ctx) and all(v * made.element_bytes >= COPY_LEAST for v in made.vectors)
        limit = replace(ctx.features, dynamic_shared=ctx.features.dynamic_shared and made.dynamic).shared_limit(device)
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
        steps = ceil_div(made.sizes[3], staged.block[2])
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
        return candidates(self.name, found, order, lambda n: program(ctx, made, rastered, n, ahead))

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        """Return the steps of recipe gpu.tensor."""
        stage = expression.stage(program.anchor)
        roles = matrix_roles(stage)
        if isinstance(roles, str):
            raise ValueError(f"'{stage.name}' is no product of matrices: {roles}")
        if program.choice("swapped", 0):
            roles = roles.swap()
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
            steps += [CacheRead(staged, "warp", (name,), kept), ComputeAt(kept, name, "k.1")]
            steps.append(Fragment(kept, *shape, load))
        steps.append(StoreAt(out, name, "warp", program.output, program.choice("store", 1)))
        steps.append(Fragment(name, FRAGMENT, FRAGMENT))
        result = _SHORT[stage.dtype]
        trans = ("_trans_a" if roles.left_turned else "") + ("" if roles.right_turned else "_trans_b")
        trans += "_swapped" if roles.swapped else ""
        clear, multiply = f"mma_fill_16x16_{result}", f"mma_{short}{short}{result}{trans}"
        steps.append(Tensorize(name, "k.0", f"{name}.tile", clear, multiply))
        steps += _store(out)
        if program.choice("store", 1) > 1:
            steps.append(StoreVector(out, "n.pair"))
        if program.choice("stages", 1) > 1:
            steps.append(Pipeline(name, "k.0", 2, program.choice("stages"), program.choice("async")))
        return steps

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
    swaps : bool
        True if the operands may stand in the other order.
    """

    turns: bool = True
    dynamic: bool = True
    swaps: bool = True


#: (dtype of the operands, dtype of the sums) -> instruction.
INTRINSICS = {
    ("float16", "float32"): Instruction(), ("float16", "float16"): Instruction(swaps=False),
    ("bfloat16", "float32"): Instruction(),
    ("int8", "int32"): Instruction(turns=False, dynamic=False, swaps=False),
}  # fmt: skip
#: Further instructions, for users who allow rounding of the operands.
ROUNDING = {("float32", "float32"): Instruction()}
# Neighbouring elements of a row that a lane holds in the sums of an mma (PTX ISA, fragments of m16n8k16).
PAIR = 2
# Breadth of the search, not device facts: tiles in fragments, buffers, bands of the raster.
BLOCKS, WARPS, STEPS, STAGES, BANDS = (1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 4, 8), (4, 3, 2, 1), (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Product:
    """A nest as a product of matrices.

    ``rows`` are the lengths of its operands' innermost axes; a lane stores ``store`` neighbouring outputs at a time.
    """

    roles: MatrixRoles
    matrices: tuple[Matrix, Matrix]
    sizes: tuple[int, int, int, int]
    vectors: tuple[int, int]
    dtype: str
    dynamic: bool
    rows: tuple[int, int]
    store: int

    @property
    def element_bytes(self) -> int:
        return self.matrices[0].element_bytes


def product_of(geometry: Geometry, tf32: bool = False, swapped: bool | None = None) -> Product | Rejection:
    """Return the nest as a product for tensor cores, or a rejection that says why it is none.

    Parameters
    ----------
    swapped : bool, optional
        Whether rows and columns change places; by default, if only then the outputs that a lane holds are neighbours.
    """
    stage, tensors = geometry.stage, geometry.expression.tensors
    roles = matrix_roles(stage)
    if isinstance(roles, str):
        return _refused("a product of two matrices", roles)
    left, right = tensors[roles.left.tensor].dtype, tensors[roles.right.tensor].dtype
    instructions = INTRINSICS | ROUNDING if tf32 else INTRINSICS
    instruction = instructions.get((left, stage.dtype))
    if left != right or instruction is None:
        known = ", ".join(f"{a} with sums of {c}" for a, c in instructions)
        return _refused(known, f"{left} and {right} with sums of {stage.dtype}")
    for access, turned in ((roles.left, roles.left_turned), (roles.right, roles.right_turned)):
        if turned and not instruction.turns:
            return _refused(f"neighbours of '{access.tensor}' along the sum", "single bytes along its rows")
    if swapped is None:
        swapped = instruction.swaps and store_width(geometry, roles) < store_width(geometry, roles.swap())
    if swapped:
        roles = roles.swap()
    by_name = {op.name: op for op in geometry.operands}
    operands = (by_name[roles.left.tensor], by_name[roles.right.tensor])
    sides = (roles.left_turned, roles.right_turned)
    matrices = [
        Matrix(n, t, op.element_bytes, op.source_bytes, op.guarded)
        for n, (op, t) in enumerate(zip(operands, sides, strict=True))
    ]
    groups = (roles.m if roles.left_turned else roles.k, roles.n if roles.right_turned else roles.k)
    vectors = [copy_vector(geometry, op, group) for op, group in zip(operands, groups, strict=True)]
    dtype = TF32 if (left, stage.dtype) in ROUNDING else left
    rows = [next((geometry.extents[i] for i in reversed(group) if geometry.extents[i] > 1), 1) for group in groups]
    return Product(roles, (matrices[0], matrices[1]), roles.sizes(stage), (vectors[0], vectors[1]), dtype,
                   instruction.dynamic, (rows[0], rows[1]), store_width(geometry, roles))


def store_width(geometry: Geometry, roles: MatrixRoles) -> int:
    """Return how many outputs a lane stores at a time: it holds pairs along n, which may be neighbours in memory."""
    last = next((i for i in reversed(geometry.spatial) if geometry.extents[i] > 1), None)
    paired = bool(roles.n) and last == roles.n[-1] and geometry.extents[last] % PAIR == 0
    return PAIR if paired else 1


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
    most = device.limits.most_threads // device.vector_width
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
    choices = {
        "threads": shape.warps * ctx.device.vector_width, "block_m": shape.block[0], "block_n": shape.block[1],
        "block_k": shape.block[2], "warp_m": shape.warp[0], "warp_n": shape.warp[1], "stages": shape.stages,
        "async": int(ahead and shape.stages > 1), "raster": shape.raster, "dynamic": int(made.dynamic),
        "store": made.store, **({"tf32": 1} if made.dtype == TF32 else {}),
        **({"swapped": 1} if made.roles.swapped else {}),
        f"vector:{made.roles.left.tensor}": shape.vectors[0], f"vector:{made.roles.right.tensor}": shape.vectors[1],
    }  # fmt: skip
    staged = (made.roles.left.tensor, made.roles.right.tensor)
    return ctx.program("gpu.tensor", tiles, tuple(choices.items()), staged)


#: Short names of dtypes in TVM's intrinsics.
_SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int8": "i8", "int32": "i32"}
_LANES = 32


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
