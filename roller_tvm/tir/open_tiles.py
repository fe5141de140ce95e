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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import MeasureError
from .nodes import (
    PACKING,
    REDUCTION,
    accesses,
    analyzer_of_tvm,
    buffer_of,
    key,
    root_of,
    structurally_equal,
    tensors_of,
    variables,
)
from .open_axes import OpenAxes, like, number

SERIAL, PARALLEL = 0, 1


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
    least : tuple of int
        Smallest size of each open axis.
    """

    body: Any
    packing: tuple[Any, ...]
    allocated: tuple[Any, ...]
    least: tuple[int, ...]


def tiled_kernel(
    axes: OpenAxes, extents: Sequence[int], scheduled: Any, parallel: bool, turn: Turn | None = None
) -> TiledKernel:
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

    Raises
    ------
    MeasureError
        The schedule cannot be moved along an axis.
    """
    return _Tiling(axes, extents, scheduled, turn).kernel(parallel)


def _refused(what: str) -> MeasureError:
    return MeasureError(what, where="open extents", kind="schedule error", remedy="another plan is tried")


class _Tiling:
    def __init__(self, axes: OpenAxes, extents: Sequence[int], scheduled: Any, turn: Turn | None) -> None:
        from tvm import tirx

        self.axes, self.extents, self.turn = axes, list(extents), turn
        self.root = root_of(scheduled)
        self.params = dict(zip(map(key, tensors_of(scheduled)), tensors_of(axes.func), strict=True))
        #: Sizes that the schedule has as numbers of its own -> those of the function.
        sizes = dict(zip(map(key, scheduled.params[len(self.params) :]), axes.symbols, strict=True))
        self.variables = {**self.params, **sizes}
        self.places: dict[Any, int] = {}
        #: Place -> by how much it moves where its axis moves by one.
        self.paces: dict[Any, int] = {}
        for param, old in zip(tensors_of(scheduled), tensors_of(axes.func), strict=True):
            self.places |= {("dim", key(param), d): at for d, at in enumerate(axes.dims(old)) if at is not None}
        self.body = self.root.body
        self.blocks = list(_realized(self.body))
        self._infer()
        self.least = [n if axis.sliced else 1 for n, axis in zip(extents, axes.axes, strict=True)]
        self.starts = [tirx.Var(f"start{n}", str(axis.extent.ty.dtype)) for n, axis in enumerate(axes.axes)]
        self._check()

    def _infer(self) -> None:
        """Find the open axes of blocks and of buffers in between, from those of the parameters."""
        more = True
        while more:
            before = len(self.places)
            for block, _ in self.blocks:
                own = {key(iv.var) for iv in block.iter_vars}
                for buffer, indices in accesses(block):
                    for d, index in enumerate(indices):
                        dim, axis = ("dim", key(buffer), d), ("axis", key(index))
                        if key(index) not in own:
                            if key(buffer) not in self.params and dim not in self.places:
                                self._follow(dim, index, own)
                            continue
                        known, other = self.places.get(dim), self.places.get(axis)
                        if known is not None and other is not None and (
                            known != other or self._pace(dim) != self._pace(axis)
                        ):  # fmt: skip
                            raise _refused(f"block '{block.name_hint}' has one loop for two open axes")
                        if known is not None:
                            self.places[axis], self.paces[axis] = known, self._pace(dim)
                        elif other is not None and key(buffer) not in self.params:
                            self.places[dim], self.paces[dim] = other, self._pace(axis)
            more = len(self.places) > before

    def _pace(self, place: Any) -> int:
        return self.paces.get(place, 1)

    def _follow(self, dim: Any, index: Any, own: set[int]) -> None:
        """Note a dimension in between that is read at a multiple of a moving axis and a bit."""
        moving = {v for v in variables(index) & own if self._moves(self.places.get(("axis", v)))}
        if len(moving) != 1:
            return
        (var,) = moving
        pace = _multiple(index, var)
        if pace:
            axis = ("axis", var)
            self.places[dim], self.paces[dim] = self.places[axis], pace * self._pace(axis)

    def _axis(self, var: Any) -> int | None:
        return self.places.get(("axis", key(var)))

    def _moves(self, at: int | None) -> bool:
        return at is not None and self.axes.axes[at].sliced

    def _check(self) -> None:
        made = {key(buffer) for buffer in self.root.alloc_buffers}
        for block, _ in self.blocks:
            own = {key(iv.var) for iv in block.iter_vars}
            reduces = any(int(iv.iter_type) == REDUCTION for iv in block.iter_vars)
            for region in block.writes:
                buffer = buffer_of(region)
                dims = [self.places.get(("dim", key(buffer), d)) for d in range(len(buffer.shape))]
                again = any(at is not None and self._moves(at) and self.extents[at] > 1 for at in dims)
                if reduces and again and key(buffer) not in made and self.turn is None:
                    raise _refused(f"'{block.name_hint}' adds up in its result, which tiles share")
            for buffer, indices in accesses(block):
                for d, index in enumerate(indices):
                    at = self.places.get(("dim", key(buffer), d))
                    used = variables(index) & own
                    if at is None or not used or self._axis(index) == at or self._digits(block, index, at):
                        continue
                    if not self._moves(at) or not any(self.places.get(("axis", v)) == at for v in used):
                        raise _refused(f"'{block.name_hint}' reads '{buffer.name}' in parts of an open axis")

    def _digits(self, block: Any, index: Any, at: int) -> tuple[Any, Any, int] | None:
        """Return vector, lane and lanes of ``vector * lanes + lane`` along an axis that is not cut; else None."""
        if self._moves(at):
            return None
        found = _vector_and_lane(index)
        if found is None:
            return None
        extents = {key(iv.var): number(iv.dom.extent) for iv in block.iter_vars}
        vector, lane, lanes = found
        whole = extents.get(key(lane)) == lanes and extents.get(key(vector)) == self.extents[at] // lanes
        return found if whole and self.extents[at] % lanes == 0 else None

    def _in_vectors(self) -> tuple[Any, dict[int, Any], set[tuple[str, int]]]:
        """Return the body with vectors along axes that are not cut, the open loops over them, and their axes."""
        import tvm_ffi
        from tvm import ir, s_tir, tirx

        loops = {key(loop.loop_var): loop for loop in _loops(self.body)}
        opened: dict[int, Any] = {}
        known: set[tuple[str, int]] = set()
        values: dict[str, list[Any]] = {}
        bodies: dict[str, Any] = {}

        def first(at: int, vector: Any, lanes: int) -> Any:
            extent = self.axes.axes[at].extent
            self.least[at] = max(self.least[at], lanes)
            many = tirx.const(lanes, str(extent.ty.dtype))
            return tirx.min(vector * many, extent - many)

        def count(at: int, lanes: int) -> Any:
            extent = self.axes.axes[at].extent
            dtype = str(extent.ty.dtype)
            return (extent + tirx.const(lanes - 1, dtype)) // tirx.const(lanes, dtype)

        for block, realize in self.blocks:
            name = str(block.name_hint)
            for n, (iv, value) in enumerate(zip(block.iter_vars, realize.iter_values, strict=True)):
                at, found = self._axis(iv.var), _vector_and_lane(value)
                if at is None or self._moves(at) or found is None:
                    continue
                vector, lane, lanes = found
                outer, inner = loops.get(key(vector)), loops.get(key(lane))
                if outer is None or inner is None or number(inner.extent) != lanes or int(outer.kind) > PARALLEL:
                    continue
                if number(outer.extent) != self.extents[at] // lanes or self.extents[at] % lanes:
                    continue
                if int(iv.iter_type) == REDUCTION:
                    continue
                values.setdefault(name, list(realize.iter_values))[n] = first(at, vector, lanes) + lane
                opened[key(vector)] = count(at, lanes)
                known.add((name, key(iv.var)))
            bounds = dict(zip([key(iv.var) for iv in block.iter_vars], realize.iter_values, strict=True))
            digits: dict[int, tuple[int, Any, Any, int]] = {}
            for buffer, indices in accesses(block):
                for d, index in enumerate(indices):
                    at = self.places.get(("dim", key(buffer), d))
                    if at is None or (split := self._digits(block, index, at)) is None:
                        continue
                    digits[key(split[0])] = (at, *split)
            if not digits:
                continue
            reduced = {key(iv.var) for iv in block.iter_vars if int(iv.iter_type) == REDUCTION}
            if len(digits) > 1 or not reduced & set(digits):
                raise _refused(f"'{name}' goes along an open axis in a way that is not known")
            ((at, vector, lane, lanes),) = digits.values()
            loop = loops.get(key(bounds[key(vector)]))
            if loop is None or number(loop.extent) != self.extents[at] // lanes or int(loop.kind) > PARALLEL:
                raise _refused(f"the vectors of '{name}' are cut in parts")
            opened[key(loop.loop_var)] = count(at, lanes)
            start = first(at, vector, lanes)
            many = tirx.const(lanes, str(vector.ty.dtype))

            def along(indices: Any, vector: Any = vector, lane: Any = lane, start: Any = start) -> list[Any]:
                found = [_vector_and_lane(i) for i in indices]
                return [
                    start + lane if f is not None and key(f[0]) == key(vector) and key(f[1]) == key(lane) else i
                    for i, f in zip(indices, found, strict=True)
                ]

            def load(node: Any, along: Any = along) -> Any:
                return tirx.BufferLoad(node.source, along(node.indices))

            def region(node: Any, along: Any = along) -> Any:
                least = along([r.min for r in node.region])
                parts = [ir.Range.from_min_extent(m, r.extent) for m, r in zip(least, node.region, strict=True)]
                return tirx.BufferRegion(buffer_of(node), parts)

            def store(node: Any, start: Any = start, lane: Any = lane, vector: Any = vector, many: Any = many) -> Any:
                fresh = start + lane >= vector * many
                old = tirx.BufferLoad(node.buffer, list(node.indices))
                return tirx.BufferStore(node.buffer, tirx.Select(fresh, node.value, old), list(node.indices))

            kinds = [(ir.TensorLoad, load), (tirx.BufferStore, store)]
            ivs = [
                tirx.IterVar(ir.Range.from_min_extent(iv.dom.min, count(at, lanes)), iv.var, iv.iter_type)
                if key(iv.var) == key(vector) else iv
                for iv in block.iter_vars
            ]  # fmt: skip
            regions = [tvm_ffi.structural_map(r, (ir.TensorRegion, region), order="post") for r in block.reads]
            if block.init is not None:
                raise _refused(f"'{name}' sets its initial value itself")
            bodies[name] = s_tir.SBlock(
                ivs, regions, block.writes, name, tvm_ffi.structural_map(block.body, kinds, order="post"), None,
                block.alloc_buffers, block.match_buffers, block.annotations,
            )  # fmt: skip

        def realized(node: Any) -> Any:
            name = str(node.block.name_hint)
            if name not in values and name not in bodies:
                return node
            return s_tir.SBlockRealize(
                values.get(name, node.iter_values), node.predicate, bodies.get(name, node.block)
            )  # fmt: skip

        if values or bodies:
            self.body = tvm_ffi.structural_map(self.body, (s_tir.SBlockRealize, realized), order="post")
            self.blocks = list(_realized(self.body))
        return self.body, opened, known

    def kernel(self, parallel: bool) -> TiledKernel:
        import tvm_ffi
        from tvm import s_tir, tirx

        (body, vectors, known), replaced = self._in_vectors(), {}
        for buffer in self.root.alloc_buffers:
            dims = [self.places.get(("dim", key(buffer), d)) for d in range(len(buffer.shape))]
            if any(at is not None and not self._moves(at) for at in dims):
                shape = [
                    extent if at is None or self._moves(at) else self.axes.axes[at].extent
                    for at, extent in zip(dims, buffer.shape, strict=True)
                ]
                replaced[key(buffer)] = like(buffer, shape)
        open_loops = vectors | self._open_loops(known)
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
        packing = tuple(s for s in statements if _packs(s))
        rest = [s for s in statements if not _packs(s)]
        body = rest[0] if len(rest) == 1 else tirx.SeqStmt(rest)
        for at in reversed(range(len(self.axes.axes))):
            if self._moves(at):
                body = self._wrapped(body, at)
        if parallel:
            body = _outermost_parallel(body)
        if self.turn is not None:  # no threads are asked for nothing
            every = [self.turn.rest(a.extent)[1] >= n for a, n in zip(self.axes.axes, self.extents, strict=True)]
            body = tirx.IfThenElse(tirx.all(*every), body, None)
        allocated = tuple(replaced.get(key(b), b) for b in self.root.alloc_buffers)
        return TiledKernel(body, packing, allocated, tuple(self.least))

    def _moved(self, block: Any) -> Any:
        """The block with the start of its tile added to axes that move along parameters, or are computed with."""
        import tvm_ffi
        from tvm import ir, s_tir, tirx

        own = {key(iv.var): self._axis(iv.var) for iv in block.iter_vars}
        moving = {
            var: self.starts[at] * tirx.const(self._pace(("axis", var)), str(self.starts[at].ty.dtype))
            if self._pace(("axis", var)) > 1 else self.starts[at]
            for var, at in own.items() if at is not None and self._moves(at)
        }  # fmt: skip
        whole = {var: self.axes.axes[at].extent for var, at in own.items() if at is not None and not self._moves(at)}
        if not moving and not whole:
            return block
        starts = {key(self.starts[at]) for at in own.values() if self._moves(at) and at is not None}

        def shift(var: Any) -> Any:
            return var + moving[key(var)] if key(var) in moving else var

        def still(index: Any) -> Any:
            zero = tvm_ffi.structural_map(
                index, (tirx.Var, lambda v: tirx.const(0, str(v.ty.dtype)) if key(v) in starts else v), order="post"
            )
            return analyzer_of_tvm().simplify(zero)

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

    def _open_loops(self, known: set[tuple[str, int]]) -> dict[int, Any]:
        """Loop -> open extent, for the loops along axes that are not cut."""
        loops = {key(loop.loop_var): loop for loop in _loops(self.body)}
        found: dict[int, Any] = {}
        for block, realize in self.blocks:
            if number(realize.predicate) != 1 and any(not axis.sliced for axis in self.axes.axes):
                raise _refused(f"block '{block.name_hint}' checks the end of an axis")
            for iv, value in zip(block.iter_vars, realize.iter_values, strict=True):
                at = self._axis(iv.var)
                if at is None or self._moves(at) or (str(block.name_hint), key(iv.var)) in known:
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
            along = {key(iv.var) for iv in block.iter_vars if self._axis(iv.var) == at}
            written = {key(buffer_of(region)) for region in block.writes}
            for buffer, indices in accesses(block):
                used = [variables(index) & set(values) for index in indices]
                open_dims = [d for d, own in enumerate(used) if own & along]
                if not open_dims:
                    shared |= {loop for own in used for var in own for loop in values[var]}
                elif key(buffer) in written:
                    behind |= {loop for own in used[open_dims[-1] + 1 :] for var in own for loop in values[var]}
        return behind - shared

    def _tiles(self, part: Any, at: int) -> Any:
        from tvm import tirx

        axis, tile, start = self.axes.axes[at], self.extents[at], self.starts[at]
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
        parts = list(part.seq) if type(part).__name__ == "SeqStmt" else [part]
        body = tirx.SeqStmt([tirx.Bind(start, begin), *parts])
        return tirx.For(t, tirx.const(0, dtype), count, SERIAL, body)


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


