"""Winograd's algorithm for 3x3 convolutions of stride 1: F(m x m, 3 x 3) takes (m + 2)^2 products for m^2 outputs.

The image is cut into tiles that overlap by two. Each is transformed, multiplied with the transformed weights element
by element (summed over channels: a batch of matrix products), and transformed back. The matrices follow from the
points at which the polynomials of Cook and Toom's algorithm are interpolated.

Exactness in float32, beside sums of as many products in float64: the error of direct convolution is some 1e-7 of the
largest output; F(2x2) has at most 2 times that, F(4x4) at most 20 times (`tests/te/test_winograd.py` holds both).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm, prod
from typing import Any

import numpy as np

#: Rows and columns of the window.
WINDOW = 3
#: Outputs of a tile along an axis -> points, beside infinity. Small whole numbers: their powers lose the fewest digits.
POINTS = {2: (0, 1, -1), 4: (0, 1, -1, 2, -2)}
#: Outputs whose weights are transformed at once.
_AT_ONCE = 32
#: Reads an element: (batch, row, column, channel) -> value.
Read = Callable[[Any, Any, Any, Any], Any]


@lru_cache(maxsize=len(POINTS))
def matrices(tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the transforms of results, images and weights, in float64.

    With A, B and G, ``A.T @ ((G @ g) * (B @ d))`` are the `tile` outputs of a window g over the elements d.

    Examples
    --------
    >>> a, b, g = matrices(2)
    >>> d, window = np.arange(4.0), np.array([1.0, 2.0, 3.0])
    >>> (a.T @ ((g @ window) * (b @ d))).tolist()
    [8.0, 14.0]
    """
    points = [Fraction(point) for point in POINTS[tile]]
    edge = tile + WINDOW - 1
    scales = [prod((p - q for q in points if q is not p), start=Fraction(1)) for p in points]
    results = [[p**n for n in range(tile)] for p in points] + [[Fraction(n == tile - 1) for n in range(tile)]]
    weights = [[p**n / scale for n in range(WINDOW)] for p, scale in zip(points, scales, strict=True)]
    weights.append([Fraction(n == WINDOW - 1) for n in range(WINDOW)])
    images = [[*_polynomial([q for q in points if q is not p]), Fraction(0)] for p in points] + [_polynomial(points)]
    for row in range(edge):  # whole numbers in what is computed for each image
        factor = lcm(*(value.denominator for value in images[row]))
        images[row] = [value * factor for value in images[row]]
        weights[row] = [value / factor for value in weights[row]]
    a, b, g = (np.array([[float(v) for v in row] for row in matrix]) for matrix in (results, images, weights))
    return a, b, g


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the product of (x - root), the constant one first."""
    found = [Fraction(1)]
    for root in roots:
        found = [below - root * own for below, own in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def transformed_weights(weights: np.ndarray, tile: int) -> np.ndarray:
    """Return weights (O, I, 3, 3) as (m + 2, m + 2, O, I), computed in float64 and rounded once."""
    _, _, g = matrices(tile)
    edge, (outputs, inputs) = len(g), weights.shape[:2]
    made = np.empty((edge * edge, outputs, inputs), weights.dtype)
    for start in range(0, outputs, _AT_ONCE):  # what float64 takes of them stays small
        some = weights[start : start + _AT_ONCE].reshape(-1, WINDOW * WINDOW).astype(np.float64)
        made[:, start : start + _AT_ONCE] = (np.kron(g, g) @ some.T).reshape(edge * edge, -1, inputs)
    return made.reshape(edge, edge, outputs, inputs)


def constant(matrix: np.ndarray, name: str) -> Any:
    """Return a matrix of constants as TE: choices of a row and of a column, without the zeros.

    Uses are unrolled, and TVM simplifies each product's choices twice. Those of ``topi.utils.const_matrix``, among all
    elements, make a kernel's build half as long again.
    """
    import tvm
    from tvm import te

    tir = tvm.tir if hasattr(tvm, "tir") else tvm.tirx

    def element(i: Any, j: Any) -> Any:
        value = zero = tir.const(0.0, str(matrix.dtype))
        for number, constants in enumerate(matrix):
            own = zero
            for at in np.flatnonzero(constants):
                own = tir.Select(j == int(at), tir.const(float(constants[at]), str(matrix.dtype)), own)
            value = tir.Select(i == number, own, value)
        return value

    # What TVM's own tuners know such a matrix by.
    return te.compute(matrix.shape, element, name=name, attrs={"const_matrix": True, "schedule_rule": "None"})


def winograd(
    read: Read, image: tuple[Any, int, int, int], weights: Any, tile: int, shape: Sequence[int],
    place: Callable[..., tuple[Any, Any, Any, Any]], dtype: str, block: int = 0, strip: int = 0,
) -> Any:  # fmt: skip
    """Return a convolution by Winograd's algorithm as TE.

    Parameters
    ----------
    read : function
        Reads an element of the padded image; rows and columns behind it are zeros.
    image : tuple of int
        Batch (which may be an expression), rows, columns of the result, and channels of the data.
    weights : te.Tensor
        See `transformed_weights`.
    tile : int
    shape : sequence of int
        Of the result.
    place : function
        Index of the result -> batch, row, column, filter.
    dtype : str
    block : int
        Channels of a block in what lies between, tiles of a block side by side, where data and result are so arranged;
        0: all channels of a tile side by side.
    strip : int
        Rows of tiles of a strip, which divides an image: what lies between has one strip after the other (each can be
        computed on its own, see `ir.slices`). 0: planes of all tiles.
    """
    from tvm import te

    batch, rows, columns, channels = image
    filters, edge = int(weights.shape[2]), tile + WINDOW - 1
    tiles = _Tiles(batch, -(-rows // tile), -(-columns // tile), strip, block if isinstance(batch, int) else 0)
    a, b, _ = matrices(tile)
    back, there = constant(a.astype(dtype), "back"), constant(b.astype(dtype), "there")
    p, q = te.reduce_axis((0, edge), name="p"), te.reduce_axis((0, edge), name="q")

    def transform(x: Any, y: Any, at: tuple[Any, ...], c: Any) -> Any:
        n, row, column = tiles.image(at)
        value = read(n, row * tile + p, column * tile + q, c)
        return te.sum(value * there[x, p] * there[y, q], axis=[p, q])

    moved = tiles.tensor("transformed", edge, channels, transform)
    block = tiles.block
    parts = [("ro", channels // block), ("ri", block)] if block else [("rc", channels)]
    terms = [te.reduce_axis((0, extent), name=name) for name, extent in parts]
    c = terms[0] * block + terms[1] if block else terms[0]

    def product(x: Any, y: Any, at: tuple[Any, ...], f: Any) -> Any:
        return te.sum(tiles.element(moved, x, y, at, c) * weights[x, y, f, c], axis=terms)

    multiplied = tiles.tensor("product", edge, filters, product)
    r, s = te.reduce_axis((0, edge), name="r"), te.reduce_axis((0, edge), name="s")

    def result(u: Any, v: Any, at: tuple[Any, ...], f: Any) -> Any:
        return te.sum(tiles.element(multiplied, r, s, at, f) * back[r, u] * back[s, v], axis=[r, s])

    whole = rows % tile == 0 and columns % tile == 0
    returned = None if whole else tiles.tensor("returned", tile, filters, result)

    def pixel(*index: Any) -> Any:
        n, y, x, f = place(*index)
        at = tiles.place(n, y // tile, x // tile)
        return result(y % tile, x % tile, at, f) if whole else tiles.element(returned, y % tile, x % tile, at, f)

    return te.compute(tuple(shape), pixel, name="winograd")


class _Tiles:
    """The tiles of images, and tensors of a value for each point, tile and channel.

    Tiles of all images are the rows of one product; of a batch that is not known, image by image; of strips, strip by
    strip. The place of a tile is that of its strip, if any, and its number there.
    """

    def __init__(self, batch: Any, down: int, right: int, strip: int, block: int) -> None:
        self.batch, self.down, self.right, self.strip, self.block = batch, down, right, strip, block
        self.known = isinstance(batch, int)
        #: Axes outside of the planes, and those inside: (name, extent).
        self.outer = [("g", batch * down // strip)] if strip else []
        if strip:
            self.inner = [("t", strip * right)]
        else:
            self.inner = [("t", batch * down * right)] if self.known else [("n", batch), ("t", down * right)]

    def image(self, at: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """Return image, row and column of a tile."""
        *before, t = at
        if self.strip:
            strips = self.down // self.strip
            image, strip = (before[0] // strips, before[0] % strips) if self.batch > 1 else (0, before[0])
            return image, strip * self.strip + t // self.right, t % self.right
        if not self.known:
            return before[0], t // self.right, t % self.right
        return t // (self.down * self.right), t // self.right % self.down, t % self.right

    def place(self, image: Any, row: Any, column: Any) -> tuple[Any, ...]:
        """Return the place of a tile."""
        if self.strip:
            strips = self.down // self.strip
            return image * strips + row // self.strip, row % self.strip * self.right + column
        number = row * self.right + column
        return (image * (self.down * self.right) + number,) if self.known else (image, number)

    def tensor(self, name: str, points: int, channels: int, body: Callable[..., Any]) -> Any:
        """Return a tensor of ``body(row, column, place, channel)``."""
        from tvm import te

        first, block = len(self.outer) + 2, self.block
        inner = [("o", channels // block), *self.inner, ("v", block)] if block else [*self.inner, ("f", channels)]
        axes = [*self.outer, ("x", points), ("y", points), *inner]

        def made(*index: Any) -> Any:
            *before, x, y = index[:first]
            o, *inside, v = index[first:] if block else (0, *index[first:])
            return body(x, y, (*before, *inside), o * block + v)

        names = [axis for axis, _ in axes]
        return te.compute([extent for _, extent in axes], made, name=name, varargs_names=names)

    def element(self, tensor: Any, x: Any, y: Any, place: tuple[Any, ...], channel: Any) -> Any:
        """Return an element of such a tensor."""
        at, block = len(self.outer), self.block
        first, last = ((channel // block,), channel % block) if block else ((), channel)
        return tensor[(*place[:at], x, y, *first, *place[at:], last)]
