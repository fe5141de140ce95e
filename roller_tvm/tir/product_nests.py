"""Products of two matrices, and what follows them element by element, read from a PrimFunc that is not scheduled.

The matrices are tensors of any dimensions: a convolution whose window is one pixel is a product of pixels by channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ..errors import UnsupportedOperator
from ..ir.stage import DTYPE_BYTES
from .nodes import Nest, access_of, digits, is_axis, key, nests, structurally_equal, tensors_of, variables
from .open_axes import number
from .placed import evaluate

#: Nodes of the expression that is stored, at most: a value that is read twice stands in it twice.
LARGEST = 400
#: Stands for an extent that is not known: of the first axis of the rows alone, whose extent tells no place.
OPEN = 2


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution whose steps are one: rows of its left operand are pixels of padded images.

    Parameters
    ----------
    pixels : tuple of int
        Extents of the left operand along the axes that number the rows.
    rows : tuple of int
        Extents of the result along them; `pixels` are more where a window goes.
    places, steps : tuple of int
        Along each, the places of the window, and the pixels from one to the next.
    """

    pixels: tuple[int, ...]
    rows: tuple[int, ...]
    places: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def taps(self) -> tuple[tuple[int, int], ...]:
        """Along each dimension of the windows, its places, and the rows from one to the next."""
        below = [prod(self.pixels[n + 1 :]) for n in range(len(self.pixels))]
        found = zip(self.places, self.steps, below, strict=True)
        return tuple((count, step * rows) for count, step, rows in found if count > 1)

    @property
    def all_rows(self) -> int:
        """Rows from the first of the result to the last, those at the ends of the images' lines between."""
        return prod(self.pixels) - sum((count - 1) * step for count, step in self.taps)

    def row(self, pixel: Any) -> Any:
        """Return the number of the result's row at a pixel."""
        found: Any = 0
        for digit, extent in zip(digits(pixel, self.pixels), self.rows, strict=True):
            found = found * extent + digit
        return found

    def within(self, pixel: Any) -> Any:
        """Return whether the result has a row at a pixel."""
        from tvm import tirx

        places = zip(digits(pixel, self.pixels), self.rows, self.pixels, strict=True)
        return tirx.all(*(digit < rows for digit, rows, pixels in places if rows < pixels))


