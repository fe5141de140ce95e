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
    place: Callable[..., tuple[Any, Any, Any, Any]], dtype: str, block: int = 0,
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
    """
    from tvm import te

    batch, rows, columns, channels = image
    filters, edge = int(weights.shape[2]), tile + WINDOW - 1
    down, right = -(-rows // tile), -(-columns // tile)
    a, b, _ = matrices(tile)
    back, there = constant(a.astype(dtype), "back"), constant(b.astype(dtype), "there")
    p, q = te.reduce_axis((0, edge), name="p"), te.reduce_axis((0, edge), name="q")
    # The tiles of all images are the rows of one product; of a batch that is not known, image by image.
    folded = isinstance(batch, int)
    tiles = (batch * down * right,) if folded else (batch, down * right)
    block = block if folded else 0

    def of_tiles(name: str, first: int, channels: int, body: Callable[..., Any]) -> Any:
        """Return a tensor of ``body(row, column, tile, channel)``."""  # TE names axes like parameters
        if block:
            extents: tuple[Any, ...] = channels // block, *tiles, block
            made: Any = lambda x, y, o, t, v: body(x, y, (t,), o * block + v)  # noqa: E731
        else:
            extents = *tiles, channels
            made = (lambda x, y, t, f: body(x, y, (t,), f)) if folded else (lambda x, y, n, t, f: body(x, y, (n, t), f))
        return te.compute((first, first, *extents), made, name=name)

    def element(tensor: Any, x: Any, y: Any, at: tuple[Any, ...], channel: Any) -> Any:
        return tensor[(x, y, channel // block, *at, channel % block) if block else (x, y, *at, channel)]

    def transform(x: Any, y: Any, at: tuple[Any, ...], c: Any) -> Any:
        *image, t = at
        n, row = (t // (down * right), t // right % down) if folded else (image[0], t // right)
        value = read(n, row * tile + p, t % right * tile + q, c)
        return te.sum(value * there[x, p] * there[y, q], axis=[p, q])

    def of(n: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (n * (down * right) + y * right + x,) if folded else (n, y * right + x)

    moved = of_tiles("transformed", edge, channels, transform)
    parts = [("ro", channels // block), ("ri", block)] if block else [("rc", channels)]
    terms = [te.reduce_axis((0, extent), name=name) for name, extent in parts]
    c = terms[0] * block + terms[1] if block else terms[0]

    def product(x: Any, y: Any, at: tuple[Any, ...], f: Any) -> Any:
        return te.sum(element(moved, x, y, at, c) * weights[x, y, f, c], axis=terms)

    multiplied = of_tiles("product", edge, filters, product)
    r, s = te.reduce_axis((0, edge), name="r"), te.reduce_axis((0, edge), name="s")

    def result(u: Any, v: Any, at: tuple[Any, ...], f: Any) -> Any:
        return te.sum(element(multiplied, r, s, at, f) * back[r, u] * back[s, v], axis=[r, s])

    whole = rows % tile == 0 and columns % tile == 0
    returned = None if whole else of_tiles("returned", tile, filters, result)

    def pixel(*at: Any) -> Any:
        n, y, x, f = place(*at)
        square = of(n, y // tile, x // tile)
        return result(y % tile, x % tile, square, f) if whole else element(returned, y % tile, x % tile, square, f)

    return te.compute(tuple(shape), pixel, name="winograd")