def chosen(axes: OpenAxes, kernels: Sequence[TiledKernel], conditions: Sequence[Any] | None) -> Any:
    """Return the function that runs the first kernel whose condition holds; the last one has none.

    Without conditions all kernels run, in turn.

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
    if conditions is None:
        body = tirx.SeqStmt(bodies) if len(bodies) > 1 else body
    else:
        for made, condition in reversed(list(zip(bodies[:-1], conditions, strict=True))):
            body = tirx.IfThenElse(condition, made, body)
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt([*first.packing, body]) if first.packing else body,
                        alloc_buffers=allocated)  # fmt: skip
    func = axes.func
    made = tirx.PrimFunc(func.params, s_tir.SBlockRealize([], True, root), func.ret_type, func.attrs)
    return s_tir.renew_defs(made)


def _multiple(index: Any, var: int) -> int:
    """Return by how much an index moves where a variable moves by one, if that is known and from 1; else 0."""
    import tvm

    held: list[Any] = []
    import tvm_ffi

    tvm_ffi.structural_walk(index, (tvm.tirx.Var, lambda v: held.append(v) if key(v) == var else None))
    detect = (tvm.sym if hasattr(tvm, "sym") else tvm.arith).detect_linear_equation
    form = detect(index, [held[0]])
    return max(number(form[0]) or 0, 0) if len(form) == 2 else 0


def _vector_and_lane(index: Any) -> tuple[Any, Any, int] | None:
    """Return vector, lane and lanes of ``vector * lanes + lane``, both of them variables; else None."""
    if type(index).__name__ != "Add" or type(index.a).__name__ != "Mul" or type(index.b).__name__ != "Var":
        return None
    lanes = number(index.a.b)
    return (index.a.a, index.b, lanes) if lanes and type(index.a.a).__name__ == "Var" else None


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
