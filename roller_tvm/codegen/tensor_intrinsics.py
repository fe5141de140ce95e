"""Tensor intrinsics that TVM 0.27 lacks: products of bfloat16, and of float32 read as tf32, by two mma of n=8.

mma reads the upper 19 bits of a float32. Cutting off the others would make every product too small, so operands are
rounded as they come into registers. ldmatrix moves words of four bytes if the rows of a tile lie along the sum. It
cannot turn tiles of them, so other tiles are read word by word.

A trace with them replays in processes that have them registered (``intrinsics.register``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.backend.cuda.op import cuda_func_call
from tvm.script import tirx as T
from tvm.tirx import Cast

#: Rows and columns of the sums; lanes of a warp; sums that a lane holds, and their dtype.
SIZE, WARP, SUMS, SUM_DTYPE = 16, 32, 8, "float32"
_ROUND = """
__device__ __forceinline__ float roller_round_tf32(float x) {
  unsigned int rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return __uint_as_float(rounded);
}
"""

#: (row, column) of a tile -> (lane, element of the lane).
Place = Callable[[Any, Any], tuple[Any, Any]]
#: Lane -> (row, column) at which the row of eight two-byte elements begins that the lane names to ldmatrix.
Rows = Callable[[Any], tuple[Any, Any]]


def of_sums(i: Any, j: Any) -> tuple[Any, Any]:
    """Return (lane, element of the lane) of an element of the sums, and of a tile of two-byte operands."""
    return i % 8 * 4 + j % 8 // 2, j // 8 * 4 + i // 8 * 2 + j % 2


def words_along(i: Any, j: Any) -> tuple[Any, Any]:
    """Return the place in a tile of four-byte words whose 16 rows lie along the sum, as ``Fragment`` lays it out."""
    return i % 8 * 4 + j % 4, j // 4 * 2 + i // 8


def words_across(i: Any, j: Any) -> tuple[Any, Any]:
    """Return the same for a tile whose 8 rows are terms of the sum."""
    return i * 4 + j % 8 // 2, j // 8 * 2 + j % 2


@dataclass(frozen=True)
class Kind:
    """A kind of operands."""

    name: str  # dtype and shape of the instruction: 'bf16', 'm16n8k16'
    shape: str
    dtype: str  # dtype of the operands in registers
    depth: int  # extent of the tiles along the sum
    along: Place  # places in a tile whose rows lie along the sum, and in one whose rows are terms of it
    across: Place

    @property
    def own(self) -> int:
        """Elements of an operand that a lane holds."""
        return SIZE * self.depth // WARP

    @property
    def ptx(self) -> str:
        """Name of the dtype in TVM's calls of mma."""
        return "fp16" if self.dtype == "float16" else self.name


#: float16 is known to TVM, but not with its operands swapped.
F16 = Kind("f16", "m16n8k16", "float16", 16, of_sums, of_sums)
BF16 = Kind("bf16", "m16n8k16", "bfloat16", 16, of_sums, of_sums)
TF32 = Kind("tf32", "m16n8k8", "float32", 8, words_along, words_across)


