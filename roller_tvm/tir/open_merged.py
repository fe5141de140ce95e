"""Neighbouring open axes as one: rows and columns of pictures whose pixels are computed one by one.

Of a convolution with a window of one pixel, any run of pixels is a tile: none has an edge at the end of a row, and
fewer tiles serve all sizes. The function keeps its parameters; its kernels
see them by views of fewer dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..te.quotient import nodes_of
from .nodes import accesses, analyzer_of_tvm, buffer_of, key, nests, root_of, variables
from .open_axes import OpenAxes, buffers_of, like, number, open_axes
from .open_choice import packs

#: Axes that become one.
_PAIR = 2


@dataclass(frozen=True, eq=False)
class MergedAxes:
    """A function with neighbouring axes as one.

    Parameters
    ----------
    func : PrimFunc
        Before.
    made : PrimFunc
        Of parameters with fewer dimensions, in the same order.
    params : tuple of Buffer
        These parameters, in sizes of `func`.
    """

    func: Any
    made: Any
    params: tuple[Any, ...]

    def viewed(self, scheduled: Any) -> Any:
        """Return a schedule of `made` as a function of the parameters of `func`."""
        import tvm_ffi
        from tvm import s_tir, tirx

        views, named = list[Any](), dict[int, Any]()
        for param, fewer, own in zip(scheduled.params, self.params, self.func.params, strict=True):
            named[key(param)] = own
            if not hasattr(own, "shape"):  # a size
                continue
            for extent, old in zip(param.shape, fewer.shape, strict=True):  # TVM renews the sizes with the function
                named |= dict(zip(map(key, _sizes(extent)), _sizes(old), strict=True))
            if len(own.shape) > len(fewer.shape):
                view = named[key(param)] = like(fewer, list(fewer.shape))
                views.append(tirx.DeclBuffer(view, data=tirx.buffer_data(own)))
        root = root_of(scheduled)
        statements = list(root.body.seq) if type(root.body).__name__ == "SeqStmt" else [root.body]
        packing = [statement for statement in statements if packs(statement)]
        rest = tirx.SeqStmt([*views, *(s for s in statements if not packs(s))])
        # TVM splits packing off what stands in a block.
        kernels = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "kernels", rest))
        body = tvm_ffi.structural_map(
            tirx.SeqStmt([*packing, kernels]) if packing else kernels,
            (tirx.Var, lambda v: named.get(key(v), v)), order="post",
        )  # fmt: skip
        block = s_tir.SBlock([], [], [], "root", body, alloc_buffers=root.alloc_buffers)
        return tirx.PrimFunc(
            list(self.func.params), s_tir.SBlockRealize([], True, block), self.func.ret_type, self.func.attrs
        )  # fmt: skip


def merged_axes(func: Any) -> MergedAxes | None:
    """Return a sum's function with its two open axes as one; None if they are not neighbours in all tensors.

    Parameters
    ----------
    func : PrimFunc
        It is not scheduled yet.

    Examples
    --------
    >>> merged = merged_axes(func)
    """
    axes = open_axes(_without_units(func))
    if len(axes.axes) != _PAIR or not all(a.sliced for a in axes.axes) or axes.following or axes.reads or axes.symbols:
        return None
    merging = _Merging(axes)
    if not any(nest.reduce for nest in merging.nests) or not merging.neighbours():
        return None
    return MergedAxes(func, merging.function(), tuple(merging.made(p) for p in func.params))


def _sizes(extent: Any) -> list[Any]:
    return [node for node in nodes_of(extent) if type(node).__name__ in ("Var", "SizeVar")]


def _without_units(func: Any) -> Any:
    """Return a function without reductions over one element, such as a window of one pixel."""
    import tvm_ffi
    from tvm import ir, s_tir, tirx

    gone: set[int] = set()
    for nest in nests(func):
        own = {key(iv.var) for iv, _ in nest.reduce if number(iv.dom.extent) == 1}
        gone |= own if len(own) < len(nest.reduce) else set()
    if not gone:
        return func
    loops: set[int] = set()

    def realize(node: Any) -> Any:
        pairs = list(zip(node.block.iter_vars, node.iter_values, strict=True))
        loops.update(key(value) for iv, value in pairs if key(iv.var) in gone)
        kept = [(iv, value) for iv, value in pairs if key(iv.var) not in gone]
        block = node.block
        made = s_tir.SBlock(
            [iv for iv, _ in kept], block.reads, block.writes, block.name_hint, block.body, block.init,
            block.alloc_buffers, block.match_buffers, block.annotations,
        )  # fmt: skip
        return s_tir.SBlockRealize([value for _, value in kept], node.predicate, made)

    def simple(indices: Sequence[Any]) -> list[Any]:
        return [analyzer_of_tvm().simplify(index) for index in indices]

    def region(node: Any) -> Any:
        parts = [ir.Range.from_min_extent(simple([r.min])[0], r.extent) for r in node.region]
        return tirx.BufferRegion(buffer_of(node), parts)

    kinds = [
        (ir.TensorLoad, lambda node: tirx.BufferLoad(node.source, simple(node.indices))),
        (tirx.BufferStore, lambda node: tirx.BufferStore(node.buffer, node.value, simple(node.indices))),
        (ir.TensorRegion, region),
    ]
    body = tvm_ffi.structural_map(func.body, (s_tir.SBlockRealize, realize), order="post")
    body = tvm_ffi.structural_map(
        body, (tirx.For, lambda loop: loop.body if key(loop.loop_var) in loops else loop), order="post"
    )
    body = tvm_ffi.structural_map(
        body, (tirx.Var, lambda v: tirx.const(0, str(v.ty.dtype)) if key(v) in gone else v), order="post"
    )
    body = tvm_ffi.structural_map(body, kinds, order="post")
    return tirx.PrimFunc(list(func.params), body, func.ret_type, func.attrs)


class _Merging:
    def __init__(self, axes: OpenAxes) -> None:
        self.axes, self.func = axes, axes.func
        first, second = axes.axes
        self.extent, self.nests = first.extent * second.extent, nests(axes.func)
        self.buffers = {
            key(buffer): self._buffer(buffer) for buffer in buffers_of(axes.func) if 1 in axes.dims(buffer)
        }  # fmt: skip

    def neighbours(self) -> bool:
        """Return whether loops and tensors have both axes one after the other, or none."""
        every = [self.axes.dims(buffer) for buffer in buffers_of(self.func)]
        for nest in self.nests:
            own = {key(iv.var): self._axis(iv) for iv, _ in (*nest.spatial, *nest.reduce)}
            every.append([self._axis(iv) for iv in nest.block.iter_vars])
            for buffer, indices in accesses(nest.block):
                dims = self.axes.dims(buffer)
                if any(at != own.get(key(i)) for at, i in zip(dims, indices, strict=True)) or any(
                    own.get(v) is not None for at, i in zip(dims, indices, strict=True) if at is None
                    for v in variables(i)
                ):  # fmt: skip
                    return False
        plain = all(not len(b.strides) for b in buffers_of(self.func))
        return plain and all(at in ([], [0, 1]) for at in map(_open_run, every))

    def function(self) -> Any:
        """Return the function with both axes as one."""
        import tvm_ffi
        from tvm import s_tir, tirx

        root = root_of(self.func)
        statements = list(root.body.seq) if type(root.body).__name__ == "SeqStmt" else [root.body]
        made = [self._statement(s) for s in statements]
        allocated = [self.buffers.get(key(b), b) for b in root.alloc_buffers]
        block = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(made) if len(made) > 1 else made[0],
                             alloc_buffers=allocated)  # fmt: skip
        body = tvm_ffi.structural_map(
            s_tir.SBlockRealize([], True, block), (tirx.Var, lambda v: self.buffers.get(key(v), v)), order="post"
        )
        params = [self.buffers.get(key(p), p) for p in self.func.params]
        return s_tir.renew_defs(tirx.PrimFunc(params, body, self.func.ret_type, self.func.attrs))

    def _axis(self, iv: Any) -> int | None:
        return self.axes.places.get(("axis", key(iv.var)))

    def _buffer(self, buffer: Any) -> Any:
        shape = [self.extent if at == 1 else extent
                 for at, extent in zip(self.axes.dims(buffer), buffer.shape, strict=True) if at != 0]  # fmt: skip
        return like(buffer, shape)

    def _kept(self, buffer: Any, parts: Sequence[Any]) -> list[Any]:
        """Return what stands for the dimensions of a buffer without that of the first axis."""
        return [part for at, part in zip(self.axes.dims(buffer), parts, strict=True) if at != 0]

    def _statement(self, node: Any) -> Any:
        """Return a block with its loops."""
        from tvm import s_tir, tirx

        if type(node).__name__ != "For":
            values = zip(node.block.iter_vars, node.iter_values, strict=True)
            kept = [value for iv, value in values if self._axis(iv) != 0]
            return s_tir.SBlockRealize(kept, node.predicate, self._block(node.block))
        inner = node
        while type(inner).__name__ == "For":
            inner = inner.body
        at = next((self._axis(iv) for iv, value in zip(inner.block.iter_vars, inner.iter_values, strict=True)
                   if key(value) == key(node.loop_var)), None)  # fmt: skip
        body = self._statement(node.body)
        extent = self.extent if at == 1 else node.extent
        return body if at == 0 else tirx.For(node.loop_var, node.min, extent, node.kind, body)

    def _block(self, block: Any) -> Any:
        import tvm_ffi
        from tvm import ir, s_tir, tirx

        def load(node: Any) -> Any:
            return tirx.BufferLoad(self.made(node.source), self._kept(node.source, node.indices))

        def store(node: Any) -> Any:
            return tirx.BufferStore(self.made(node.buffer), node.value, self._kept(node.buffer, node.indices))

        def changed(node: Any) -> Any:
            kinds = [(ir.TensorLoad, load), (tirx.BufferStore, store)]
            return None if node is None else tvm_ffi.structural_map(node, kinds, order="post")

        def region(own: Any) -> Any:
            return tirx.BufferRegion(self.made(buffer_of(own)), self._kept(buffer_of(own), own.region))

        ivs = [
            iv if self._axis(iv) is None
            else tirx.IterVar(ir.Range.from_min_extent(iv.dom.min, self.extent), iv.var, iv.iter_type)
            for iv in block.iter_vars if self._axis(iv) != 0
        ]  # fmt: skip
        return s_tir.SBlock(
            ivs, [region(r) for r in block.reads], [region(w) for w in block.writes], block.name_hint,
            changed(block.body), changed(block.init), annotations=block.annotations,
        )  # fmt: skip

    def made(self, buffer: Any) -> Any:
        """Return the buffer of fewer dimensions for one of the function."""
        return self.buffers.get(key(buffer), buffer)


def _open_run(places: Sequence[int | None]) -> list[int | None]:
    """Return the part from the first open place to the last one."""
    found = [n for n, at in enumerate(places) if at is not None]
    return list(places[found[0] : found[-1] + 1]) if found else []


__all__ = ["MergedAxes", "merged_axes"]
