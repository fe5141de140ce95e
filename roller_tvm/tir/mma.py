"""Parts shared by our tensor intrinsics: the product of two 16-wide tiles in a warp's registers, by two mma of n=8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T
from tvm.tirx import Cast

#: Rows and columns of the sums; lanes of a warp; sums that a lane holds, and their dtype.
SIZE, LANES, SUMS, SUM_DTYPE = 16, 32, 8, "float32"

#: (row, column) of a tile -> (lane, element of the lane).
Place = Callable[[Any, Any], tuple[Any, Any]]


def of_sums(i: Any, j: Any) -> tuple[Any, Any]:
    """Return (lane, element of the lane) of an element of the sums."""
    return i % 8 * 4 + j % 8 // 2, j // 8 * 4 + i // 8 * 2 + j % 2


def product(shape: str, kind: str, dtype: str, depth: int, left: Place, right: Place) -> tuple[Any, Any]:
    """Return (description, implementation) of float32 sums of the products of two tiles.

    Parameters
    ----------
    shape, kind : str
        Shape and dtype of the instruction: 'm16n8k16', 'bf16'.
    dtype : str
        Dtype of the operands in registers.
    depth : int
        Extent of the tiles along the sum.
    left, right : function
        Position of an element: (row, term) of the left operand, (column, term) of the right one.
    """
    own = SIZE * depth // LANES

    def wide(x: Any) -> Any:
        return x if dtype == SUM_DTYPE else Cast(SUM_DTYPE, x)

    @T.prim_func(s_tir=True)
    def described(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (LANES, own), dtype, align=64, offset_factor=SIZE, scope="warp")
        B = T.match_buffer(b, (LANES, own), dtype, align=64, offset_factor=SIZE, scope="warp")
        C = T.match_buffer(c, (LANES, SUMS), SUM_DTYPE, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:SUMS], A[0:LANES, 0:own], B[0:LANES, 0:own])
            T.writes(C[0:LANES, 0:SUMS])
            for i, j, k in T.grid(SIZE, SIZE, depth):
                with T.sblock("product"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    al, ao = T.meta_var(left(vi, vk))
                    bl, bo = T.meta_var(right(vj, vk))
                    cl, co = T.meta_var(of_sums(vi, vj))
                    T.reads(C[cl, co], A[al, ao], B[bl, bo])
                    T.writes(C[cl, co])
                    C[cl, co] = C[cl, co] + wide(A[al, ao]) * wide(B[bl, bo])

    @T.prim_func(s_tir=True)
    def implemented(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (LANES, own), dtype, align=64, offset_factor=SIZE, scope="warp")
        B = T.match_buffer(b, (LANES, own), dtype, align=64, offset_factor=SIZE, scope="warp")
        C = T.match_buffer(c, (LANES, SUMS), SUM_DTYPE, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:SUMS], A[0:LANES, 0:own], B[0:LANES, 0:own])
            T.writes(C[0:LANES, 0:SUMS])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.mma(
                        shape, "row", "col", kind, kind, "fp32", A.data, A.elem_offset + own * lane,
                        B.data, B.elem_offset + own * lane, C.data, C.elem_offset + SUMS * lane, False, dtype=SUM_DTYPE,
                    )
                )  # fmt: skip
                T.evaluate(
                    T.ptx_legacy.mma(
                        shape, "row", "col", kind, kind, "fp32", A.data, A.elem_offset + own * lane,
                        B.data, B.elem_offset + own * lane + own // 2, C.data,
                        C.elem_offset + SUMS * lane + SUMS // 2, False, dtype=SUM_DTYPE,
                    )
                )  # fmt: skip

    return described, implemented