def load(kind: Kind, side: str, turned: bool) -> tuple[Any, Any]:
    """Return (description, implementation) of loading a tile from dynamic shared memory into registers.

    Parameters
    ----------
    kind : Kind
    side : {'a', 'b'}
    turned : bool
        True if the tile's rows are terms of the sum ('a') or run along n ('b').
    """
    terms = (side == "a") == turned
    place, shape = (kind.across, (kind.depth, SIZE)) if terms else (kind.along, (SIZE, kind.depth))
    rows, columns = shape
    own, dtype, depth = kind.own, kind.dtype, kind.depth

    @T.prim_func(s_tir=True)
    def described(to: T.handle, of: T.handle) -> None:
        tile = T.match_buffer(of, shape, dtype, align=64, offset_factor=depth, scope="shared.dyn")
        held = T.match_buffer(to, (WARP, own), dtype, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(tile[0:rows, 0:columns])
            T.writes(held[0:WARP, 0:own])
            for i, j in T.grid(rows, columns):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, element = T.meta_var(place(vi, vj))
                    T.reads(tile[vi, vj])
                    T.writes(held[lane, element])
                    held[lane, element] = tile[vi, vj]

    if kind is BF16:
        return described, _by_matrices(kind, shape, terms, _rows_of_two_bytes(turned))
    if terms:
        return described, _by_words(side)
    return described, _by_matrices(kind, shape, False, _rows_of_words(side))


def _rows_of_two_bytes(turned: bool) -> Rows:
    """Return the rows of four 8 x 8 matrices, which lie below one another first, or beside."""
    if turned:
        return lambda lane: (lane // 16 * 8 + lane % 8, lane % 16 // 8 * 8)
    return lambda lane: (lane % 16, lane // 16 * 8)


def _half(side: str, part: Any) -> tuple[Any, Any]:
    """Return (half of the rows, half of the terms): mma's left operand goes down the rows first, its right one not."""
    return (part % 2, part // 2) if side == "a" else (part // 2, part % 2)


def _rows_of_words(side: str) -> Rows:
    def row(lane: Any) -> tuple[Any, Any]:
        below, beside = _half(side, lane // 8)
        return below * 8 + lane % 8, beside * 4

    return row


def _by_matrices(kind: Kind, shape: tuple[int, int], swap: bool, row_of: Rows) -> Any:
    rows, columns = shape
    own, dtype, depth, rounds = kind.own, kind.dtype, kind.depth, kind is TF32

    def start(lane: Any, stride: Any) -> Any:
        row, column = row_of(lane)
        return row * stride + column

    @T.prim_func(s_tir=True)
    def implemented(to: T.handle, of: T.handle) -> None:
        stride = T.int32()
        one = T.int32()
        tile = T.match_buffer(
            of, shape, dtype, align=64, offset_factor=depth, scope="shared.dyn", strides=[stride, one]
        )
        held = T.match_buffer(to, (WARP, own), dtype, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(tile[0:rows, 0:columns])
            T.writes(held[0:WARP, 0:own])
            for lane in T.thread_binding(0, WARP, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        swap, 4, ".b16", held.data, held.elem_offset + own * lane, tile.access_ptr("r"),
                        start(lane, stride), dtype=dtype,
                    )
                )  # fmt: skip
                if rounds:
                    for element in T.unroll(own):
                        held[lane, element] = rounded(held[lane, element])

    return implemented


def _by_words(side: str) -> Any:
    depth, dtype, count = TF32.depth, TF32.dtype, TF32.own

    def outer(lane: Any, own: Any) -> Any:
        return _half(side, own)[0] * 8 + lane // 4

    def term(lane: Any, own: Any) -> Any:
        return _half(side, own)[1] * 4 + lane % 4

    @T.prim_func(s_tir=True)
    def implemented(to: T.handle, of: T.handle) -> None:
        stride = T.int32()
        one = T.int32()
        tile = T.match_buffer(
            of, (depth, SIZE), dtype, align=64, offset_factor=depth, scope="shared.dyn", strides=[stride, one]
        )
        held = T.match_buffer(to, (WARP, count), dtype, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(tile[0:depth, 0:SIZE])
            T.writes(held[0:WARP, 0:count])
            for lane in T.thread_binding(0, WARP, "threadIdx.x"):
                for own in T.unroll(count):
                    held[lane, own] = rounded(tile[term(lane, own), outer(lane, own)])

    return implemented


def rounded(x: Any) -> Any:
    """Return a float32 rounded to the nearest tf32."""
    return cuda_func_call("roller_round_tf32", x, source_code=_ROUND, return_type="float32")


def multiply(kind: Kind, left_turned: bool, right_turned: bool, swapped: bool = False) -> tuple[Any, Any]:
    """Return (description, implementation) of float32 sums of the products of two tiles.

    Parameters
    ----------
    swapped : bool
        True if the terms are written as right times left.
    """
    own, dtype, depth, shape, name = kind.own, kind.dtype, kind.depth, kind.shape, kind.ptx

    def left(i: Any, k: Any) -> tuple[Any, Any]:
        return kind.across(k, i) if left_turned else kind.along(i, k)

    def right(j: Any, k: Any) -> tuple[Any, Any]:
        return kind.along(j, k) if right_turned else kind.across(k, j)

    def wide(x: Any) -> Any:
        return x if dtype == SUM_DTYPE else Cast(SUM_DTYPE, x)

    def written(left: Any, right: Any) -> tuple[Any, Any]:
        return (right, left) if swapped else (left, right)

    @T.prim_func(s_tir=True)
    def described(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (WARP, own), dtype, align=64, offset_factor=SIZE, scope="warp")
        B = T.match_buffer(b, (WARP, own), dtype, align=64, offset_factor=SIZE, scope="warp")
        C = T.match_buffer(c, (WARP, SUMS), SUM_DTYPE, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            first, second = T.meta_var(written(A[0:WARP, 0:own], B[0:WARP, 0:own]))
            T.reads(C[0:WARP, 0:SUMS], first, second)
            T.writes(C[0:WARP, 0:SUMS])
            for i, j, k in T.grid(SIZE, SIZE, depth):
                with T.sblock("product"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    al, ao = T.meta_var(left(vi, vk))
                    bl, bo = T.meta_var(right(vj, vk))
                    cl, co = T.meta_var(of_sums(vi, vj))
                    x, y = T.meta_var(written(A[al, ao], B[bl, bo]))
                    T.reads(C[cl, co], x, y)
                    T.writes(C[cl, co])
                    C[cl, co] = C[cl, co] + wide(x) * wide(y)

    @T.prim_func(s_tir=True)
    def implemented(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (WARP, own), dtype, align=64, offset_factor=SIZE, scope="warp")
        B = T.match_buffer(b, (WARP, own), dtype, align=64, offset_factor=SIZE, scope="warp")
        C = T.match_buffer(c, (WARP, SUMS), SUM_DTYPE, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:WARP, 0:SUMS], A[0:WARP, 0:own], B[0:WARP, 0:own])
            T.writes(C[0:WARP, 0:SUMS])
            for lane in T.thread_binding(0, WARP, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.mma(
                        shape, "row", "col", name, name, "fp32", A.data, A.elem_offset + own * lane,
                        B.data, B.elem_offset + own * lane, C.data, C.elem_offset + SUMS * lane, False, dtype=SUM_DTYPE,
                    )
                )  # fmt: skip
                T.evaluate(
                    T.ptx_legacy.mma(
                        shape, "row", "col", name, name, "fp32", A.data, A.elem_offset + own * lane,
                        B.data, B.elem_offset + own * lane + own // 2, C.data,
                        C.elem_offset + SUMS * lane + SUMS // 2, False, dtype=SUM_DTYPE,
                    )
                )  # fmt: skip

    return described, implemented


#: Name -> (function that makes (description, implementation), its arguments).
INTRINSICS: dict[str, tuple[Callable[..., tuple[Any, Any]], tuple[Any, ...]]] = {
    **{
        f"mma_ldmatrix_{kind.name}_{side}{'_trans' if turned else ''}_dyn": (load, (kind, side, turned))
        for kind in (BF16, TF32) for side in "ab" for turned in (False, True)
    },
    **{
        f"mma_{kind.name}{kind.name}f32{'_trans_a' if left else ''}{'_trans_b' if right else ''}":
            (multiply, (kind, left, right))
        for kind in (BF16, TF32) for left in (False, True) for right in (False, True)
    },
    **{
        f"mma_{kind.name}{kind.name}f32{'_trans_a' if left else ''}{'_trans_b' if right else ''}_swapped":
            (multiply, (kind, left, right, True))
        for kind in (F16, BF16, TF32) for left in (False, True) for right in (False, True)
    },
}  # fmt: skip
