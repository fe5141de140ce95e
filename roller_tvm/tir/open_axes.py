"""Open (symbolic) axes of a PrimFunc: which axes and dimensions are one axis, and the function with extents set.

Two functions of the same sequence length may use it differently: a product's rows can be computed one by one, a sum
over them cannot. So each axis is on its own: ``scores[i, j]`` has two, although both extents are ``n``.

A tensor in between that is read at ``2 * i + k`` (a padded picture) has no axis of its own: its dimension *follows* the
axis ``i`` at twice its pace, and is as long as a tile of ``i`` reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import UnsupportedOperator
from ..te.nodes import REMEDY
from ..te.quotient import nodes_of
from .nodes import Nest, accesses, analyzer_of_tvm, key, nests, root_of, structurally_equal, tensors_of

#: Where an axis occurs: ("axis", variable) or ("dim", buffer, number), variables and buffers by ``key``.
Place = tuple[Any, ...]
#: Stands for a size that a function computes with, when it is read; and for a dimension that is read anywhere.
SIZE, ANYWHERE = 1 << 16, 512


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
    following : dict
        Place without an axis of its own -> (position of the axis that it follows, pace).
    reads : dict
        Dimension without an axis of its own -> the indices of its reads.
    symbols : list of Var
        Sizes that the function computes with.
    """

    func: Any
    axes: list[OpenAxis] = field(default_factory=list)
    places: dict[Place, int] = field(default_factory=dict)
    following: dict[Place, tuple[int, int]] = field(default_factory=dict)
    reads: dict[Place, list[Any]] = field(default_factory=dict)
    symbols: list[Any] = field(default_factory=list)
    _same: dict[Place, Place] = field(default_factory=dict)

    @cached_property
    def _nests(self) -> Sequence[Nest]:
        return nests(self.func)

    def dims(self, buffer: Any) -> list[int | None]:
        """Return the axis of each dimension of a buffer, None for those of constant extent or without an axis."""
        return [self.places.get(("dim", key(buffer), d)) for d in range(len(buffer.shape))]

    @property
    def windows(self) -> bool:
        """True if something in between follows an axis: a convolution's or a pooling's padded input."""
        return bool(self.following)

    def fixed(self, extents: Sequence[int], read: bool = False) -> Any:
        """Return the function with these extents of its axes.

        Parameters
        ----------
        extents : sequence of int
        read : bool
            Numbers for the sizes that it computes with, too: it can be read then, not run.

        Examples
        --------
        >>> closed = open_axes(func).fixed([8])
        """
        import tvm_ffi
        from tvm import ir, s_tir, tirx

        known = self._extents(extents)

        def const(value: int, like: Any) -> Any:
            return tirx.const(value, str(like.ty.dtype))

        made = {}
        for buffer in buffers_of(self.func):
            places = [("dim", key(buffer), d) for d in range(len(buffer.shape))]
            shape = [const(known[p], e) if p in known else e for p, e in zip(places, buffer.shape, strict=True)]
            if any(place in known for place in places):
                made[key(buffer)] = like(buffer, shape)
        loops = {key(loop.loop_var): ("axis", key(iv.var)) for loop, iv in _loops(self.func)}
        numbers = {key(s): tirx.const(SIZE, str(s.ty.dtype)) for s in self.symbols}

        def loop(node: Any) -> Any:
            place = loops.get(key(node.loop_var))
            if place not in known:
                return node
            return tirx.For(node.loop_var, node.min, const(known[place], node.extent), node.kind, node.body)

        def block(node: Any) -> Any:
            own = [known.get(("axis", key(iv.var))) for iv in node.iter_vars]
            if all(extent is None for extent in own):
                return node
            ivs = [
                iv if extent is None else tirx.IterVar(
                    ir.Range.from_min_extent(iv.dom.min, const(extent, iv.dom.extent)), iv.var, iv.iter_type,
                    iv.thread_tag,
                )
                for iv, extent in zip(node.iter_vars, own, strict=True)
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
        if read:  # now that no shape holds them
            body = tvm_ffi.structural_map(body, (tirx.Var, lambda var: numbers.get(key(var), var)), order="post")
        params = [made.get(key(p), p) for p in tensors_of(self.func)] + ([] if read else self.symbols)
        return s_tir.renew_defs(tirx.PrimFunc(params, body, self.func.ret_type, self.func.attrs))

    def _extents(self, extents: Sequence[int]) -> dict[Place, int]:
        """The extent of each place without a constant one."""
        from tvm import ir

        known = {place: extents[at] for place, at in self.places.items()}
        analyzer = analyzer_of_tvm()
        for symbol in self.symbols:
            analyzer.bind(symbol, ir.Range(SIZE, SIZE + 1))
        bound: set[int] = set()
        for nest in self._nests:
            for iv, _ in (*nest.spatial, *nest.reduce):
                extent = known.get(("axis", key(iv.var)), number(iv.dom.extent))
                if extent is not None:
                    analyzer.bind(iv.var, ir.Range(0, extent))
                    bound.add(key(iv.var))

        def reach(indices: list[Any]) -> int:
            most = [analyzer.const_int_bound(index).max_value for index in indices]
            far = [m for m in most if 0 <= m < SIZE // 2]
            return max(far) + 1 if far else ANYWHERE

        # What follows an axis first: a dimension that the padding reads is as long as that of what it writes.
        following = {place: reach(i) for place, i in self.reads.items() if place in self.following}
        for place in self.following:
            known[place] = following.get(place) or following[self._same[place]]
        for nest in self._nests:
            for iv, _ in nest.spatial:
                if key(iv.var) not in bound and ("axis", key(iv.var)) in known:
                    analyzer.bind(iv.var, ir.Range(0, known["axis", key(iv.var)]))
        for place, indices in self.reads.items():
            known.setdefault(place, reach(indices))
        return known


def is_open(func: Any) -> bool:
    """Return whether a parameter of a function has a dimension without a constant extent, or is a size."""
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
        The function has the form of none that is planned.

    Examples
    --------
    >>> [axis.name for axis in open_axes(func).axes]
    ['i']
    """
    return _Reader(func).read()


class _Reader:
    """Finds the open axes of a function."""

    def __init__(self, func: Any) -> None:
        self.func, self.found = func, nests(func)
        self.params = {key(b) for b in tensors_of(func)}
        self.joined = _Open()
        self.whole: set[Place] = set()
        #: Dimension -> (nest, index) where it is read at more than an axis.
        self.reads: dict[Place, list[tuple[Nest, Any]]] = {}

    def read(self) -> OpenAxes:
        for nest in self.found:
            own: dict[int, Place] = {}
            for iv, label in (*nest.spatial, *nest.reduce):
                if number(iv.dom.extent) is None:
                    own[key(iv.var)] = self.joined.add(("axis", key(iv.var)), label, iv.dom.extent)
            self.whole |= {own[key(iv.var)] for iv, _ in nest.reduce if key(iv.var) in own}
            for buffer, indices in accesses(nest.block):
                self._access(nest, own, buffer, indices)
        followed = self._followed()
        result = OpenAxes(self.func, symbols=self._symbols())
        numbers: dict[Place, int] = {}
        wholes = {self.joined.root(place) for place in self.whole}
        pending = []
        for place, (label, extent) in self.joined.of.items():
            root = self.joined.root(place)
            if root in followed:
                pending.append(place)
                continue
            if place in self.reads and not any(p[0] == "axis" for p in self.joined.of if self.joined.root(p) == root):
                result.reads[place] = [index for _, index in self.reads[place]]
                continue
            if root not in numbers:
                numbers[root] = len(result.axes)
                result.axes.append(OpenAxis(label, extent, root not in wholes))
            elif not _equal(result.axes[numbers[root]].extent, extent):
                told = f"an axis has the extents {result.axes[numbers[root]].extent} and {extent}"
                raise _refused(told)
            result.places[place] = numbers[root]
        for place in pending:
            root = self.joined.root(place)
            axis, pace = followed[root]
            at = numbers.get(self.joined.root(axis))
            if at is None or not result.axes[at].sliced:
                raise _refused("a reduction along an open axis reads parts of what is computed before")
            result.following[place] = at, pace
            if place in self.reads:
                result.reads[place] = [index for _, index in self.reads[place]]
        for place in pending:
            read = [p for p in pending if p in self.reads and self.joined.root(p) == self.joined.root(place)]
            result._same[place] = read[0]
        return result

    def _access(self, nest: Nest, own: dict[int, Place], buffer: Any, indices: Sequence[Any]) -> None:
        """Note what the dimensions of an access are indexed by."""
        for d, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            if number(extent) is not None:
                if key(buffer) not in self.params and key(index) not in own and _uses(index, own):
                    raise _refused(f"'{buffer.name}' is read in parts of an open axis")
                continue
            dim = self.joined.add(("dim", key(buffer), d), "", extent)
            axis = own.get(key(index))
            if axis is not None and (key(buffer) not in self.params or _equal(self.joined.of[axis][1], extent)):
                self.joined.join(dim, axis)
            else:
                self.reads.setdefault(dim, []).append((nest, index))

    def _followed(self) -> dict[Place, tuple[Place, int]]:
        """Dimension in between that is read at a multiple of an axis and a bit -> that axis, and the multiple."""
        found: dict[Place, tuple[Place, int]] = {}
        for dim, reads in self.reads.items():
            if dim[1] in self.params:
                continue
            root = self.joined.root(dim)
            for nest, index in reads:
                way = _along(index, nest)
                if way is None or found.get(root, way) != way or self.joined.root(way[0]) == root:
                    raise _refused("a tensor in between is read in a way that is not known along an open axis")
                found[root] = way
        written = {key(b) for nest in self.found for b in nest.outputs} & self.params
        for place in self.joined.of:  # an axis of what reads it would be cut in tiles of its own
            root = self.joined.root(place)
            if root in found and place[0] == "dim" and place[1] in written:
                raise _refused("a result is read again in parts of an open axis")
        return found

    def _symbols(self) -> list[Any]:
        """The sizes that the function computes with, other than as extents of loops and tensors."""
        values: list[Any] = []
        for nest in self.found:
            values += [part for store in (*nest.stores, *nest.init) for part in (store.value, *store.indices)]
            values += [value for _, value in nest.lets]
            values += [index for _, indices in accesses(nest.block) for index in indices]
        used = {key(node) for value in values for node in nodes_of(value)}
        extents = [extent for buffer in buffers_of(self.func) for extent in buffer.shape]
        own = {key(p): p for p in self.func.params if key(p) not in self.params}
        own |= {key(v): v for e in extents for v in nodes_of(e) if type(v).__name__ in ("Var", "SizeVar")}
        return [var for k, var in own.items() if k in used]


def _along(index: Any, nest: Nest) -> tuple[Place, int] | None:
    """The open axis that an index goes along, and by how much: ``2 * i + k`` by 2; None for another form."""
    import tvm

    axes = [iv for iv, _ in (*nest.spatial, *nest.reduce)]
    detect = (tvm.sym if hasattr(tvm, "sym") else tvm.arith).detect_linear_equation
    form = detect(index, [iv.var for iv in axes])
    paces = [-1 if (value := number(part)) is None else value for part in form]
    if len(form) != len(axes) + 1 or min(paces) < 0:
        return None
    opened = [(iv, pace) for iv, pace in zip(axes, paces, strict=False) if pace and number(iv.dom.extent) is None]
    return (("axis", key(opened[0][0].var)), opened[0][1]) if len(opened) == 1 else None


def _uses(index: Any, own: dict[int, Place]) -> bool:
    return any(key(node) in own for node in nodes_of(index))


def _equal(a: Any, b: Any) -> bool:
    return bool(structurally_equal(a, b)) or bool(analyzer_of_tvm().can_prove_equal(a, b))


def _refused(what: str) -> UnsupportedOperator:
    return UnsupportedOperator(what, "open extents", REMEDY)


class Joined:
    """Places in disjoint sets."""

    def __init__(self) -> None:
        self._up: dict[Place, Place] = {}

    def root(self, place: Place) -> Place:
        while place in self._up:
            place = self._up[place]
        return place

    def join(self, a: Place, b: Place) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self._up[a] = b


class _Open(Joined):
    """Places with an open extent."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[Place, tuple[str, Any]] = {}

    def add(self, place: Place, label: str, extent: Any) -> Place:
        self.of.setdefault(place, (label, extent))
        return place


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
    return [*tensors_of(func), *root_of(func).alloc_buffers]


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
