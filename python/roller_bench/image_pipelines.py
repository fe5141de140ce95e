"""Five image pipelines, each written once, for any language of stages: TE, Halide, numpy.

A language has ``stage`` and a few functions (`Language`); its tensors are read by ``tensor[indices]``. Pictures are
planes of rows, ``[channel, row, column]``. A stage computes as much as its inputs allow: pictures get smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from operator import add
from typing import Any, Protocol

import numpy as np

from roller_tvm.tvm_env import line

#: A tensor, or an expression, of a language.
Value = Any
Shape = tuple[int, ...]


class Language(Protocol):
    """Words in which pipelines are written."""

    def stage(self, name: str, shape: Shape, body: Callable[..., Value]) -> Value:
        """Return the tensor of this shape whose element at indices is `body` of them."""

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """Return `yes` where a condition holds, else `no`."""

    def least(self, a: Value, b: Value) -> Value:
        """Return the smaller of two."""

    def most(self, a: Value, b: Value) -> Value:
        """Return the larger of two."""

    def root(self, value: Value) -> Value:
        """Return the square root."""

    def number(self, value: float) -> Value:
        """Return a float32."""


class Numpy:
    """Pipelines as arrays, stage by stage: the reference."""

    def stage(self, name: str, shape: Shape, body: Callable[..., Value]) -> Value:
        return np.broadcast_to(body(*np.ogrid[tuple(slice(e) for e in shape)]), shape).astype(np.float32)

    select = staticmethod(np.where)
    least = staticmethod(np.minimum)
    most = staticmethod(np.maximum)
    root = staticmethod(np.sqrt)
    number = staticmethod(np.float32)


class Te:
    """Pipelines as TE, of either TVM line."""

    def __init__(self) -> None:
        from tvm import te

        arithmetic = import_module("tvm.tirx" if line() == "relax" else "tvm.tir")
        self.te, self.select, self.const = te, arithmetic.Select, arithmetic.const
        self.least, self.most, self.root = arithmetic.min, arithmetic.max, te.sqrt

    def picture(self, shape: Shape) -> Value:
        return self.te.placeholder(shape, name="picture")

    def stage(self, name: str, shape: Shape, body: Callable[..., Value]) -> Value:
        return self.te.compute(shape, body, name=name)

    def number(self, value: float) -> Value:
        return self.const(value, "float32")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline.

    Parameters
    ----------
    name : str
    input_shape : function of (rows, columns)
        Of the picture that a result of about so many rows and columns needs.
    build : function of (language, picture, its shape)
        Returns the result.
    """

    name: str
    input_shape: Callable[[int, int], Shape]
    build: Callable[[Any, Value, Shape], Value]

    def picture(self, rows: int, columns: int) -> Any:
        """Return a picture of random values from 0 to 1, the same at each call."""
        shape = self.input_shape(rows, columns)
        return np.random.default_rng(0).random(shape, dtype=np.float32)


def _sum(terms: Sequence[Value]) -> Value:
    return reduce(add, terms)


def _blur(lang: Language, picture: Value, shape: Shape) -> Value:
    c, h, w = shape
    third = lang.number(1 / 3)
    bx = lang.stage("bx", (c, h, w - 2), lambda c, y, x: _sum([picture[c, y, x + d] for d in range(3)]) * third)
    return lang.stage("by", (c, h - 2, w - 2), lambda c, y, x: _sum([bx[c, y + d, x] for d in range(3)]) * third)


def _gray(lang: Language, picture: Value, shape: Shape) -> Value:
    weights = [lang.number(v) for v in (0.299, 0.587, 0.114)]
    return lang.stage("gray", shape[1:], lambda y, x: _sum([picture[c, y, x] * weights[c] for c in range(3)]))


def _unsharp(lang: Language, picture: Value, shape: Shape) -> Value:
    c, h, w = shape
    kernel = np.exp(-(np.arange(-3, 4) ** 2) / (2 * 1.5**2))
    taps = [lang.number(float(v)) for v in kernel / kernel.sum()]
    gray = _gray(lang, picture, shape)
    rows = lang.stage("blur_y", (h - 6, w), lambda y, x: _sum([gray[y + d, x] * taps[d] for d in range(7)]))
    blur = lang.stage("blur_x", (h - 6, w - 6), lambda y, x: _sum([rows[y, x + d] * taps[d] for d in range(7)]))
    two = lang.number(2)
    sharper = lang.stage("sharper", (h - 6, w - 6), lambda y, x: two * gray[y + 3, x + 3] - blur[y, x])
    low = lang.number(0.01)
    ratio = lang.stage("ratio", (h - 6, w - 6), lambda y, x: sharper[y, x] / lang.most(gray[y + 3, x + 3], low))
    return lang.stage("unsharp", (c, h - 6, w - 6), lambda c, y, x: ratio[y, x] * picture[c, y + 3, x + 3])