@dataclass(frozen=True, eq=False)
class ProductNest:
    """A product, and the elementwise stages behind it.

    Parameters
    ----------
    func : PrimFunc
    left, right : Buffer
        Parameters of the function: rows x terms, terms x columns. `left` may be what `padding` makes of one.
    left_indices, right_indices : tuple of Expr
        Of the elements that are multiplied.
    out : Buffer
        The last stage's.
    spatial, reduce : tuple of (Var, int or Expr)
        Axes of the product, each with its extent. One of the rows' axes may have an open one, if it is the first of
        more than one element.
    across : frozenset of int
        Positions of the spatial axes that number the columns; the others number the rows.
    followers : tuple of Nest
    result : Buffer
        The product's own.
    padding : Nest, optional
        Elements of a parameter, and numbers around them.
    """

    func: Any
    left: Any
    left_indices: tuple[Any, ...]
    right: Any
    right_indices: tuple[Any, ...]
    out: Any
    spatial: tuple[tuple[Any, Any], ...]
    reduce: tuple[tuple[Any, int], ...]
    across: frozenset[int]
    followers: tuple[Nest, ...]
    result: Any
    padding: Nest | None = None

    @property
    def rows(self) -> Any:
        return prod(extent for n, (_, extent) in enumerate(self.spatial) if n not in self.across)

    @property
    def is_open(self) -> bool:
        """True if the number of rows is not known."""
        return any(number(extent) is None for _, extent in self.spatial)

    @property
    def columns(self) -> int:
        return prod(self.spatial[n][1] for n in self.across)

    @property
    def terms(self) -> int:
        return prod(extent for _, extent in self.reduce)

    def fills(self, lanes: int) -> bool:
        """Return whether terms and columns are neighbours from each multiple of `lanes`; last columns may be fewer."""
        return not self.reduce[-1][1] % lanes and (len(self.across) == 1 or not self.spatial[-1][1] % lanes)

    def moved_bytes(self, size: int = 1) -> int:
        """Return the bytes of what the function reads or writes, without the right operand; open extents are `size`."""
        tensors = [p for p in tensors_of(self.func) if key(p) != key(self.right)]
        return sum(prod(number(e) or size for e in t.shape) * DTYPE_BYTES.get(str(t.dtype), 1) for t in tensors)

    def places(self, row: Any, column: Any) -> list[Any]:
        """Return the indices of an element of the result."""
        positions, found = range(len(self.spatial)), dict[int, Any]()
        for place, own in ((row, [n for n in positions if n not in self.across]), (column, sorted(self.across))):
            found.update(zip(own, digits(place, [number(self.spatial[n][1]) or OPEN for n in own]), strict=True))
        return [found[n] for n in positions]

    def left_at(self, row: Any, term: Any) -> Any:
        """Return an element of the left operand."""
        axes = {key(var): place for (var, _), place in zip(self.spatial, self.places(row, 0), strict=True)}
        places = digits(term, [extent for _, extent in self.reduce])
        axes |= {key(var): place for (var, _), place in zip(self.reduce, places, strict=True)}
        return self._left(axes)

    @cached_property
    def sliding(self) -> tuple[tuple[Any, int], ...]:
        """Axes of the sum that number the places of windows: the first ones."""
        rows = {key(var) for n, (var, _) in enumerate(self.spatial) if n not in self.across}
        found = _sliding(self.left_indices, rows)
        return tuple((var, extent) for var, extent in self.reduce if key(var) in found)

    @property
    def slides(self) -> bool:
        """True if windows of several places slide over the left operand."""
        return any(extent > 1 for _, extent in self.sliding)

    @cached_property
    def windows(self) -> Windows | None:
        """The windows that slide over the left operand; None if there are none, or others."""
        own = [n for n in range(len(self.spatial)) if n not in self.across]
        spatial = {key(self.spatial[n][0]): n for n in own}
        reduced = {key(var): extent for var, extent in self.reduce}
        found: dict[int, tuple[int, int, int]] = {}  # axis -> pixels, places, step
        for index in self.left_indices:
            used = variables(index)
            rows, terms = used & set(spatial), used & set(reduced)
            if not rows:
                continue
            if len(rows) > 1 or len(terms) > 1 or used - rows - terms:
                return None
            (row,) = rows
            if spatial[row] in found or self._weight(index, row) != 1:
                return None
            places, step = 1, 1
            for term in terms:
                places, step = reduced[term], self._weight(index, term)
            found[spatial[row]] = self.spatial[spatial[row]][1] + (places - 1) * step, places, step
        if not self.slides or any(step < 1 for *_, step in found.values()):
            return None
        if self.is_open or any(self.spatial[n][1] > 1 for n in own if n not in found):
            return None
        along = [found.get(n, (1, 1, 1)) for n in own]
        pixels, counts, steps = (tuple(one[part] for one in along) for part in range(3))
        return Windows(pixels, tuple(self.spatial[n][1] for n in own), counts, steps)

    @staticmethod
    def _weight(index: Any, var: int) -> int:
        """Return the elements that an index moves when a variable grows by one."""
        one, none = (int(evaluate(index, {var: np.full(1, n)})[0]) for n in (1, 0))
        return one - none

    @property
    def channels(self) -> int:
        """Terms of one place of the windows."""
        return self.terms // (prod(self.windows.places) if self.windows else 1)

    def left_of_pixel(self, pixel: Any, term: Any) -> Any:
        """Return an element of the left operand: a pixel's, and one of its `channels`."""
        assert self.windows is not None
        own = [n for n in range(len(self.spatial)) if n not in self.across]
        found = dict(zip(own, digits(pixel, self.windows.pixels), strict=True))
        axes = {key(var): found.get(n, 0) for n, (var, _) in enumerate(self.spatial)}
        axes |= {key(var): 0 for var, _ in self.sliding}
        others = self.reduce[len(self.sliding) :]
        places = digits(term, [extent for _, extent in others])
        axes |= {key(var): place for (var, _), place in zip(others, places, strict=True)}
        return self._left(axes)

    def _left(self, axes: Mapping[int, Any]) -> Any:
        """Return the left operand's element where the product's axes have these values."""
        from tvm import tirx

        places = [_at(index, axes, {}) for index in self.left_indices]
        if self.padding is None:
            return tirx.BufferLoad(self.left, places)
        own = {key(iv.var): place for (iv, _), place in zip(self.padding.spatial, places, strict=True)}
        return _at(self.padding.value_of(self.padding.stores[0]), own, {})

    def matrix(self, right: np.ndarray) -> np.ndarray:
        """Return the right operand as a matrix, terms x columns."""
        terms, columns = np.arange(self.terms)[:, None], np.arange(self.columns)[None]
        found = [*zip(self.spatial, self.places(0, columns), strict=True),
                 *zip(self.reduce, digits(terms, [extent for _, extent in self.reduce]), strict=True)]  # fmt: skip
        known = {key(var): np.asarray(place) for (var, _), place in found}
        return right[tuple(np.broadcast_arrays(*(evaluate(index, known) for index in self.right_indices)))]

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
        (anchor, *followers), params = nests(func), tensors_of(func)
    except UnsupportedOperator:
        return None
    padding = None
    if not anchor.reduce and followers and _pads(anchor):
        padding, (anchor, *followers) = anchor, followers
    sizes = [iv.dom.extent for iv, _ in anchor.spatial]
    if not sizes or len(anchor.stores) != 1 or not anchor.reduce:
        return None
    terms = [number(iv.dom.extent) for iv, _ in anchor.reduce]
    operands = _operands(anchor)
    if operands is None or any(extent is None for extent in terms):
        return None
    result = anchor.stores[0].buffer
    found = next((f for a, b in (operands, operands[::-1]) if (f := _axes(anchor, a, b)) is not None), None)
    if found is None:
        return None
    (left, left_at), (right, right_at), across = found
    rows_of = [n for n in range(len(sizes)) if n not in across and number(sizes[n]) != 1]
    if any(number(extent) is None for n, extent in enumerate(sizes) if n not in rows_of[:1]):
        return None
    given = {key(p) for p in params} | {key(padding.stores[0].buffer) for padding in [padding] if padding}
    if padding and key(left) != key(padding.stores[0].buffer):
        return None
    if not {key(left), key(right)} <= given or any(str(t.dtype) != "float32" for t in (left, right, result)):
        return None
    stages = {key(result)}
    for nest in followers:
        if nest.reduce or nest.elsewhere or len(nest.stores) != 1:
            return None
        if not _same_sizes([iv.dom.extent for iv, _ in nest.spatial], sizes):
            return None
        if not _reads_plainly(nest, stages):
            return None
        stages.add(key(nest.stores[0].buffer))
    out = followers[-1].stores[0].buffer if followers else result
    outputs = [p for p in params if key(p) in stages]
    if len(outputs) != 1 or key(outputs[0]) != key(out) or key(out) == key(left):
        return None
    rows = {key(iv.var) for n, (iv, _) in enumerate(anchor.spatial) if n not in across}
    slide, last = _sliding(left_at, rows), key(left_at[-1])
    # Places of windows first, neighbours in memory last.
    summed = sorted(anchor.reduce, key=lambda axis: (key(axis[0].var) not in slide, key(axis[0].var) == last))
    spatial, reduce = (
        tuple((iv.var, known if (known := number(iv.dom.extent)) is not None else iv.dom.extent) for iv, _ in axes)
        for axes in (anchor.spatial, summed)
    )
    product = ProductNest(func, left, tuple(left_at), right, tuple(right_at), out, spatial, reduce, across,
                          tuple(followers), result, padding)  # fmt: skip
    return product if _size_of(product) <= LARGEST else None


