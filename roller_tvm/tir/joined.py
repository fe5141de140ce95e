"""PrimFuncs that join tensors along an axis, and PrimFuncs made to work on a part of a larger tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .nodes import access_of, buffer_of, key


@dataclass(frozen=True)
class Joined:
    """A concatenation: a function's parameters in order along an axis of its result, its last parameter.

    Parameters
    ----------
    axis : int
    order : tuple of int
        Positions of the parameters, in their order along the axis.
    """

    axis: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Position of a tensor inside a larger tensor of the same rank.

    Parameters
    ----------
    shape : tuple of int
        Shape of the larger tensor.
    start : tuple of int

    Examples
    --------
    >>> Place((1, 8, 14, 14), (0, 4, 0, 0)).inside(Place((1, 12, 14, 14), (0, 2, 0, 0)))
    Place(shape=(1, 12, 14, 14), start=(0, 6, 0, 0))
    """

    shape: tuple[int, ...]
    start: tuple[int, ...]

    def inside(self, other: Place) -> Place:
        """Return the position in `other`'s tensor if the larger tensor is itself at `other`."""
        return Place(other.shape, tuple(a + b for a, b in zip(self.start, other.start, strict=True)))


def joined_by(func: Any) -> Joined | None:
    """Return the concatenation that a function computes, scheduled or not; None if it does anything else.

    Examples
    --------
    >>> joined_by(mod["concatenate"])
    Joined(axis=1, order=(0, 1))
    """
    shapes = [shape_of(param) for param in func.params]
    blocks = blocks_of(func)
    if len(blocks) != 1 or len(shapes) < 2 or any(shape is None for shape in shapes):
        return None
    block, whole = blocks[0], shapes[-1]
    store = block.body
    if type(store).__name__ != "BufferStore" or key(store.buffer) != key(func.params[-1]) or block.init is not None:
        return None
    axes = [iv.var for iv in block.iter_vars]
    if [key(i) for i in store.indices] != [key(v) for v in axes] or whole is None:
        return None
    if [_number(iv.dom.extent) for iv in block.iter_vars] != list(whole):
        return None
    parts = _parts(store.value, axes)
    if parts is None:
        return None
    at, places, rank = 0, [], len(whole)
    positions = {key(param): n for n, param in enumerate(func.params)}
    along = {axis for axis, _, _ in parts if axis is not None}
    axis = along.pop() if len(along) == 1 else -1
    for _, start, (source, offsets) in parts:
        position = positions.get(key(source))
        shape = None if position is None else shapes[position]
        if shape is None or position is None or len(shape) != rank or start != at:
            return None
        if axis < 0 or offsets != tuple(-at if n == axis else 0 for n in range(rank)):
            return None
        if any(shape[n] != whole[n] for n in range(rank) if n != axis):
            return None
        at += shape[axis]
        places.append(position)
    same = {str(param.ty.dtype) for param in func.params}
    if at != whole[axis] or len(set(places)) != len(places) or len(places) != len(shapes) - 1 or len(same) > 1:
        return None
    return Joined(axis, tuple(places))


def blocks_of(func: Any) -> list[Any]:
    """Return the blocks of a function except its root."""
    import tvm_ffi
    from tvm import s_tir

    found: list[Any] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, found.append))
    return [block for block in found if str(block.name_hint) != "root"]


#: A tensor, and the offsets from the axes at which it is read.
_Read = tuple[Any, tuple[int, ...]]
#: Axis (None for the first part), begin of a read along it, and the read.
_Part = tuple[int | None, int, _Read]


def _parts(value: Any, axes: list[Any]) -> list[_Part] | None:
    """Return the parts (axis, begin along it, read) of nested choices between reads; None if it is anything else.

    ``8 <= v ? C[v - 8] : 4 <= v ? B[v - 4] : A[v]``  ->  A from 0, B from 4, C from 8.
    """
    later: list[_Part] = []
    below: int | None = None
    while (chosen := _choice(value, axes)) is not None:
        axis, start, inside, value = chosen
        read = _read(inside, axes)
        if read is None or (below is not None and start >= below):
            return None
        later.append((axis, start, read))
        below = start
    first = _read(value, axes)
    return None if first is None else [(None, 0, first), *reversed(later)]


def _choice(value: Any, axes: list[Any]) -> tuple[int, int, Any, Any] | None:
    """Return axis and start of ``start <= axis``, the value from there on, and the value before; else None."""
    if not str(getattr(getattr(value, "op", None), "name", "")).endswith("if_then_else"):
        return None
    condition, inside, before = value.args
    kind = type(condition).__name__
    sides = (condition.a, condition.b) if kind == "LE" else (condition.b, condition.a) if kind == "GE" else None
    if sides is None:
        return None
    start, var = _number(sides[0]), key(sides[1])
    found = [n for n, axis in enumerate(axes) if key(axis) == var]
    return (found[0], start, inside, before) if found and start is not None else None


