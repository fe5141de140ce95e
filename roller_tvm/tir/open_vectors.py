"""Vectors along open axes that are not cut: the loop over the vectors is open, and the last vector begins early."""

from __future__ import annotations

from typing import Any

from ..te.numbering import PARALLEL
from .nodes import REDUCTION, accesses, buffer_of, key
from .open_axes import number
from .open_places import Places, loops, realized, refused, vector_and_lane


class OpenVectors:
    """A schedule's body with vectors along open axes.

    Parameters
    ----------
    body : Stmt
    places : Places

    Attributes
    ----------
    body : Stmt
    extents : dict
        Loop over vectors -> its open extent.
    known : set of int
        Axes of blocks that go in vectors.
    least : dict of int to int
        Open axis -> its smallest size: a vector.
    """

    def __init__(self, body: Any, places: Places) -> None:
        import tvm_ffi
        from tvm import s_tir

        self.places, self.body = places, body
        self.extents: dict[int, Any] = {}
        self.known: set[int] = set()
        self.least: dict[int, int] = {}
        self._loops = {key(loop.loop_var): loop for loop in loops(body)}
        values: dict[int, list[Any]] = {}
        blocks: dict[int, Any] = {}  # by identity: parts of one reduction have the same name
        for block, realize in realized(body):
            if (bound := self._bound(block, realize)) is not None:
                values[key(block)] = bound
            if (summed := self._summed(block, realize)) is not None:
                blocks[key(block)] = summed

        def changed(node: Any) -> Any:
            own = key(node.block)
            if own not in values and own not in blocks:
                return node
            left.discard(own)
            return s_tir.SBlockRealize(values.get(own, node.iter_values), node.predicate, blocks.get(own, node.block))

        left = {*values, *blocks}
        if left:
            self.body = tvm_ffi.structural_map(body, (s_tir.SBlockRealize, changed), order="post")
            assert not left, "a block was not found again"

    def _first(self, at: int, vector: Any, lanes: int) -> Any:
        """Return where a vector begins: the last one early."""
        from tvm import tirx

        extent = self.places.axes.axes[at].extent
        self.least[at] = max(self.least.get(at, 1), lanes)
        many = tirx.const(lanes, str(extent.ty.dtype))
        return tirx.min(vector * many, extent - many)

    def _count(self, at: int, lanes: int) -> Any:
        """Return the number of vectors."""
        from tvm import tirx

        extent = self.places.axes.axes[at].extent
        dtype = str(extent.ty.dtype)
        return (extent + tirx.const(lanes - 1, dtype)) // tirx.const(lanes, dtype)

    def _bound(self, block: Any, realize: Any) -> list[Any] | None:
        """Return the values of a block's axes if some go in vectors that loops outside of it count."""
        values, found = list(realize.iter_values), False
        for n, (iv, value) in enumerate(zip(block.iter_vars, realize.iter_values, strict=True)):
            at, split = self.places.axis(iv.var), vector_and_lane(value)
            if at is None or self.places.moves(at) or split is None or int(iv.iter_type) == REDUCTION:
                continue
            vector, lane, lanes = split
            outer, inner = self._loops.get(key(vector)), self._loops.get(key(lane))
            if outer is None or inner is None or number(inner.extent) != lanes or int(outer.kind) > PARALLEL:
                continue
            whole = self.places.extents[at]
            if number(outer.extent) != whole // lanes or whole % lanes:
                continue
            values[n], found = self._first(at, vector, lanes) + lane, True
            self.extents[key(vector)] = self._count(at, lanes)
            self.known.add(key(iv.var))
        return values if found else None

    def _summed(self, block: Any, realize: Any) -> Any:
        """Return a block that adds up along an axis in vectors, without what the vector before has added; or None."""
        import tvm_ffi
        from tvm import ir, s_tir, tirx

        name = str(block.name_hint)
        digits: dict[int, tuple[int, Any, Any, int]] = {}
        for buffer, indices in accesses(block):
            for d, index in enumerate(indices):
                at = self.places.dim(buffer, d)
                if at is not None and (split := self.places.digits(block, index, at)) is not None:
                    digits[key(split[0])] = (at, *split)
        if not digits:
            return None
        reduced = {key(iv.var) for iv in block.iter_vars if int(iv.iter_type) == REDUCTION}
        if len(digits) > 1 or not reduced & set(digits):
            raise refused(f"'{name}' goes along an open axis in a way that is not known")
        ((at, vector, lane, lanes),) = digits.values()
        bounds = dict(zip([key(iv.var) for iv in block.iter_vars], realize.iter_values, strict=True))
        loop = self._loops.get(key(bounds[key(vector)]))
        if loop is None or number(loop.extent) != self.places.extents[at] // lanes or int(loop.kind) > PARALLEL:
            raise refused(f"the vectors of '{name}' are cut in parts")
        if block.init is not None:
            raise refused(f"'{name}' sets its initial value itself")
        self.extents[key(loop.loop_var)] = self._count(at, lanes)
        start, many = self._first(at, vector, lanes), tirx.const(lanes, str(vector.ty.dtype))

        def along(indices: Any) -> list[Any]:
            found = [vector_and_lane(i) for i in indices]
            return [
                start + lane if f is not None and key(f[0]) == key(vector) and key(f[1]) == key(lane) else i
                for i, f in zip(indices, found, strict=True)
            ]

        def load(node: Any) -> Any:
            return tirx.BufferLoad(node.source, along(node.indices))

        def region(node: Any) -> Any:
            least = along([r.min for r in node.region])
            parts = [ir.Range.from_min_extent(m, r.extent) for m, r in zip(least, node.region, strict=True)]
            return tirx.BufferRegion(buffer_of(node), parts)

        def store(node: Any) -> Any:
            fresh = start + lane >= vector * many
            old = tirx.BufferLoad(node.buffer, list(node.indices))
            return tirx.BufferStore(node.buffer, tirx.Select(fresh, node.value, old), list(node.indices))

        axes = [
            tirx.IterVar(ir.Range.from_min_extent(iv.dom.min, self._count(at, lanes)), iv.var, iv.iter_type)
            if key(iv.var) == key(vector) else iv
            for iv in block.iter_vars
        ]  # fmt: skip
        reads = [tvm_ffi.structural_map(r, (ir.TensorRegion, region), order="post") for r in block.reads]
        body = tvm_ffi.structural_map(block.body, [(ir.TensorLoad, load), (tirx.BufferStore, store)], order="post")
        return s_tir.SBlock(
            axes, reads, block.writes, name, body, None, block.alloc_buffers, block.match_buffers, block.annotations
        )
