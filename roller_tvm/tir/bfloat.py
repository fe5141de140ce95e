"""Tensor intrinsics for bfloat16, which TVM 0.27 lacks: 16 x 16 tiles, by two mma.m16n8k16 and one ldmatrix.x4.

A trace with them replays in processes that have them registered (``intrinsics.register``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T

from .mma import LANES, SIZE, of_sums, product

OWN, DTYPE = 8, "bfloat16"


#: Operands are laid out in registers as the sums are.
place = of_sums


def load(side: str, turned: bool) -> tuple[Any, Any]:
    """Return (description, implementation) of an ldmatrix of a tile in dynamic shared memory.

    Parameters
    ----------
    side : {'a', 'b'}
    turned : bool
        True if the tile's rows run along the sum ('a') or along n ('b').
    """
    swap = (side == "a") == turned
    # Lanes name the rows of four 8 x 8 matrices, which lie below one another first, or beside.
    row = (lambda lane: lane // 16 * 8 + lane % 8) if turned else (lambda lane: lane % 16)
    column = (lambda lane: lane % 16 // 8 * 8) if turned else (lambda lane: lane // 16 * 8)

    @T.prim_func(s_tir=True)
    def described(to: T.handle, of: T.handle) -> None:
        tile = T.match_buffer(of, (SIZE, SIZE), DTYPE, align=64, offset_factor=SIZE, scope="shared.dyn")
        held = T.match_buffer(to, (LANES, OWN), DTYPE, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(tile[0:SIZE, 0:SIZE])
            T.writes(held[0:LANES, 0:OWN])
            for i, j in T.grid(SIZE, SIZE):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, own = T.meta_var(place(vi, vj))
                    T.reads(tile[vi, vj])
                    T.writes(held[lane, own])
                    held[lane, own] = tile[vi, vj]

    @T.prim_func(s_tir=True)
    def implemented(to: T.handle, of: T.handle) -> None:
        stride = T.int32()
        one = T.int32()
        tile = T.match_buffer(
            of, (SIZE, SIZE), DTYPE, align=64, offset_factor=SIZE, scope="shared.dyn", strides=[stride, one]
        )
        held = T.match_buffer(to, (LANES, OWN), DTYPE, align=64, offset_factor=SIZE, scope="warp")
        with T.sblock("root"):
            T.reads(tile[0:SIZE, 0:SIZE])
            T.writes(held[0:LANES, 0:OWN])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        swap, 4, ".b16", held.data, held.elem_offset + OWN * lane, tile.access_ptr("r"),
                        row(lane) * stride + column(lane), dtype=DTYPE,
                    )
                )  # fmt: skip

    return described, implemented


def multiply(left_turned: bool, right_turned: bool) -> tuple[Any, Any]:
    """Return (description, implementation) of float32 sums of the products of two tiles."""

    def left(i: Any, k: Any) -> tuple[Any, Any]:
        return place(k, i) if left_turned else place(i, k)

    def right(j: Any, k: Any) -> tuple[Any, Any]:
        return place(j, k) if right_turned else place(k, j)

    return product("m16n8k16", "bf16", DTYPE, SIZE, left, right)


#: Name -> (function that makes (description, implementation), its arguments).
INTRINSICS: dict[str, tuple[Callable[..., tuple[Any, Any]], tuple[Any, ...]]] = {
    **{
        f"mma_ldmatrix_bf16_{side}{'_trans' if turned else ''}_dyn": (load, (side, turned))
        for side in "ab" for turned in (False, True)
    },
    **{
        f"mma_bf16bf16f32{'_trans_a' if left else ''}{'_trans_b' if right else ''}": (multiply, (left, right))
        for left in (False, True) for right in (False, True)
    },
}  # fmt: skip