def _harris(lang: Language, picture: Value, shape: Shape) -> Value:
    _, h, w = shape
    gray = _gray(lang, picture, shape)
    twelfth, sixth, small = lang.number(1 / 12), lang.number(2 / 12), lang.number(0.04)

    def slope(name: str, at: Callable[[Value, Value, int, int], Value]) -> Value:
        def body(y: Value, x: Value) -> Value:
            sides = [(at(y, x, d, 2) - at(y, x, d, 0)) * (sixth if d == 1 else twelfth) for d in range(3)]
            return _sum(sides)

        return lang.stage(name, (h - 2, w - 2), body)

    ix = slope("ix", lambda y, x, along, across: gray[y + along, x + across])
    iy = slope("iy", lambda y, x, along, across: gray[y + across, x + along])

    def box(name: str, a: Value, b: Value) -> Value:
        product = lang.stage(name, (h - 2, w - 2), lambda y, x: a[y, x] * b[y, x])
        around = [(dy, dx) for dy in range(3) for dx in range(3)]
        return lang.stage(f"s{name}", (h - 4, w - 4), lambda y, x: _sum([product[y + i, x + j] for i, j in around]))

    sxx, syy, sxy = box("xx", ix, ix), box("yy", iy, iy), box("xy", ix, iy)
    size = (h - 4, w - 4)
    det = lang.stage("det", size, lambda y, x: sxx[y, x] * syy[y, x] - sxy[y, x] * sxy[y, x])
    trace = lang.stage("trace", size, lambda y, x: sxx[y, x] + syy[y, x])
    return lang.stage("harris", size, lambda y, x: det[y, x] - small * trace[y, x] * trace[y, x])


def _camera(lang: Language, raw: Value, shape: Shape) -> Value:
    """Green, red / blue, green rows: no hot pixels, demosaiced, colours corrected, a tone curve, sharpened."""
    h, w = shape[0] - 4, shape[1] - 4
    half, quarter = lang.number(0.5), lang.number(0.25)

    def sound(y: Value, x: Value) -> Value:
        around = [raw[y + i, x + j] for i, j in ((0, 2), (4, 2), (2, 0), (2, 4))]
        return lang.least(raw[y + 2, x + 2], reduce(lang.most, around))

    mosaic = lang.stage("sound", (h, w), sound)

    def green_at(y: Value, x: Value) -> Value:
        up, down, left, right = mosaic[y, x + 1], mosaic[y + 2, x + 1], mosaic[y + 1, x], mosaic[y + 1, x + 2]
        rise, run = lang.most(up - down, down - up), lang.most(left - right, right - left)
        between = lang.select(rise < run, (up + down) * half, (left + right) * half)
        return lang.select((y + x) % 2 == 0, mosaic[y + 1, x + 1], between)

    h, w = h - 2, w - 2
    green = lang.stage("green", (h, w), green_at)
    extra = lang.stage("extra", (h, w), lambda y, x: mosaic[y + 1, x + 1] - green[y, x])

    def colour(name: str, row: int) -> Value:
        """Return red, or blue: known at every second column of every second row."""

        def body(y: Value, x: Value) -> Value:
            here = extra[y + 1, x + 1]
            beside = (extra[y + 1, x] + extra[y + 1, x + 2]) * half
            above = (extra[y, x + 1] + extra[y + 2, x + 1]) * half
            corners = _sum([extra[y + i, x + j] for i in (0, 2) for j in (0, 2)]) * quarter
            same = lang.select(x % 2 == row, here, beside)
            other = lang.select(x % 2 == row, above, corners)
            return green[y + 1, x + 1] + lang.select(y % 2 == row, other, same)

        return lang.stage(name, (h - 2, w - 2), body)

    red, blue = colour("red", 1), colour("blue", 0)
    matrix = ((1.66, -0.52, -0.14), (-0.21, 1.38, -0.17), (0.05, -0.57, 1.52))
    rows = [[lang.number(v) for v in row] for row in matrix]
    h, w = h - 2, w - 2

    def corrected(c: Value, y: Value, x: Value) -> Value:
        rgb = red[y, x], green[y + 1, x + 1], blue[y, x]
        mixed = [_sum([weight * value for weight, value in zip(row, rgb, strict=True)]) for row in rows]
        return lang.select(c == 0, mixed[0], lang.select(c == 1, mixed[1], mixed[2]))

    zero, one = lang.number(0), lang.number(1)
    right = lang.stage("right", (3, h, w), corrected)
    curve = lang.stage("curve", (3, h, w), lambda c, y, x: lang.root(lang.least(lang.most(right[c, y, x], zero), one)))
    by = lang.stage("soft_y", (3, h - 2, w), lambda c, y, x: (
        curve[c, y, x] + curve[c, y + 1, x] * lang.number(2) + curve[c, y + 2, x]) * quarter)  # fmt: skip
    bx = lang.stage("soft", (3, h - 2, w - 2), lambda c, y, x: (
        by[c, y, x] + by[c, y, x + 1] * lang.number(2) + by[c, y, x + 2]) * quarter)  # fmt: skip
    return lang.stage("camera", (3, h - 2, w - 2), lambda c, y, x: curve[c, y + 1, x + 1] + (
        curve[c, y + 1, x + 1] - bx[c, y, x]) * half)  # fmt: skip