def _read(value: Any, axes: list[Any]) -> _Read | None:
    """Return the tensor that is read at the axes plus constant offsets, and the offsets; else None."""
    access = access_of(value)
    if access is None or len(access[1]) != len(axes):
        return None
    offsets = []
    for index, axis in zip(access[1], axes, strict=True):
        if key(index) == key(axis):
            offsets.append(0)
        elif type(index).__name__ in ("Sub", "Add") and key(index.a) == key(axis):
            number = _number(index.b)
            if number is None:
                return None
            offsets.append(-number if type(index).__name__ == "Sub" else number)
        else:
            return None
    return access[0], tuple(offsets)


def _number(node: Any) -> int | None:
    value = node if isinstance(node, int) else getattr(node, "value", None)
    return value if isinstance(value, int) else None


def shape_of(param: Any) -> tuple[int, ...] | None:
    """Return the extents of a parameter that is a plain tensor of known shape, else None."""
    kind: Any = getattr(param, "ty", None)
    if not hasattr(kind, "data_alignment"):
        return None
    extents = [_number(e) for e in kind.shape]
    if any(e is None for e in extents) or len(kind.strides) or _number(kind.elem_offset) != 0:
        return None
    return tuple(e for e in extents if e is not None)


def written_by(func: Any) -> set[int] | None:
    """Return the positions of the parameters that a function stores to; None if one is used other than by loads and
    stores.

    Examples
    --------
    >>> written_by(mod["concatenate"])
    {2}
    """
    import tvm_ffi
    from tvm import ir, tirx

    positions = {key(param): n for n, param in enumerate(func.params)}
    stored: set[int] = set()
    seen = {n: 0 for n in positions.values()}
    known = dict(seen)

    def count(counts: dict[int, int], node: Any) -> None:
        if (position := positions.get(key(node))) is not None:
            counts[position] += 1

    def store(node: Any) -> None:
        count(known, node.buffer)
        if (position := positions.get(key(node.buffer))) is not None:
            stored.add(position)

    tvm_ffi.structural_walk(
        func.body,
        [
            (tirx.Var, lambda var: count(seen, var)),
            (ir.TensorLoad, lambda load: count(known, load.source)),
            (ir.TensorRegion, lambda region: count(known, buffer_of(region))),
            (tirx.BufferStore, store),
        ],
    )
    return stored if seen == known else None


def placed(func: Any, places: Mapping[int, Place]) -> Any:
    """Return a function that takes larger tensors in place of the parameters at these positions, as parts of them.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Scheduled or not; `written_by` is not None.
    places : mapping of int to Place

    Examples
    --------
    >>> whole = placed(func, {2: Place((1, 8, 14, 14, 16), (0, 4, 0, 0, 0))})
    """
    import tvm_ffi
    from tvm import ir, tirx

    made, starts = {}, {}
    for position, place in places.items():
        param = func.params[position]
        old = param.ty
        shape = [tirx.const(e, str(like.ty.dtype)) for e, like in zip(place.shape, old.shape, strict=True)]
        made[key(param)] = tirx.decl_buffer(
            shape, old.dtype, str(param.name), None, list(old.strides), old.elem_offset, param.scope(),
            old.data_alignment, old.offset_factor, layout=old.layout,
        )  # fmt: skip
        starts[key(param)] = place.start

    def moved(buffer: Any, indices: Any) -> list[Any]:
        return [i + s if s else i for i, s in zip(indices, starts[key(buffer)], strict=True)]

    def load(node: Any) -> Any:
        buffer = node.source
        return node if key(buffer) not in made else tirx.BufferLoad(made[key(buffer)], moved(buffer, node.indices))

    def store(node: Any) -> Any:
        buffer = node.buffer
        if key(buffer) not in made:
            return node
        return tirx.BufferStore(made[key(buffer)], node.value, moved(buffer, node.indices))

    def region(node: Any) -> Any:
        buffer = buffer_of(node)
        if key(buffer) not in made:
            return node
        ranges = list(node.region)
        least = moved(buffer, [r.min for r in ranges])
        parts = [ir.Range.from_min_extent(m, r.extent) for m, r in zip(least, ranges, strict=True)]
        return tirx.BufferRegion(made[key(buffer)], parts)

    rewritten = [(ir.TensorLoad, load), (tirx.BufferStore, store), (ir.TensorRegion, region)]
    body = tvm_ffi.structural_map(func.body, rewritten, order="post")
    params = [made.get(key(p), p) for p in func.params]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


__all__ = ["Joined", "Place", "blocks_of", "joined_by", "placed", "shape_of", "written_by"]
