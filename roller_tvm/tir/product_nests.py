"""Products of two matrices, and what follows them element by element, read from a PrimFunc that is not scheduled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..errors import UnsupportedOperator
from .nodes import Nest, access_of, digits, is_axis, key, nests, parameters
from .open_axes import number

#: Nodes of the expression that is stored, at most: a value that is read twice stands in it twice.
LARGEST = 400


@dataclass(frozen=True, eq=False)
class ProductNest:
    """A product, and the elementwise stages behind it.

    Parameters
    ----------
    func : PrimFunc
    left, right : Buffer
        Parameters of the function: rows x terms, terms x columns.
    out : Buffer
        The last stage's.
    extents : tuple of int
        Of the result; all but the last are rows.
    terms : int
    followers : tuple of Nest
    result : Buffer
        The product's own.
    """

    func: Any
    left: Any
    right: Any
    out: Any
    extents: tuple[int, ...]
    terms: int
    followers: tuple[Nest, ...]
    result: Any

    @property
    def rows(self) -> int:
        return prod(self.extents[:-1])

    @property
    def columns(self) -> int:
        return self.extents[-1]

    def places(self, row: Any, column: Any) -> list[Any]:
        """Return the indices of an element of the result."""
        return [*digits(row, self.extents[:-1]), column]

    def left_at(self, row: Any, term: Any) -> Any:
        """Return an element of the left operand."""
        from tvm import tirx

        return tirx.BufferLoad(self.left, self.places(row, term))

    def stored(self, row: Any, column: Any, value: Any) -> Any:
        """Return the statement that stores what follows from an element of the product."""
        from tvm import tirx

        places, known = self.places(row, column), {key(self.result): value}
        for nest in self.followers:
            (store,) = nest.stores
            axes = {key(iv.var): place for (iv, _), place in zip(nest.spatial, places, strict=True)}
            known[key(store.buffer)] = _at(nest.value_of(store), axes, known)
        return tirx.BufferStore(self.out, known[key(self.out)], places)


def product_nest(func: Any) -> ProductNest | None:
    """Return the product of float32 that a function computes; None if it computes anything else.

    Examples
    --------
    >>> from roller_tvm.tir.product_nests import product_nest
    >>> from tvm import te, topi
    >>> a, b = te.placeholder((8, 64), name="a"), te.placeholder((64, 32), name="b")
    >>> found = product_nest(te.create_prim_func([a, b, topi.nn.relu(topi.matmul(a, b))]))
    >>> found.rows, found.terms, found.columns, len(found.followers)
    (8, 64, 32, 1)
    """
    try:
        (anchor, *followers), params = nests(func), parameters(func)
    except UnsupportedOperator:
        return None
    sizes = _sizes(anchor)
    if sizes is None or len(anchor.stores) != 1 or len(anchor.reduce) != 1 or len(sizes) < 2:
        return None
    operands = _operands(anchor)
    if operands is None:
        return None
    (left, left_at), (right, right_at) = operands
    axes, k = [axis for axis, _ in anchor.spatial], anchor.reduce[0][0]
    terms = number(k.dom.extent)
    plain = _are_axes(left_at, [*axes[:-1], k]) and _are_axes(right_at, [k, axes[-1]])
    given = {key(p) for p in params}
    result = anchor.stores[0].buffer
    tensors = [left, right, result]
    if not plain or terms is None or not {key(left), key(right)} <= given:
        return None
    if any(str(tensor.dtype) != "float32" for tensor in tensors):
        return None
    if [number(e) for e in left.shape] != [*sizes[:-1], terms]:
        return None
    stages = {key(result)}
    for nest in followers:
        if nest.reduce or nest.elsewhere or len(nest.stores) != 1 or _sizes(nest) != sizes:
            return None
        if not _reads_plainly(nest, stages):
            return None
        stages.add(key(nest.stores[0].buffer))
    out = followers[-1].stores[0].buffer if followers else result
    outputs = [p for p in params if key(p) in stages]
    if len(outputs) != 1 or key(outputs[0]) != key(out) or key(out) == key(left):
        return None
    found = ProductNest(func, left, right, out, tuple(sizes), terms, tuple(followers), result)
    return found if _size_of(found) <= LARGEST else None


def _sizes(nest: Nest) -> list[int] | None:
    found = [number(iv.dom.extent) for iv, _ in nest.spatial]
    return None if any(extent is None for extent in found) else [int(extent) for extent in found if extent is not None]


def _operands(anchor: Nest) -> tuple[tuple[Any, list[Any]], tuple[Any, list[Any]]] | None:
    """Return buffer and indices of both factors of ``c[...] = c[...] + a[...] * b[...]``."""
    value = anchor.value_of(anchor.stores[0])
    if type(value).__name__ != "Add" or type(value.b).__name__ != "Mul":
        return None
    own, left, right = access_of(value.a), access_of(value.b.a), access_of(value.b.b)
    if own is None or left is None or right is None or key(own[0]) != key(anchor.stores[0].buffer):
        return None
    return left, right


def _are_axes(places: Sequence[Any], axes: Sequence[Any]) -> bool:
    """Return whether indices are these axes, in order."""
    return len(places) == len(axes) and all(map(is_axis, places, axes))


def _reads_plainly(nest: Nest, stages: set[int]) -> bool:
    """Return whether a stage reads of the stages before it the element that it stores, and no more."""
    import tvm_ffi
    from tvm import ir

    reads: list[Any] = []
    tvm_ffi.structural_walk(nest.value_of(nest.stores[0]), (ir.TensorLoad, reads.append))
    axes = [axis for axis, _ in nest.spatial]
    own = [load for load in reads if key(load.source) in stages]
    return bool(own) and all(_are_axes(list(load.indices), axes) for load in own)


def _at(value: Any, axes: Mapping[int, Any], known: Mapping[int, Any]) -> Any:
    """Return a stage's value with expressions in place of its axes and of the stages before it."""
    import tvm_ffi
    from tvm import ir, tirx

    def load(node: Any) -> Any:
        return known.get(key(node.source), node)

    def var(node: Any) -> Any:
        place = axes.get(key(node), node)
        return tirx.const(place, str(node.ty.dtype)) if isinstance(place, int) else place

    return tvm_ffi.structural_map(value, [(tirx.Var, var), (ir.TensorLoad, load)], order="post")


def _size_of(found: ProductNest) -> int:
    """Return the nodes of what is stored, values that are read several times counted as often."""
    import tvm_ffi
    from tvm import ir

    sizes = {key(found.result): 1}
    for nest in found.followers:
        nodes: list[Any] = []
        loads: list[Any] = []
        value = nest.value_of(nest.stores[0])
        tvm_ffi.structural_walk(value, [(ir.TensorLoad, loads.append), (ir.Expr, nodes.append)])
        sizes[key(nest.stores[0].buffer)] = len(nodes) + sum(sizes.get(key(load.source), 1) for load in loads)
    return max(sizes.values())