#: Levels of the pyramid below the picture.
LEVELS = 4


def _pyramid_shape(rows: int, columns: int) -> Shape:
    sizes = []
    for size in (rows, columns):
        coarse = -(-(size - 1) // 2**LEVELS) + 1
        sizes.append(coarse * 2**LEVELS + 2**LEVELS - 1)
    return 4, sizes[0], sizes[1]


def _pyramid(lang: Language, picture: Value, shape: Shape) -> Value:
    """Colours times their opacity, and it: filled in from pictures of half the size where it is small."""
    half, one, low = lang.number(0.5), lang.number(1), lang.number(1e-3)
    weigh = (lang.number(0.25), half, lang.number(0.25))

    def halved(level: int, fine: Value, c: int, h: int, w: int) -> Value:
        across = lang.stage(f"down_x{level}", (c, h, (w - 1) // 2), lambda c, y, x: _sum(
            [fine[c, y, 2 * x + d] * weigh[d] for d in range(3)]))  # fmt: skip
        return lang.stage(f"down{level}", (c, (h - 1) // 2, (w - 1) // 2), lambda c, y, x: _sum(
            [across[c, 2 * y + d, x] * weigh[d] for d in range(3)]))  # fmt: skip

    def joined(level: int, coarse: Value, fine: Value, at: int, c: int, h: int, w: int) -> Value:
        tall = lang.stage(f"up_y{level}", (c, 2 * h - 1, w), lambda c, y, x: (
            coarse[c, y // 2, x] + coarse[c, (y + 1) // 2, x]) * half)  # fmt: skip
        wide = lang.stage(f"up{level}", (c, 2 * h - 1, 2 * w - 1), lambda c, y, x: (
            tall[c, y, x // 2] + tall[c, y, (x + 1) // 2]) * half)  # fmt: skip
        return lang.stage(f"filled{level}", (c, 2 * h - 1, 2 * w - 1), lambda c, y, x: (
            fine[c, y + at, x + at] + (one - fine[3, y + at, x + at]) * wide[c, y, x]))  # fmt: skip

    c, h, w = shape
    down = [picture]
    for level in range(1, LEVELS + 1):
        down.append(halved(level, down[-1], c, h, w))
        h, w = (h - 1) // 2, (w - 1) // 2
    filled, at = down[-1], 0
    for level in reversed(range(LEVELS)):
        at = 2 * at + 1
        filled = joined(level, filled, down[level], at, c, h, w)
        h, w = 2 * h - 1, 2 * w - 1
    return lang.stage("pyramid", (3, h, w), lambda c, y, x: filled[c, y, x] / lang.most(filled[3, y, x], low))


def _planes(border: int, count: int = 3) -> Callable[[int, int], Shape]:
    return lambda rows, columns: (count, rows + border, columns + border)


PIPELINES = {
    p.name: p
    for p in (
        Pipeline("blur", _planes(2), _blur),
        Pipeline("unsharp", _planes(6), _unsharp),
        Pipeline("harris", _planes(4), _harris),
        Pipeline("camera", lambda rows, columns: (rows + 10, columns + 10), _camera),
        Pipeline("pyramid", _pyramid_shape, _pyramid),
    )
}
