"""Open (symbolic) axes of a PrimFunc: which axes and dimensions are one axis, and the function with extents set.

Two functions of the same sequence length may use it differently: a product's rows can be computed one by one, a sum
over them cannot. So each axis is on its own: ``scores[i, j]`` has two, although both extents are ``n``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UnsupportedOperator
from ..te.body import REMEDY
from ..te.quotient import nodes_of
from .nodes import accesses, key, nests, parameters, root_of, structurally_equal

#: Where an axis occurs: ("axis", variable) or ("dim", buffer, number), variables and buffers by ``key``.
Place = tuple[Any, ...]


@dataclass(frozen=True)
class OpenAxis:
    """An axis of open extent.

    Parameters
    ----------
    name : str
        Its first loop.
    extent : PrimExpr
    sliced : bool
        True if any part of it can be computed without the rest: no reduction runs along it.
    """

    name: str
    extent: Any
    sliced: bool


@dataclass
class OpenAxes:
    """The open axes of a function that is not scheduled yet.

    Parameters
    ----------
    func : PrimFunc
    axes : list of OpenAxis
        In the order of the function's loops.
    places : dict
        Place -> position of its axis in `axes`.
    """

    func: Any
    axes: list[OpenAxis] = field(default_factory=list)
    places: dict[Place, int] = field(default_factory=dict)

    def dims(self, buffer: Any) -> list[int | None]:
        """Return the axis of each dimension of a buffer, None for those of constant extent."""
        return [self.places.get(("dim", key(buffer), d)) for d in range(len(buffer.shape))]

    def fixed(self, extents: Sequence[int]) -> Any:
        """Return the function with these extents of its axes.

        Examples
        --------
        >>> open_axes(func).fixed([8])  # doctest: +SKIP
        """
        import tvm_ffi
        from tvm import ir, s_tir, tirx

        def const(value: int, like: Any) -> Any:
            return tirx.const(value, str(like.ty.dtype))

        made = {}
        for buffer in buffers_of(self.func):
            shape = [
                extent if at is None else const(extents[at], extent)
                for at, extent in zip(self.dims(buffer), buffer.shape, strict=True)
            ]
            if any(at is not None for at in self.dims(buffer)):
                made[key(buffer)] = like(buffer, shape)
        loops = {
            key(loop.loop_var): self.places.get(("axis", key(iv.var)))
            for loop, iv in _loops(self.func)
        }  # fmt: skip

        def loop(node: Any) -> Any:
            at = loops.get(key(node.loop_var))
            if at is None:
                return node
            return tirx.For(node.loop_var, node.min, const(extents[at], node.extent), node.kind, node.body)

        def block(node: Any) -> Any:
            own = [self.places.get(("axis", key(iv.var))) for iv in node.iter_vars]
            if all(at is None for at in own):
                return node
            ivs = [
                iv if at is None else tirx.IterVar(
                    ir.Range.from_min_extent(iv.dom.min, const(extents[at], iv.dom.extent)), iv.var, iv.iter_type,
                    iv.thread_tag,
                )
                for iv, at in zip(node.iter_vars, own, strict=True)
            ]  # fmt: skip
            return s_tir.SBlock(
                ivs, node.reads, node.writes, node.name_hint, node.body, node.init, node.alloc_buffers,
                node.match_buffers, node.annotations,
            )  # fmt: skip

        body = tvm_ffi.structural_map(
            self.func.body,
            [(tirx.Var, lambda var: made.get(key(var), var)), (tirx.For, loop), (s_tir.SBlock, block)],
            order="post",
        )
        params = [made.get(key(p), p) for p in self.func.params]
        return s_tir.renew_defs(tirx.PrimFunc(params, body, self.func.ret_type, self.func.attrs))


def is_open(func: Any) -> bool:
    """Return whether a parameter of a function has a dimension without a constant extent."""
    for param in func.params:
        shape: Any = getattr(getattr(param, "ty", None), "shape", None)
        if shape is not None and any(number(extent) is None for extent in shape):
            return True
    return False


def open_axes(func: Any) -> OpenAxes:
    """Return the open axes of a function.

    Raises
    ------
    UnsupportedOperator
        The function has the form of none that is planned, or it computes with its sizes.

    Examples
    --------
    >>> [axis.name for axis in open_axes(func).axes]  # doctest: +SKIP
    ['i1']
    """
    found = nests(func)
    params = {key(b) for b in parameters(func)}
    where = "open extents"
    joined = _Joined()
    whole: set[Place] = set()
    extents = [extent for buffer in parameters(func) for extent in buffer.shape]
    symbols = {key(v) for e in extents for v in nodes_of(e) if type(v).__name__ in ("Var", "SizeVar")}
    for nest in found:
        own: dict[int, Place] = {}
        for iv, label in (*nest.spatial, *nest.reduce):
            if number(iv.dom.extent) is None:
                own[key(iv.var)] = joined.add(("axis", key(iv.var)), label, iv.dom.extent)
        whole |= {own[key(iv.var)] for iv, _ in nest.reduce if key(iv.var) in own}
        for buffer, indices in accesses(nest.block):
            for d, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
                if number(extent) is not None:
                    continue
                dim = joined.add(("dim", key(buffer), d), "", extent)
                if key(index) in own:
                    joined.join(dim, own[key(index)])
                elif key(buffer) not in params:
                    whole.add(dim)
        values = [part for store in (*nest.stores, *nest.init) for part in (store.value, *store.indices)]
        values += [value for _, value in nest.lets]
        if any(key(node) in symbols for value in values for node in nodes_of(value)):
            raise UnsupportedOperator("it computes with its sizes, which are open", where, REMEDY)
    result = OpenAxes(func)
    numbers: dict[Place, int] = {}
    wholes = {joined.root(place) for place in whole}
    for place, (label, extent) in joined.of.items():
        root = joined.root(place)
        if root not in numbers:
            numbers[root] = len(result.axes)
            result.axes.append(OpenAxis(label, extent, root not in wholes))
        elif not structurally_equal(result.axes[numbers[root]].extent, extent):
            told = f"an axis has the extents {result.axes[numbers[root]].extent} and {extent}"
            raise UnsupportedOperator(told, where, REMEDY)
        result.places[place] = numbers[root]
    return result


class _Joined:
    """Places in disjoint sets."""

    def __init__(self) -> None:
        self.of: dict[Place, tuple[str, Any]] = {}
        self._up: dict[Place, Place] = {}

    def add(self, place: Place, label: str, extent: Any) -> Place:
        self.of.setdefault(place, (label, extent))
        return place

    def root(self, place: Place) -> Place:
        while place in self._up:
            place = self._up[place]
        return place

    def join(self, a: Place, b: Place) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self._up[a] = b


def number(node: Any) -> int | None:
    """Return a constant, else None."""
    value = node if isinstance(node, int) else getattr(node, "value", None)
    return value if isinstance(value, int) else None


def like(buffer: Any, shape: Sequence[Any]) -> Any:
    """Return a new buffer that differs in its shape alone."""
    from tvm import tirx

    return tirx.decl_buffer(
        list(shape), buffer.dtype, str(buffer.name), None, list(buffer.strides), buffer.elem_offset, buffer.scope(),
        buffer.data_alignment, buffer.offset_factor, layout=buffer.layout if len(buffer.strides) else None,
    )  # fmt: skip


def buffers_of(func: Any) -> list[Any]:
    """Return the parameters and the buffers that the root block allocates."""
    return [*parameters(func), *root_of(func).alloc_buffers]


def _loops(func: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each loop of a plain function with the axis of the block that it runs."""
    body = root_of(func).body
    for statement in body.seq if type(body).__name__ == "SeqStmt" else [body]:
        loops = {}
        while type(statement).__name__ == "For":
            loops[key(statement.loop_var)] = statement
            statement = statement.body
        for value, iv in zip(statement.iter_values, statement.block.iter_vars, strict=True):
            if key(value) in loops:
                yield loops[key(value)], iv


__all__ = ["OpenAxes", "OpenAxis", "buffers_of", "is_open", "like", "number", "open_axes"]
