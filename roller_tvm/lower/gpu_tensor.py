"""Recipe gpu.tensor as schedule steps::

    blocks of m, n -> blockIdx   warps -> threadIdx.y   k.0  k.1  m.f n.f  [fragment m n k]    product, in fragments
       lanes -> threadIdx.x  elements of a lane                                                output, at warps
                                                        at k.0: threads, vectors               tiles, in shared memory
                                                             at k.1: [fragment]                fragments, in registers
"""

from __future__ import annotations

from ..expr import TensorExpression
from ..expr.matrices import matrix_roles
from ..model.gpu_tensor import DEPTH_BYTES, FRAGMENT, PADDING_BYTES
from ..plan.program import RProgram
from .gpu import fuse
from .steps import Bind, CacheRead, ComputeAt, Fuse, Inline, Reorder, Split, Step, StorageAlign, Unroll, Vectorize
from .tensor_steps import Fragment, Matrices, Pipeline, StoreAt, StoreVector, Tensorize, Tile, UnrollCompiled

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
