"""Kernels of fixed extents made kernels of open ones: loops of tiles, and a choice between tiles by the size.

A function with its open axes set to the extents of a tile is scheduled like any other. In a loop around it the tile
moves along the axis. The last tile does not stand over the edge: it begins earlier and computes some elements of the
tile before it once more, so no tile is guarded::

    for t in range(ceildiv(n, 8)):
        start = min(t * 8, n - 8)
        rows start to start + 8

An axis that a reduction runs along is not cut: its one loop gets the open extent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import MeasureError
from .nodes import PACKING, REDUCTION, access_of, buffer_of, key, parameters, root_of, structurally_equal, variables
from .open_axes import OpenAxes, like, number

SERIAL, PARALLEL = 0, 1


@dataclass(frozen=True)
class TiledKernel:
    """A kernel that computes any size from its tile on.

    Parameters
    ----------
    body : Stmt
    packing : tuple of Stmt
        Statements that pack its constants.
    allocated : tuple of Buffer
        Buffers of both.
    """

    body: Any
    packing: tuple[Any, ...]
    allocated: tuple[Any, ...]


def tiled_kernel(axes: OpenAxes, extents: Sequence[int], scheduled: Any, parallel: bool) -> TiledKernel:
    """Return the kernel of open extents made of a schedule of ``axes.fixed(extents)``.

    Parameters
    ----------
    axes : OpenAxes
    extents : sequence of int
        Extents of the tile; of an axis that is not sliced, a stand-in that nothing divides.
    scheduled : PrimFunc
    parallel : bool
        True: tiles run in parallel, and the schedule's own loops on one core. False: as scheduled.

    Raises
    ------
    MeasureError
        The schedule cannot be moved along an axis.
    """
    return _Tiling(axes, extents, scheduled).kernel(parallel)


def _refused(what: str) -> MeasureError:
    return MeasureError(what, where="open extents", kind="schedule error", remedy="another plan is tried")


class _Tiling:
    def __init__(self, axes: OpenAxes, extents: Sequence[int], scheduled: Any) -> None:
        from tvm import tirx

        self.axes, self.extents = axes, list(extents)
        self.root = root_of(scheduled)
        self.params = dict(zip(map(key, parameters(scheduled)), parameters(axes.func), strict=True))
        self.places: dict[Any, int] = {}
        for param, old in zip(parameters(scheduled), parameters(axes.func), strict=True):
            self.places |= {("dim", key(param), d): at for d, at in enumerate(axes.dims(old)) if at is not None}
        self.blocks = list(_realized(self.root.body))
        self._infer()
        self.starts = [tirx.Var(f"start{n}", str(axis.extent.ty.dtype)) for n, axis in enumerate(axes.axes)]
        self._check()

    def _infer(self) -> None:
        """Find the open axes of blocks and of buffers in between, from those of the parameters."""
        more = True
        while more:
            before = len(self.places)
            for block, _ in self.blocks:
                own = {key(iv.var) for iv in block.iter_vars}
                for buffer, indices in _accesses(block):
                    for d, index in enumerate(indices):
                        dim, axis = ("dim", key(buffer), d), ("axis", key(index))
                        if key(index) not in own:
                            continue
                        known, other = self.places.get(dim), self.places.get(axis)
                        if known is not None and other is not None and known != other:
                            raise _refused(f"block '{block.name_hint}' has one loop for two open axes")
                        if known is not None:
                            self.places[axis] = known
                        elif other is not None and key(buffer) not in self.params:
                            self.places[dim] = other
            more = len(self.places) > before

    def _axis(self, var: Any) -> int | None:
        return self.places.get(("axis", key(var)))

    def _moves(self, at: int | None) -> bool:
        return at is not None and self.axes.axes[at].sliced

    def _check(self) -> None:
        made = {key(buffer) for buffer in self.root.alloc_buffers}
        for block, _ in self.blocks:
            reduces = any(int(iv.iter_type) == REDUCTION for iv in block.iter_vars)
            for region in block.writes:
                buffer = buffer_of(region)
                again = any(
                    self._moves(at) and self.extents[at] > 1
                    for d in range(len(buffer.shape))
                    if (at := self.places.get(("dim", key(buffer), d))) is not None
                )
                if reduces and again and key(buffer) not in made:
                    raise _refused(f"'{block.name_hint}' adds up in its result, which tiles share")
            if not all(key(i.var) for i in block.iter_vars):
                raise _refused("an axis without a variable")

    def kernel(self, parallel: bool) -> TiledKernel:
        import tvm_ffi
        from tvm import s_tir, tirx

        body, replaced = self.root.body, {}
        for buffer in self.root.alloc_buffers:
            dims = [self.places.get(("dim", key(buffer), d)) for d in range(len(buffer.shape))]
            if any(at is not None and not self._moves(at) for at in dims):
                shape = [
                    extent if at is None or self._moves(at) else self.axes.axes[at].extent
                    for at, extent in zip(dims, buffer.shape, strict=True)
                ]
                replaced[key(buffer)] = like(buffer, shape)
        open_loops = self._open_loops()
        body = tvm_ffi.structural_map(body, (s_tir.SBlock, self._moved), order="post")
        body = tvm_ffi.structural_map(
            body,
            [
                (tirx.Var, lambda var: self.params.get(key(var), replaced.get(key(var), var))),
                (tirx.For, lambda loop: self._loop(loop, open_loops, parallel)),
            ],
            order="post",
        )
        statements = list(body.seq) if type(body).__name__ == "SeqStmt" else [body]
        packing = tuple(s for s in statements if _packs(s))
        rest = [s for s in statements if not _packs(s)]
        body = rest[0] if len(rest) == 1 else tirx.SeqStmt(rest)
        for at in reversed(range(len(self.axes.axes))):
            if self._moves(at):
                body = self._wrapped(body, at)
        if parallel:
            body = _outermost_parallel(body)
        allocated = tuple(replaced.get(key(b), b) for b in self.root.alloc_buffers)
        return TiledKernel(body, packing, allocated)

    def _moved(self, block: Any) -> Any:
        """The block with the start of its tile added to axes that move along parameters, or are computed with."""
        import tvm_ffi
        from tvm import ir, s_tir, tirx

        own = {key(iv.var): self._axis(iv.var) for iv in block.iter_vars}
        moving = {var: self.starts[at] for var, at in own.items() if at is not None and self._moves(at)}
        whole = {var: self.axes.axes[at].extent for var, at in own.items() if at is not None and not self._moves(at)}
        if not moving and not whole:
            return block
        starts = {key(start) for start in moving.values()}

        def shift(var: Any) -> Any:
            return var + moving[key(var)] if key(var) in moving else var

        def still(index: Any) -> Any:
            zero = tvm_ffi.structural_map(
                index, (tirx.Var, lambda v: tirx.const(0, str(v.ty.dtype)) if key(v) in starts else v), order="post"
            )
            return _simple(zero)

        def load(node: Any) -> Any:
            if key(node.source) in self.params:
                return node
            return tirx.BufferLoad(node.source, [still(i) for i in node.indices])

        def store(node: Any) -> Any:
            if key(node.buffer) in self.params:
                return node
            return tirx.BufferStore(node.buffer, node.value, [still(i) for i in node.indices])

        def region(node: Any) -> Any:
            if key(buffer_of(node)) in self.params:
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

    def _open_loops(self) -> dict[int, Any]:
        """Loop -> open extent, for the loops along axes that are not cut."""
        loops = {key(loop.loop_var): loop for loop in _loops(self.root.body)}
        found: dict[int, Any] = {}
        for block, realize in self.blocks:
            for iv, value in zip(block.iter_vars, realize.iter_values, strict=True):
                at = self._axis(iv.var)
                if at is None or self._moves(at):
                    continue
                own = [v for v in variables(value) if v in loops and number(loops[v].extent) != 1]
                if len(own) != 1 or number(loops[own[0]].extent) != self.extents[at] or int(loops[own[0]].kind) > 1:
                    raise _refused(f"axis '{iv.var.name}' of block '{block.name_hint}' is cut in tiles")
                found[own[0]] = self.axes.axes[at].extent
        return found

    def _loop(self, loop: Any, opened: dict[int, Any], parallel: bool) -> Any:
        from tvm import tirx

        extent = opened.get(key(loop.loop_var), loop.extent)
        kind = SERIAL if parallel and int(loop.kind) == PARALLEL else loop.kind
        if extent is loop.extent and kind is loop.kind:
            return loop
        return tirx.For(loop.loop_var, loop.min, extent, kind, loop.body, loop.thread_binding, loop.annotations)

    def _wrapped(self, body: Any, at: int) -> Any:
        """The statement with a loop of tiles around the innermost part that computes along an axis."""
        touched = {
            id(block) for block, _ in self.blocks if any(self._axis(iv.var) == at for iv in block.iter_vars)
        }  # fmt: skip
        names = {str(block.name_hint) for block, _ in self.blocks if id(block) in touched}
        inner: set[int] = set()  # loops that belong to a tile
        for block, realize in self.blocks:
            if id(block) not in touched:
                continue
            for iv, value in zip(block.iter_vars, realize.iter_values, strict=True):
                if int(iv.iter_type) == REDUCTION or self._axis(iv.var) == at:
                    inner |= variables(value)
        return _wrap(body, names, inner, lambda part: self._tiles(part, at))

    def _tiles(self, part: Any, at: int) -> Any:
        from tvm import tirx

        axis, tile, start = self.axes.axes[at], self.extents[at], self.starts[at]
        dtype = str(axis.extent.ty.dtype)
        t = tirx.Var(f"t_{axis.name}", dtype)
        if tile == 1:
            count, begin = axis.extent, t
        else:
            count = (axis.extent + tirx.const(tile - 1, dtype)) // tirx.const(tile, dtype)
            begin = tirx.min(t * tirx.const(tile, dtype), axis.extent - tirx.const(tile, dtype))
        parts = list(part.seq) if type(part).__name__ == "SeqStmt" else [part]
        body = tirx.SeqStmt([tirx.Bind(start, begin), *parts])
        return tirx.For(t, tirx.const(0, dtype), count, SERIAL, body)


def _wrap(node: Any, names: set[str], inner: set[int], around: Callable[[Any], Any]) -> Any:
    """Put `around` the innermost statement with all blocks of these names, no deeper than a loop of a tile."""
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
    return any(str(block.name_hint) in names for block, _ in _realized(statement))


def _outermost_parallel(node: Any) -> Any:
    """The statement with its outermost loop parallel, with the next one in it if that is perfectly nested."""
    from tvm import tirx

    if type(node).__name__ == "SeqStmt":
        parts = list(node.seq)
        binds = [p for p in parts if type(p).__name__ == "Bind"]
        if binds:
            return node
        return tirx.SeqStmt([_outermost_parallel(part) for part in parts])
    if type(node).__name__ == "For" and int(node.kind) == SERIAL:
        if number(node.extent) == 1:
            body = _outermost_parallel(node.body)
            return tirx.For(node.loop_var, node.min, node.extent, SERIAL, body, None, node.annotations)
        return tirx.For(node.loop_var, node.min, node.extent, PARALLEL, node.body, None, node.annotations)
    return node


def chosen(axes: OpenAxes, kernels: Sequence[TiledKernel], conditions: Sequence[Any]) -> Any:
    """Return the function that runs the first kernel whose condition holds; the last one has none.

    Raises
    ------
    MeasureError
        The kernels pack a constant in different ways.
    """
    import tvm_ffi
    from tvm import s_tir, tirx

    first = kernels[0]
    allocated, bodies = list(first.allocated), [first.body]
    for other in kernels[1:]:
        if len(other.packing) != len(first.packing):
            raise _refused("the kernels of a function pack different constants")
        same: dict[int, Any] = {}
        for mine, its in zip(first.packing, other.packing, strict=True):
            same[key(_packed(its))] = _packed(mine)
        body = tvm_ffi.structural_map(other.body, (tirx.Var, lambda v, s=same: s.get(key(v), v)), order="post")
        for mine, its in zip(first.packing, other.packing, strict=True):
            again = tvm_ffi.structural_map(its, (tirx.Var, lambda v, s=same: s.get(key(v), v)), order="post")
            if not structurally_equal(mine, again):
                raise _refused("the kernels of a function pack a constant in different ways")
        bodies.append(body)
        allocated += [b for b in other.allocated if key(b) not in same]
    body = bodies[-1]
    for made, condition in reversed(list(zip(bodies[:-1], conditions, strict=True))):
        body = tirx.IfThenElse(condition, made, body)
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt([*first.packing, body]) if first.packing else body,
                        alloc_buffers=allocated)  # fmt: skip
    func = axes.func
    made = tirx.PrimFunc(func.params, s_tir.SBlockRealize([], True, root), func.ret_type, func.attrs)
    return s_tir.renew_defs(made)


def _packed(statement: Any) -> Any:
    block, _ = next(iter(_realized(statement)))
    return buffer_of(block.writes[0])


def _packs(statement: Any) -> bool:
    return any(PACKING in (block.annotations or {}) for block, _ in _realized(statement))


def _realized(statement: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each block with its realization."""
    import tvm_ffi
    from tvm import s_tir

    found: list[Any] = []
    tvm_ffi.structural_walk(statement, (s_tir.SBlockRealize, found.append))
    for realize in found:
        yield realize.block, realize


def _loops(statement: Any) -> list[Any]:
    import tvm_ffi
    from tvm import tirx

    found: list[Any] = []
    tvm_ffi.structural_walk(statement, (tirx.For, found.append))
    return found


def _accesses(block: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield buffer and indices of each load and store of a block."""
    import tvm_ffi
    from tvm import ir, tirx

    found: list[Any] = []
    for node in (block.body, block.init):
        if node is not None:
            tvm_ffi.structural_walk(node, [(ir.TensorLoad, found.append), (tirx.BufferStore, found.append)])
    for node in found:
        read = access_of(node)
        yield (node.buffer, list(node.indices)) if read is None else read


def _simple(node: Any) -> Any:
    from .nodes import analyzer_of_tvm

    return analyzer_of_tvm().simplify(node)
