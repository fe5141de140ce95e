"""Tiles of a GPU's kernel along axes of its grid that it does not use itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from .nodes import accesses, key, variables
from .open_axes import number
from .open_places import loops, refused

#: Axes of a grid; the most blocks along all but the first (CUDA C++ Programming Guide, compute capabilities).
GRID, MOST = ("blockIdx.x", "blockIdx.y", "blockIdx.z"), 65535


#: Number of a tile along an axis, how many there are, a variable for where the tile begins, and where that is.
Tile = tuple[Any, Any, Any, Any]


def on_grid(body: Any, tiles: Callable[[], Sequence[Tile]]) -> Any:
    """Return kernels with a part of their grid for each tile.

    Parameters
    ----------
    body : Stmt
        One kernel or several in turn; loops are bound to threads.
    tiles : function
        Makes the tiles along the open axes.

    Raises
    ------
    MeasureError
        The grid has too few axes.
    """
    import tvm_ffi
    from tvm import tirx

    parts = []
    for part in body.seq if type(body).__name__ == "SeqStmt" else [body]:
        made = list(tiles())
        starts = {key(start): tirx.Var(str(start.name), str(start.ty.dtype)) for _, _, start, _ in made}
        own = tvm_ffi.structural_map(part, (tirx.Var, lambda v, starts=starts: starts.get(key(v), v)), order="post")
        parts.append(_one(own, [(t, count, starts[key(start)], begin) for t, count, start, begin in made]))
    return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]


def _one(body: Any, tiles: Sequence[Tile]) -> Any:
    import tvm_ffi
    from tvm import tirx

    own = {_tag(loop): number(loop.extent) for loop in loops(body) if _tag(loop)}
    used = [tag for tag in GRID if tag in own]
    free = [tag for tag in GRID if tag not in own]
    if not own or len(tiles) > len(free):
        raise refused("the grid has no axis for each open one")
    renamed: dict[str, str] = {}
    if used and used[0] == GRID[0] and (own[GRID[0]] or MOST + 1) <= MOST:  # the open axis may be the longest
        renamed, free = {GRID[0]: free[0]}, [GRID[0], *free[1:]]

    def loop(node: Any) -> Any:
        if (tag := _tag(node)) not in renamed:
            return node
        iv = node.thread_binding
        bound = tirx.IterVar(iv.dom, iv.var, iv.iter_type, renamed[tag])
        return tirx.For(node.loop_var, node.min, node.extent, node.kind, node.body, bound, node.annotations)

    body = tvm_ffi.structural_map(body, (tirx.For, loop), order="post")
    for tag, (tile, count, start, begin) in zip(free, tiles, strict=False):
        bound = tirx.IterVar(None, tirx.Var(tag, str(tile.ty.dtype)), tirx.IterVar.ThreadIndex, tag)
        inner = tirx.SeqStmt([tirx.Bind(start, begin), body])
        body = tirx.For(tile, tirx.const(0, str(tile.ty.dtype)), count, tirx.ForKind.THREAD_BINDING, inner, bound)
    return body


def require_alignment(blocks: Sequence[tuple[Any, Any]], vectors: Sequence[Any], opened: Mapping[int, Any]) -> None:
    """Check that vectors of tensors with open extents are aligned, whatever the extents.

    Parameters
    ----------
    blocks : sequence of (SBlock, SBlockRealize)
    vectors : sequence of For
        Loops that are vectors.
    opened : mapping of int to Buffer
        Buffers of the schedule, by key -> those with open extents.

    Raises
    ------
    MeasureError
        A vector may begin between two aligned places.
    """
    lanes = {key(loop.loop_var): number(loop.extent) or 0 for loop in vectors}
    for block, realize in blocks:
        own = [lanes[v] for value in realize.iter_values for v in variables(value) if v in lanes]
        for buffer, _ in accesses(block) if own else ():
            shape = [number(extent) for extent in opened[key(buffer)].shape] if key(buffer) in opened else []
            last = max((d for d, extent in enumerate(shape) if extent is None), default=None)
            behind = prod(extent or 1 for extent in shape[last + 1 :]) if last is not None else 0
            if any(n == 0 or behind % n for n in own):
                raise refused(f"vectors of '{buffer.name}' are not aligned at every size")


def _tag(loop: Any) -> str:
    """The axis of threads or blocks that a loop is bound to, or ''."""
    return "" if loop.thread_binding is None else str(loop.thread_binding.thread_tag)
