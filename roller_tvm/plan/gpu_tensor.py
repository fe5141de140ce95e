"""Construction of matrix products on tensor cores: tiles of whole fragments, as many buffers as the latency needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, gcd

from ..device import DeviceSpec
from ..expr.matrices import MatrixRoles, matrix_roles, run_along
from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry, Operand
from ..model.gpu_tensor import (
    DEPTH_BYTES,
    FRAGMENT,
    PADDING_BYTES,
    TF32,
    Matrix,
    TensorShape,
    shared_bytes,
    tensor_estimate,
    tensor_registers,
)
from ..model.registers import FETCHES, usable_registers
from ..model.storage import VECTOR_ALIGNMENT
from .align import Rejection, capacity
from .features import Features
from .fetching import INDEXED
from .gpu_direct import linear_tile
from .gpu_tiled import COPY_LEAST
from .program import RProgram
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
