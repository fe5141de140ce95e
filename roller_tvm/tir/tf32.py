"""Tensor intrinsics for float32 read as tf32, which TVM 0.27 lacks: 16 x 16 x 8 tiles, by two mma.m16n8k8.

mma reads the upper 19 bits of an operand. Cutting off the others would make every product too small, so operands are
rounded as they come into registers. ldmatrix moves words of four bytes if the rows of a tile lie along the sum. It
cannot turn tiles of them, so other tiles are read word by word.

A trace with them replays in processes that have them registered (``intrinsics.register``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.backend.cuda.op import cuda_func_call
from tvm.script import tirx as T

from .mma import LANES, SIZE, product

#: Depth of a tile along the sum, and elements of an operand that a lane holds.
DEPTH, OWN = 8, 4
DTYPE = "float32"
_ROUND = """
__device__ __forceinline__ float roller_round_tf32(float x) {
  unsigned int rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return __uint_as_float(rounded);
}
"""


def rounded(x: Any) -> Any:
    """Return a float32 rounded to the nearest tf32."""
    return cuda_func_call("roller_round_tf32", x, source_code=_ROUND, return_type=DTYPE)


def along(i: Any, j: Any) -> tuple[Any, Any]:
    """Return (lane, element of the lane) in a tile of 16 rows along the sum, as ``Fragment`` lays it out."""
    return i % 8 * 4 + j % 4, j // 4 * 2 + i // 8


def across(i: Any, j: Any) -> tuple[Any, Any]:
    """Return the same for a tile whose 8 rows are terms of the sum."""
    return i * 4 + j % 8 // 2, j // 8 * 2 + j % 2


def load(side: str, turned: bool) -> tuple[Any, Any]:
    """Return (description, implementation) of loading a tile from dynamic shared memory into registers.

    Parameters
    ----------
    side : {'a', 'b'}
    turned : bool
        True if the tile's rows are terms of the sum ('a') or run along n ('b').
    """
    terms = (side == "a") == turned
    shape, place = ((DEPTH, SIZE), across) if terms else ((SIZE, DEPTH), along)
    rows, columns = shape

    # mma's left operand goes down the rows first, its right one along the sum.
    def half(part: Any) -> tuple[Any, Any]:
        return (part % 2, part // 2) if side == "a" else (part // 2, part % 2)

    def row(lane: Any) -> Any:
        return half(lane // 8)[0] * 8 + lane % 8

    def column(lane: Any) -> Any:
        return half(lane // 8)[1] * 4

    def outer(lane: Any, own: Any) -> Any:
        return half(own)[0] * 8 + lane // 4

    def term(lane: Any, own: Any) -> Any:
        return half(own)[1] * 4 + lane % 4

    @T.prim_func(s_tir=True)
    def described(to: T.handle, of: T.handle) -> None:
        tile = T.match_buffer(of, shape, DTYPE, align=64, offset_factor=DEPTH, scope="shared.dyn")
        held = T.match_buffer(to, (LANES, OWN), DTYPE, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(tile[0:rows, 0:columns])
            T.writes(held[0:LANES, 0:OWN])
            for i, j in T.grid(rows, columns):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, own = T.meta_var(place(vi, vj))
                    T.reads(tile[vi, vj])
                    T.writes(held[lane, own])
                    held[lane, own] = tile[vi, vj]

    @T.prim_func(s_tir=True)
    def by_matrices(to: T.handle, of: T.handle) -> None:
        stride = T.int32()
        one = T.int32()
        tile = T.match_buffer(
            of, (SIZE, DEPTH), DTYPE, align=64, offset_factor=DEPTH, scope="shared.dyn", strides=[stride, one]
        )
        held = T.match_buffer(to, (LANES, OWN), DTYPE, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(tile[0:SIZE, 0:DEPTH])
            T.writes(held[0:LANES, 0:OWN])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        False, 4, ".b16", held.data, held.elem_offset + OWN * lane, tile.access_ptr("r"),
                        row(lane) * stride + column(lane), dtype=DTYPE,
                    )
                )  # fmt: skip
                for own in T.unroll(OWN):
                    held[lane, own] = rounded(held[lane, own])

    @T.prim_func(s_tir=True)
    def by_words(to: T.handle, of: T.handle) -> None:
        stride = T.int32()
        one = T.int32()
        tile = T.match_buffer(
            of, (DEPTH, SIZE), DTYPE, align=64, offset_factor=DEPTH, scope="shared.dyn", strides=[stride, one]
        )
        held = T.match_buffer(to, (LANES, OWN), DTYPE, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(tile[0:DEPTH, 0:SIZE])
            T.writes(held[0:LANES, 0:OWN])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                for own in T.unroll(OWN):
                    held[lane, own] = rounded(tile[term(lane, own), outer(lane, own)])

    return described, by_words if terms else by_matrices


def multiply(left_turned: bool, right_turned: bool) -> tuple[Any, Any]:
    """Return (description, implementation) of float32 sums of the products of two tiles."""

    def left(i: Any, k: Any) -> tuple[Any, Any]:
        return across(k, i) if left_turned else along(i, k)

    def right(j: Any, k: Any) -> tuple[Any, Any]:
        return along(j, k) if right_turned else across(k, j)

    return product("m16n8k8", "tf32", DTYPE, DEPTH, left, right)


#: Name -> (function that makes (description, implementation), its arguments).
INTRINSICS: dict[str, tuple[Callable[..., tuple[Any, Any]], tuple[Any, ...]]] = {
    **{
        f"mma_ldmatrix_tf32_{side}{'_trans' if turned else ''}_dyn": (load, (side, turned))
        for side in "ab" for turned in (False, True)
    },
    **{
        f"mma_tf32tf32f32{'_trans_a' if left else ''}{'_trans_b' if right else ''}": (multiply, (left, right))
        for left in (False, True) for right in (False, True)
    },
}  # fmt: skip
