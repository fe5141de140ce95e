"""Kernels of fixed extents made kernels of open ones: loops of tiles, and a choice between tiles by the size.

A function with its open axes set to the extents of a tile is scheduled like any other. In a loop around it the tile
moves along the axis. The last tile does not stand over the edge: it begins earlier and computes some elements of the
tile before it once more, so no tile is guarded::

    for t in range(ceildiv(n, 8)):
        start = min(t * 8, n - 8)
        rows start to start + 8

Or nothing is computed twice: kernels of smaller tiles compute in turn the rest that larger ones leave (`Turn`).

An axis that a reduction runs along is not cut in tiles. Its one loop gets the open extent; or, if a schedule goes along
it in vectors, the loop of the vectors does. The last vector begins early as well, and a sum leaves out the elements
that the vector before it has added.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..te.numbering import PARALLEL, SERIAL, VECTORIZED
from .nodes import REDUCTION, accesses, analyzer_of_tvm, buffer_of, key, root_of, tensors_of, variables
from .open_axes import OpenAxes, like, number
from .open_choice import TiledKernel, packs
from .open_grid import on_grid, require_alignment
from .open_places import Places, loops, realized, refused
from .open_vectors import OpenVectors


@dataclass(frozen=True)
class Turn:
    """The place of a kernel among those that run one after the other, each on what the one before leaves over.

    Parameters
    ----------
    larger : int
        Tile of the kernel before, a multiple of this one's; 0 for the first.
    """

    larger: int = 0

    def rest(self, extent: Any) -> tuple[Any, Any]:
        """Return where a kernel begins, and how many elements are left for it."""
        from tvm import tirx

        if not self.larger:
            return tirx.const(0, str(extent.ty.dtype)), extent
        larger = tirx.const(self.larger, str(extent.ty.dtype))
        return extent // larger * larger, extent % larger

def tiled_kernel(
    axes: OpenAxes, extents: Sequence[int], scheduled: Any, parallel: bool, turn: Turn | None = None,
    grid: bool = False,
) -> TiledKernel:  # fmt: skip
    """Return the kernel of open extents made of a schedule of ``axes.fixed(extents)``.

    Parameters
    ----------
    axes : OpenAxes
    extents : sequence of int
        Extents of the tile; of an axis that is not sliced, a stand-in that nothing divides.
    scheduled : PrimFunc
    parallel : bool
        True: tiles run in parallel, and the schedule's own loops on one core. False: as scheduled.
    turn : Turn, optional
        Of a kernel that leaves what is less than a tile to another.
    grid : bool
        Whether it is a GPU's, whose grid the tiles are a part of.

    Raises
    ------
    MeasureError
        The schedule cannot be moved along an axis.
    """
    return _Tiling(axes, extents, scheduled, turn, grid).kernel(parallel)

class _Tiling:
    def __init__(
        self, axes: OpenAxes, extents: Sequence[int], scheduled: Any, turn: Turn | None, grid: bool
    ) -> None:
        from tvm import tirx

        self.axes, self.extents, self.turn, self.grid = axes, list(extents), turn, grid
        self.root = root_of(scheduled)
        self.params = dict(zip(map(key, tensors_of(scheduled)), tensors_of(axes.func), strict=True))
        #: Sizes that the schedule has as numbers of its own -> those of the function.
        sizes = dict(zip(map(key, scheduled.params[len(self.params) :]), axes.symbols, strict=True))
        self.variables = {**self.params, **sizes}
        made = {key(buffer) for buffer in self.root.alloc_buffers}
        #: Buffers that hold all tiles: parameters, and what lies between a GPU's kernels.
        self.whole = set(self.params)
        if grid:
            self.whole |= {key(buffer) for buffer in self.root.alloc_buffers if buffer.scope() == "global"}
            made -= self.whole
        self.places = Places(axes, extents, scheduled, self.root.body, made, turn is not None)
        self.starts = [tirx.Var(f"start{n}", str(axis.extent.ty.dtype)) for n, axis in enumerate(axes.axes)]
        self.tile_loops: set[int] = set()
        self.vectors = OpenVectors(self.root.body, self.places)
        self.blocks = list(realized(self.vectors.body))

    def kernel(self, parallel: bool) -> TiledKernel:
        import tvm_ffi
        from tvm import s_tir, tirx

        body, replaced = self.vectors.body, dict[int, Any]()
        for buffer in self.root.alloc_buffers:
            dims = self.places.dims(buffer)
            if any(at is not None and (key(buffer) in self.whole or not self.places.moves(at)) for at in dims):
                shape = [
                    extent if at is None or (self.places.moves(at) and key(buffer) not in self.whole)
                    else self.axes.axes[at].extent
                    for at, extent in zip(dims, buffer.shape, strict=True)
                ]
                replaced[key(buffer)] = like(buffer, shape)
        open_loops = self.vectors.extents | self._open_loops(self.vectors.known)
        body = tvm_ffi.structural_map(body, (s_tir.SBlock, self._moved), order="post")
        body = tvm_ffi.structural_map(
            body,
            [
                (tirx.Var, lambda var: self.variables.get(key(var), replaced.get(key(var), var))),
                (tirx.For, lambda loop: self._loop(loop, open_loops, parallel)),
            ],
            order="post",
        )
        statements = list(body.seq) if type(body).__name__ == "SeqStmt" else [body]
        packing = tuple(s for s in statements if packs(s))
        rest = [s for s in statements if not packs(s)]
        body = rest[0] if len(rest) == 1 else tirx.SeqStmt(rest)
        moving = [at for at in range(len(self.axes.axes)) if self.places.moves(at)]
        if self.grid:
            every = [loop for loop in loops(self.vectors.body) if int(loop.kind) == VECTORIZED]
            require_alignment(self.blocks, every, self.params | replaced)
            body = on_grid(body, lambda: [self._tile(at) for at in moving])
        for at in () if self.grid else reversed(moving):
            body = self._wrapped(body, at, parallel)
        if parallel:
            body = _outermost_parallel(body, self._reducing())
        if not self.grid:
            _require_whole_sums(body)
        if self.turn is not None:  # no threads are asked for nothing
            every = [self.turn.rest(a.extent)[1] >= n for a, n in zip(self.axes.axes, self.extents, strict=True)]
            body = tirx.IfThenElse(tirx.all(*every), body, None)
        least = tuple(max(n if axis.sliced else 1, self.vectors.least.get(at, 1))
                      for at, (n, axis) in enumerate(zip(self.extents, self.axes.axes, strict=True)))  # fmt: skip
        allocated = tuple(replaced.get(key(b), b) for b in self.root.alloc_buffers)
        return TiledKernel(body, packing, allocated, least)
    def _moved(self, block: Any) -> Any:
        """The block with the start of its tile added to axes that move along parameters, or are computed with."""
        import tvm_ffi
        from tvm import ir, s_tir, tirx

        own = {key(iv.var): self.places.axis(iv.var) for iv in block.iter_vars}
        moving = {
            var: self.starts[at] * tirx.const(self.places.pace(var), str(self.starts[at].ty.dtype))
            if self.places.pace(var) > 1 else self.starts[at]
            for var, at in own.items() if at is not None and self.places.moves(at)
        }  # fmt: skip
        still_open = {var: at for var, at in own.items() if at is not None and not self.places.moves(at)}
        whole = {var: self.axes.axes[at].extent for var, at in still_open.items()}
        if not moving and not whole:
            return block
        starts = {key(self.starts[at]) for at in own.values() if self.places.moves(at) and at is not None}

        def shift(var: Any) -> Any:
            return var + moving[key(var)] if key(var) in moving else var

        def still(index: Any) -> Any:
            zero = tvm_ffi.structural_map(
                index, (tirx.Var, lambda v: tirx.const(0, str(v.ty.dtype)) if key(v) in starts else v), order="post"
            )
            return analyzer_of_tvm().simplify(zero)

        def load(node: Any) -> Any:
            if key(node.source) in self.whole:
                return node
            return tirx.BufferLoad(node.source, [still(i) for i in node.indices])

        def store(node: Any) -> Any:
            if key(node.buffer) in self.whole:
                return node
            return tirx.BufferStore(node.buffer, node.value, [still(i) for i in node.indices])

        def region(node: Any) -> Any:
            if key(buffer_of(node)) in self.whole:
                return node
            parts = [ir.Range.from_min_extent(still(r.min), r.extent) for r in node.region]
            return tirx.BufferRegion(buffer_of(node), parts)

        def moved(node: Any) -> Any:
            if node is None:
                return None
            node = tvm_ffi.structural_map(node, (tirx.Var, shift), order="post")
            kinds = [(ir.TensorLoad, load), (tirx.BufferStore, store), (ir.TensorRegion, region)]
            return tvm_ffi.structural_map(node, kinds, order="post")

        ivs = [self._iter(iv, whole) for iv in block.iter_vars]
        return s_tir.SBlock(
            ivs, [moved(r) for r in block.reads], [moved(w) for w in block.writes], block.name_hint,
            moved(block.body), moved(block.init), block.alloc_buffers, block.match_buffers, block.annotations,
        )  # fmt: skip

    def _iter(self, iv: Any, whole: dict[int, Any]) -> Any:
        from tvm import ir, tirx

        if key(iv.var) not in whole:
            return iv
        return tirx.IterVar(ir.Range.from_min_extent(iv.dom.min, whole[key(iv.var)]), iv.var, iv.iter_type)

    def _open_loops(self, known: set[int]) -> dict[int, Any]:
        """Loop -> open extent, for the loops along axes that are not cut."""
        every = {key(loop.loop_var): loop for loop in loops(self.vectors.body)}
        found: dict[int, Any] = {}
        for block, realize in self.blocks:
            if number(realize.predicate) != 1 and any(not axis.sliced for axis in self.axes.axes):
                raise refused(f"block '{block.name_hint}' checks the end of an axis")
            for iv, value in zip(block.iter_vars, realize.iter_values, strict=True):
                at = self.places.axis(iv.var)
                if at is None or self.places.moves(at) or key(iv.var) in known:
                    continue
                own = [v for v in variables(value) if v in every and number(every[v].extent) != 1]
                loop = every[own[0]] if len(own) == 1 else None
                if loop is None or number(loop.extent) != self.extents[at] or int(loop.kind) > PARALLEL:
                    raise refused(f"axis '{iv.var.name}' of block '{block.name_hint}' is cut in tiles")
                found[own[0]] = self.axes.axes[at].extent
        return found

    def _reducing(self) -> set[int]:
        """Loops that reductions run along."""
        return {
            loop for block, realize in self.blocks
            for iv, value in zip(block.iter_vars, realize.iter_values, strict=True) if int(iv.iter_type) == REDUCTION
            for loop in variables(value)
        }  # fmt: skip

    def _loop(self, loop: Any, opened: dict[int, Any], parallel: bool) -> Any:
        from tvm import tirx

        extent = opened.get(key(loop.loop_var), loop.extent)
        kind = SERIAL if parallel and int(loop.kind) == PARALLEL else loop.kind
        if extent is loop.extent and kind is loop.kind:
            return loop
        return tirx.For(loop.loop_var, loop.min, extent, kind, loop.body, loop.thread_binding, loop.annotations)

    def _wrapped(self, body: Any, at: int, in_order: bool) -> Any:
        """The statement with a loop of tiles around the innermost part that computes along an axis.

        `in_order` of the axes: around the loops of tiles along those behind it, so that memory is passed from front
        to back and the rows of a picture are shared among the cores.
        """
        touched = {
            id(block) for block, _ in self.blocks if any(self.places.axis(iv.var) == at for iv in block.iter_vars)
        }  # fmt: skip
        names = {str(block.name_hint) for block, _ in self.blocks if id(block) in touched}
        inner: set[int] = set()  # loops that belong to a tile
        for block, realize in self.blocks:
            if id(block) not in touched:
                continue
            for iv, value in zip(block.iter_vars, realize.iter_values, strict=True):
                if int(iv.iter_type) == REDUCTION or self.places.axis(iv.var) == at:
                    inner |= variables(value)
        if in_order:
            inner |= self.tile_loops
        return _wrap(body, names, inner | self._behind(touched, at), lambda part: self._tiles(part, at))

    def _behind(self, touched: set[int], at: int) -> set[int]:
        """Loops that stay within a tile, because memory's order says so: along dimensions behind the open one.

        A loop that chooses a part of something that all tiles read (weights) does not: its part stays near.
        """
        behind: set[int] = set()
        shared: set[int] = set()
        for block, realize in self.blocks:
            if id(block) not in touched:
                continue
            values = {
                key(iv.var): variables(value) for iv, value in zip(block.iter_vars, realize.iter_values, strict=True)
            }  # fmt: skip
            along = {key(iv.var) for iv in block.iter_vars if self.places.axis(iv.var) == at}
            written = {key(buffer_of(region)) for region in block.writes}
            for buffer, indices in accesses(block):
                used = [variables(index) & set(values) for index in indices]
                open_dims = [d for d, own in enumerate(used) if own & along]
                if not open_dims:
                    shared |= {loop for own in used for var in own for loop in values[var]}
                elif key(buffer) in written:
                    behind |= {loop for own in used[open_dims[-1] + 1 :] for var in own for loop in values[var]}
        return behind - shared

    def _tile(self, at: int) -> tuple[Any, Any, Any, Any]:
        """The number of a tile along an axis, how many there are, and a variable for where the tile begins."""
        from tvm import tirx

        axis, tile = self.axes.axes[at], self.extents[at]
        dtype = str(axis.extent.ty.dtype)
        t = tirx.Var(f"t_{axis.name}", dtype)
        if self.turn is not None:
            first, left = self.turn.rest(axis.extent)
            count, begin = left // tirx.const(tile, dtype), first + t * tirx.const(tile, dtype)
        elif tile == 1:
            count, begin = axis.extent, t
        else:
            count = (axis.extent + tirx.const(tile - 1, dtype)) // tirx.const(tile, dtype)
            begin = tirx.min(t * tirx.const(tile, dtype), axis.extent - tirx.const(tile, dtype))
        return t, count, self.starts[at], begin

    def _tiles(self, part: Any, at: int) -> Any:
        from tvm import tirx

        t, count, start, begin = self._tile(at)
        self.tile_loops.add(key(t))
        parts = list(part.seq) if type(part).__name__ == "SeqStmt" else [part]
        body = tirx.SeqStmt([tirx.Bind(start, begin), *parts])
        return tirx.For(t, tirx.const(0, str(t.ty.dtype)), count, SERIAL, body)


def _require_whole_sums(body: Any) -> None:
    """Refuse a schedule that shares a reduction among cores: they would write one result at a time."""
    shared = {key(loop.loop_var) for loop in loops(body) if int(loop.kind) == PARALLEL}
    for block, realize in realized(body):
        for iv, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if int(iv.iter_type) == REDUCTION and shared & variables(value):
                raise refused(f"'{block.name_hint}' shares its reduction along '{iv.var.name}' among cores")


def _wrap(node: Any, names: set[str], inner: set[int], around: Callable[[Any], Any]) -> Any:
    """Put `around` the innermost statement with all blocks of these names, no deeper than an `inner` loop."""
    from tvm import tirx

    kind = type(node).__name__
    if kind == "SeqStmt":
        parts = list(node.seq)
        own = [n for n, part in enumerate(parts) if _named(part, names)]
        first, last = own[0], own[-1] + 1
        if last - first == 1:
            made = _wrap(parts[first], names, inner, around)
        else:
            made = around(tirx.SeqStmt(parts[first:last]))
        parts[first:last] = [made]
        return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)
    if kind == "For" and int(node.kind) <= PARALLEL:
        whole = key(node.loop_var) in inner and number(node.extent) != 1 and int(node.kind) != PARALLEL
        if not whole:
            body = _wrap(node.body, names, inner, around)
            return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, None, node.annotations)
    return around(node)


def _named(statement: Any, names: set[str]) -> bool:
    return any(str(block.name_hint) in names for block, _ in realized(statement))


def _outermost_parallel(node: Any, reducing: set[int]) -> Any:
    """The statement with its outermost loop parallel, unless it is among those that reductions run along."""
    from tvm import tirx

    if type(node).__name__ == "SeqStmt":
        parts = list(node.seq)
        binds = [p for p in parts if type(p).__name__ == "Bind"]
        if binds:
            return node
        return tirx.SeqStmt([_outermost_parallel(part, reducing) for part in parts])
    if type(node).__name__ == "For" and int(node.kind) == SERIAL and key(node.loop_var) not in reducing:
        if number(node.extent) == 1:
            body = _outermost_parallel(node.body, reducing)
            return tirx.For(node.loop_var, node.min, node.extent, SERIAL, body, None, node.annotations)
        return tirx.For(node.loop_var, node.min, node.extent, PARALLEL, node.body, None, node.annotations)
    return node