def _sliding(indices: Sequence[Any], rows: set[int]) -> set[int]:
    """Return the variables that stand in an index together with an axis of the rows, by ``key``."""
    return set().union(*(used for used in map(variables, indices) if used & rows)) - rows


def _same_sizes(extents: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether extents are the same numbers or expressions."""
    def same(a: Any, b: Any) -> bool:
        return number(a) == number(b) if number(a) is not None else bool(structurally_equal(a, b))

    return len(extents) == len(others) and all(map(same, extents, others))


def _operands(anchor: Nest) -> tuple[tuple[Any, list[Any]], tuple[Any, list[Any]]] | None:
    """Return buffer and indices of both factors of ``c[...] = c[...] + a[...] * b[...]``."""
    value = anchor.value_of(anchor.stores[0])
    if type(value).__name__ != "Add" or type(value.b).__name__ != "Mul":
        return None
    own, left, right = access_of(value.a), access_of(value.b.a), access_of(value.b.b)
    if own is None or left is None or right is None or key(own[0]) != key(anchor.stores[0].buffer):
        return None
    return left, right


def _axes(
    anchor: Nest, left: tuple[Any, list[Any]], right: tuple[Any, list[Any]]
) -> tuple[tuple[Any, list[Any]], tuple[Any, list[Any]], frozenset[int]] | None:
    """Return both operands and the positions of the columns' axes; None if an element of one row has others to itself.

    Neighbouring terms have to be neighbours in the left operand, and neighbouring columns in the result.
    """
    used = [set().union(*map(variables, places)) for _, places in (left, right)]
    across = frozenset(n for n, (iv, _) in enumerate(anchor.spatial) if key(iv.var) in used[1])
    if any(key(anchor.spatial[n][0].var) in used[0] for n in across) or len(anchor.spatial) - 1 not in across:
        return None
    *others, last = left[1]
    if not any(key(last) == key(iv.var) for iv, _ in anchor.reduce) or any(key(last) in variables(o) for o in others):
        return None
    return left, right, across


def _are_axes(places: Sequence[Any], axes: Sequence[Any]) -> bool:
    """Return whether indices are these axes, in order."""
    return len(places) == len(axes) and all(map(is_axis, places, axes))


def _pads(nest: Nest) -> bool:
    """Return whether a stage stores elements of one tensor, whole rows of its last dimension, and numbers."""
    import tvm_ffi
    from tvm import ir

    if nest.elsewhere or len(nest.stores) != 1 or not nest.spatial:
        return False
    reads: list[Any] = []
    tvm_ffi.structural_walk(nest.value_of(nest.stores[0]), (ir.TensorLoad, reads.append))
    return len(reads) == 1 and bool(places := list(reads[0].indices)) and is_axis(places[-1], nest.spatial[-1][0])


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
