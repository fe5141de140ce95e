"""Arrangements of a convolutional network's activations in memory, and the convolution in each of them.

A tensor (N, C, H, W) is kept channels last, as (N, H, W, C), or with its channels in blocks of a vector, as
(N, C/x, H, W, x): either way the lanes of a vector are channels, whatever the image's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, topi

from ..codegen.flat import number_of
from ..device import DeviceSpec
from ..micro_perf.matrix_unit import MatrixTiles, matrix_tiles
from ..te.winograd import POINTS, WINDOW, winograd
from ..tir.nodes import analyzer_of_tvm
from ..tir.product_nests import Windows

Shape = tuple[int, ...]
#: Fewest tiles of a strip of Winograd's algorithm.
STRIP_TILES = 12


@dataclass(frozen=True)
class Arrangement:
    """Channels last (`block` 0), or in blocks of `block`.

    Examples
    --------
    >>> Arrangement(16).name, Arrangement(16).shape((1, 64, 7, 7)), Arrangement().shape((1, 64, 7, 7))
    ('NCHW16c', (1, 4, 7, 7, 16), (1, 7, 7, 64))
    """

    block: int = 0

    @property
    def name(self) -> str:
        return f"NCHW{self.block}c" if self.block else "NHWC"

    def holds(self, channels: int) -> bool:
        """Return whether a tensor with this number of channels can be stored in this arrangement."""
        return isinstance(channels, int) and (not self.block or channels % self.block == 0)

    def shape(self, plain: Shape) -> Shape:
        n, c, h, w = plain
        return (n, c // self.block, h, w, self.block) if self.block else (n, h, w, c)

    @property
    def places(self) -> tuple[int, ...]:
        """Return the positions of a plain tensor's axes in this arrangement; of its channels, that of their blocks."""
        return (0, 1, 2, 3) if self.block else (0, 3, 1, 2)

    def axes(self, plain: Sequence[int]) -> list[int]:
        """Return the positions of axes of a plain tensor in this arrangement."""
        return [self.places[axis] for axis in plain]

    def place(self, n: Any, c: Any, h: Any, w: Any) -> tuple[Any, ...]:
        """Return the index of an element of a plain tensor."""
        return (n, c // self.block, h, w, c % self.block) if self.block else (n, h, w, c)

    def plain_place(self, *at: Any) -> tuple[Any, Any, Any, Any]:
        """Return the index in the plain tensor of an arranged element."""
        if not self.block:
            n, h, w, c = at
            return n, c, h, w
        n, outer, h, w, lane = at
        return n, outer * self.block + lane, h, w

    def array(self, values: np.ndarray) -> np.ndarray:
        """Constant values so arranged; where there is one channel alone, the block is of one."""
        n, c, h, w = values.shape
        if not self.block:
            return np.ascontiguousarray(values.transpose(0, 2, 3, 1))
        block = 1 if c == 1 else self.block
        return np.ascontiguousarray(values.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2))

    def arranged(self, value: Any, plain: Shape) -> Any:
        """The call that arranges a plain tensor."""
        n, c, h, w = plain
        if c == 1 or _pixel(h, w):
            x = 1 if c == 1 else self.block
            return relax.op.reshape(value, (n, c // x, h, w, x) if self.block else (n, h, w, c))
        if not self.block:
            return relax.op.permute_dims(value, [0, 2, 3, 1])
        x = self.block
        return relax.op.permute_dims(relax.op.reshape(value, (n, c // x, x, h, w)), [0, 1, 3, 4, 2])

    def plain(self, value: Any, plain: Shape) -> Any:
        """The call that makes a plain tensor of an arranged one."""
        n, c, h, w = plain
        if c == 1 or _pixel(h, w):
            return relax.op.reshape(value, plain)
        if not self.block:
            return relax.op.permute_dims(value, [0, 3, 1, 2])
        return relax.op.reshape(relax.op.permute_dims(value, [0, 1, 4, 2, 3]), plain)


@dataclass(frozen=True)
class Convolution:
    """A two-dimensional convolution of plain tensors, as far as its loops depend on it.

    Parameters
    ----------
    data, weights : tuple of int
        Shapes, as NCHW and OIHW.
    strides, padding, dilation : tuple of int
        Padding is top, left, bottom, right.
    groups : int
    dtype, out_dtype : str
    fixed : bool
        False if the picture's sides are likely ones of several.
    """

    data: Shape
    weights: Shape
    strides: Shape
    padding: Shape
    dilation: Shape
    groups: int
    dtype: str
    out_dtype: str
    fixed: bool = True

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.data[1] == self.weights[0]

    @property
    def results(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        (top, left, bottom, right), sides = self.padding, self.data[2:]
        axes = zip(sides, (top + bottom, left + right), self.weights[2:], self.dilation, self.strides, strict=True)
        rows, columns = ((side + more - (window - 1) * d - 1) // s + 1 for side, more, window, d, s in axes)
        return rows, columns

    @property
    def flops(self) -> int:
        """Multiplications and additions of the direct algorithm."""
        return 2 * self.data[0] * prod(self.weights) * prod(self.results)

    @property
    def tiles(self) -> tuple[int, ...]:
        """Tiles of Winograd's algorithm that may pay; none unless its window is 3x3, its strides are 1."""
        plain = self.strides == (1, 1) and self.dilation == (1, 1) and self.groups == 1
        exact = self.dtype == self.out_dtype == "float32"  # transforms lose digits, of which halves have few
        if not (plain and exact and self.weights[2:] == (WINDOW, WINDOW)):
            return ()
        (n, c, *_), pairs, needs = self.data, prod(self.weights[:2]), {}
        for tile in POINTS:
            points = n * prod(-(-extent // tile) * (tile + WINDOW - 1) for extent in self.results)
            moved = points * (c + self.weights[0]) + (tile + WINDOW - 1) ** 2 * pairs
            needs[tile] = points * pairs, moved  # products, and elements of images, results and weights
        fewest = [min(need) for need in zip(*needs.values(), strict=True)]
        best = [tile for tile, need in needs.items() if list(need) == fewest]
        return tuple(best) or tuple(POINTS)

    def strips(self, tile: int) -> tuple[int, ...]:
        """Rows of tiles of the strips that may pay (see `te.winograd`), and 0: all tiles stage by stage.

        A strip's tiles are the rows of products, which fill register tiles from `STRIP_TILES` on.
        """
        down, right = (extent // tile for extent in self.results)
        if not self.fixed or (down * tile, right * tile) != self.results:
            return (0,)
        wide = [n for n in range(1, down + 1) if down % n == 0 and n * right >= STRIP_TILES]
        return (0, *[n for n in wide if self.data[0] * down > n][:2])

    @property
    def merged(self) -> Convolution | None:
        """The same with its pixels in one row, if each is computed from one pixel."""
        n, c, h, w = self.data
        one = self.weights[2:] == self.strides == (1, 1) and self.groups == 1 and not any(self.padding)
        return replace(self, data=(n, c, 1, h * w)) if one and self.fixed and h > 1 else None

    def on_matrix_unit(self, device: DeviceSpec) -> MatrixTiles | None:
        """Return its blocks on the device's matrix unit, channels last or in blocks; None where it has no such form."""
        (n, c, *sides), (channels, _, *window) = self.data, self.weights
        top, left, bottom, right = self.padding
        padded = [side + more for side, more in zip(sides, (top + bottom, left + right), strict=True)]
        reach, rows = [(w - 1) * d for w, d in zip(window, self.dilation, strict=True)], self.results
        exact = self.dtype == self.out_dtype == "float32" and self.groups == 1
        if not exact or not self.fixed or (any(reach) and self.strides != (1, 1)):
            return None
        moved = 4 * n * (c * prod(sides) + channels * prod(rows))
        if not any(reach):
            return matrix_tiles(n * prod(rows), c, channels, device, moved)
        windows = Windows((n, *padded), (n, *rows), (1, *window), (1, *self.dilation))
        return matrix_tiles(windows.all_rows, c, channels, device, moved, windows.taps)

    def compute(self, arrangement: Arrangement | None, tile: int = 0, strip: int = 0) -> tuple[list[Any], Any]:
        """Inputs (data, weights) and output as TE; the weights are constants, which each schedule packs itself.

        With a `tile` they are transformed, and Winograd's algorithm computes the result of data in the arrangement, in
        strips if these have rows of tiles.
        """
        n, c, h, w = self.data
        if tile and arrangement is not None:
            edge = tile + WINDOW - 1
            data = te.placeholder(arrangement.shape(self.data), self.dtype, name="data")
            weights = te.placeholder((edge, edge, *self.weights[:2]), self.dtype, name="weights")
            return [data, weights], winograd_convolution(data, weights, self, arrangement, tile, strip)
        if arrangement is not None and arrangement.block:
            shape = arrangement.shape(self.data) if arrangement.holds(c) else self.data
            data = te.placeholder(shape, self.dtype, name="data")
            weights = te.placeholder(self.weights, self.dtype, name="weights")
            return [data, weights], blocked_convolution(data, weights, self, arrangement.block)
        last = arrangement is not None
        data = te.placeholder((n, h, w, c) if last else self.data, self.dtype, name="data")
        o, i, p, q = self.weights
        weights = te.placeholder((o, p, q, i) if last else self.weights, self.dtype, name="weights")
        layouts = ("NHWC", "OHWI") if last else ("NCHW", "OIHW")
        steps = (list(self.strides), list(self.padding), list(self.dilation))
        out = topi.nn.conv(data, weights, *steps, self.groups, *layouts, self.out_dtype)
        return [data, weights], out


def _pixel(h: Any, w: Any) -> bool:
    return isinstance(h, int) and isinstance(w, int) and h * w == 1


def winograd_convolution(
    data: Any, weights: Any, conv: Convolution, arrangement: Arrangement, tile: int, strip: int = 0
) -> Any:  # fmt: skip
    """A convolution by Winograd's algorithm, whose data and result are in the same arrangement."""
    c = conv.data[1]
    n = number if (number := number_of(data.shape[0])) is not None else data.shape[0]
    top, left, bottom, right = conv.padding
    rows, columns = conv.results
    over = [-(-extent // tile) * tile - extent for extent in (rows, columns)]  # zeros behind the last tiles
    block, lanes = arrangement.block, [0] * bool(arrangement.block)
    if any((*conv.padding, *over)):
        before, after = [top, left], [bottom + over[0], right + over[1]]
        before, after = ([0, 0, *b, *lanes] if block else [0, *b, 0] for b in (before, after))
        data = topi.nn.pad(data, before, after, name="padded")

    def read(n: Any, y: Any, x: Any, c: Any) -> Any:
        return data[arrangement.place(n, c, y, x)]

    def place(*at: Any) -> tuple[Any, Any, Any, Any]:
        image, channel, row, column = arrangement.plain_place(*at)
        return image, row, column, channel

    shape = arrangement.shape((n, conv.weights[0], rows, columns))
    return winograd(read, (n, rows, columns, c), weights, tile, shape, place, conv.out_dtype, block, strip)


def blocked_convolution(data: Any, weights: Any, conv: Convolution, block: int) -> Any:
    """A convolution whose result is in blocks of channels; its data are too, or plain.

    Parameters
    ----------
    data : te.Tensor
        (N, C/x, H, W, x) or (N, C, H, W).
    weights : te.Tensor
        (O, I, KH, KW): a constant, which is packed at build time.
    """
    (sh, sw), (dh, dw), (top, left, bottom, right) = conv.strides, conv.dilation, conv.padding
    o, i, p, q = conv.weights
    blocked = len(data.shape) == 5
    if any(conv.padding):
        before, after = ([0, 0, top, left], [0, 0, bottom, right])
        data = topi.nn.pad(data, before + [0] * blocked, after + [0] * blocked, name="padded")
    simplify = analyzer_of_tvm().simplify
    height = simplify((data.shape[2] - (p - 1) * dh - 1) // sh + 1)
    width = simplify((data.shape[3] - (q - 1) * dw - 1) // sw + 1)
    ry, rx = te.reduce_axis((0, p), name="ry"), te.reduce_axis((0, q), name="rx")
    shape = (data.shape[0], o // block, height, width, block)
    if conv.depthwise:

        def lane(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
            value = data[n, c, y * sh + ry * dh, x * sw + rx * dw, v]
            return te.sum(_cast(value, conv) * _cast(weights[c * block + v, 0, ry, rx], conv), axis=[ry, rx])

        return te.compute(shape, lane, name="depthwise_conv2d_blocked")
    axes = [ry, rx]
    if blocked:
        # Blocks outermost: in each, the window's elements are neighbours in memory.
        ro, ri = te.reduce_axis((0, i // block), name="ro"), te.reduce_axis((0, block), name="ri")
        axes = [ro, ry, rx, ri]

        def read(n: Any, y: Any, x: Any) -> Any:
            return data[n, ro, y * sh + ry * dh, x * sw + rx * dw, ri]

        channel = ro * block + ri
    else:
        channel = te.reduce_axis((0, i), name="rc")
        axes = [channel, ry, rx]

        def read(n: Any, y: Any, x: Any) -> Any:
            return data[n, channel, y * sh + ry * dh, x * sw + rx * dw]

    def point(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        return te.sum(_cast(read(n, y, x), conv) * _cast(weights[c * block + v, channel, ry, rx], conv), axis=axes)

    return te.compute(shape, point, name="conv2d_blocked")


def _cast(value: Any, conv: Convolution) -> Any:
    return value if conv.dtype == conv.out_dtype else value.astype(conv.out_dtype)
