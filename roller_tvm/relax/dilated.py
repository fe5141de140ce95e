"""DilatedForms: dilated convolutions as undilated ones of pictures put apart, or of parts that need no padding.

A dilated window meets pixels that are equally far apart, and its neighbours meet others: put apart, they are pictures
of their own, with a plain window. Winograd's algorithm then serves, and a tile's pixels are neighbours in memory.

A window that is wide beside its picture meets padding for the most part, others at the left than at the right. So the
result is cut in parts: in each, every window has the same taps inside the picture, and the others are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..device import DeviceSpec
from .arrangement import Arrangement, Convolution
from .arranging import Convolutions, arrangeable, convolution_of
from .constants import array_of
from .dataflow import extents_of
from .devices import device_of, find_target
from .layout_cost import LayoutCosts
from .modules import changed_by
from .pixel_moves import APART, TOGETHER, Move

PARTS = "parts"


def _in_forms(conv: Convolution) -> bool:
    """Return whether a convolution is dilated, and neither its picture's sides nor its strides rule other forms out."""
    return conv.fixed and conv.dilation != (1, 1) and conv.strides == (1, 1)


def apart(conv: Convolution) -> Convolution | None:
    """Return a dilated convolution's undilated one; None of others, of strides, and where the padding does not divide.

    Examples
    --------
    >>> dilated = Convolution((1, 8, 7, 7), (8, 8, 3, 3), (1, 1), (2,) * 4, (2, 2), 1, "float32", "float32")
    >>> apart(dilated).data, apart(dilated).padding
    ((4, 8, 4, 4), (1, 1, 1, 1))
    """
    (high, wide), (top, left, bottom, right), (n, c, h, w) = conv.dilation, conv.padding, conv.data
    if not _in_forms(conv) or top % high or left % wide:
        return None
    rows, columns = -(-h // high), -(-w // wide)
    behind = -(-(h + bottom) // high) - rows, -(-(w + right) // wide) - columns
    padding = (top // high, left // wide, *behind)
    return replace(conv, data=(n * high * wide, c, rows, columns), padding=padding, dilation=(1, 1))


@dataclass(frozen=True)
class Part:
    """Results along an axis whose windows have the same taps inside the picture: `taps` of the window, from `first`.

    Examples
    --------
    >>> parts_along(14, 14, 3, 12, 12)[1]  # extent, results, taps, dilation, padding
    Part(results=10, first=1, taps=1, begin=2)
    """

    results: int
    first: int
    taps: int
    #: Place in the picture that the first result's first tap meets.
    begin: int

    def met(self, dilation: int) -> int:
        """Return the extent of the picture that these results need."""
        return (self.taps - 1) * dilation + self.results


def parts_along(extent: int, results: int, taps: int, dilation: int, padding: int) -> tuple[Part, ...]:
    """Return the parts along an axis; none if a window has no tap inside the picture."""
    inside = [[tap for tap in range(taps) if 0 <= at + tap * dilation - padding < extent] for at in range(results)]
    if not all(inside):
        return ()
    parts, begin = list[Part](), 0
    for met, group in groupby(inside):
        count = len(list(group))
        parts.append(Part(count, met[0], len(met), begin + met[0] * dilation - padding))
        begin += count
    return tuple(parts)


def in_parts(conv: Convolution) -> list[list[tuple[Part, Part, Convolution]]]:
    """Return a dilated convolution's parts, rows of columns, each with the convolution that it is; none of others."""
    if not _in_forms(conv):
        return []
    (top, left, *_), (n, c, *sides), (o, i, *window) = conv.padding, conv.data, conv.weights
    axes = zip(sides, conv.results, window, conv.dilation, (top, left), strict=True)
    rows, columns = (parts_along(*axis) for axis in axes)

    def own(row: Part, column: Part) -> Convolution:
        met = tuple(part.met(d) for part, d in zip((row, column), conv.dilation, strict=True))
        dilation = tuple(d if part.taps > 1 else 1 for part, d in zip((row, column), conv.dilation, strict=True))
        return replace(conv, data=(n, c, *met), weights=(o, i, row.taps, column.taps), padding=(0,) * 4,
                       dilation=dilation)  # fmt: skip

    return [[(row, column, own(row, column)) for column in columns] for row in rows]


@tvm.transform.module_pass(opt_level=0, name="DilatedForms")
class DilatedForms:
    """Rewrite dilated convolutions where the model predicts a gain; put it before ``PlanLayout``.

    Parameters
    ----------
    target, device, winograd
        As of ``PlanLayout``.

    Examples
    --------
    >>> mod = DilatedForms({"kind": "llvm", "num-cores": 2})(mod)
    """

    def __init__(self, target: Any = None, device: DeviceSpec | str | None = None, winograd: bool = True) -> None:
        self.target, self.device, self.winograd = target, device, winograd

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with these convolutions rewritten."""
        device = device_of(self.device, find_target(self.target))
        found = Convolutions()
        for _, func in mod.functions_items():
            if isinstance(func, relax.Function):
                found.visit_expr(func)
        dilated = {conv: forms for conv in found.found.values() if (forms := _forms(conv))}
        if not dilated or device.kind != "cpu":
            return mod
        costs, peak = LayoutCosts(device, self.winograd), device.peak("float32") * 1e9
        best, chosen = _priced(costs, device, {conv: [conv] for conv in dilated}, 0), {}
        for name in (APART, PARTS):
            # No kernels of parts are faster than their multiply-adds at the peak; Winograd's algorithm has fewer.
            asked = {conv: forms[name] for conv, forms in dilated.items() if name in forms
                     and (name == APART or sum(own.flops for own in forms[name]) / peak < best[conv])}  # fmt: skip
            for conv, seconds in _priced(costs, device, asked, 1).items():
                if seconds < best[conv]:
                    best[conv], chosen[conv] = seconds, name
        return changed_by(_Rewriter(mod, chosen), mod) if chosen else mod


def _priced(
    costs: LayoutCosts, device: DeviceSpec, asked: Mapping[Convolution, Sequence[Convolution]], moves: int
) -> dict[Convolution, float]:  # fmt: skip
    """Return the predicted seconds of convolutions, each by others, whose data and results are moved so often."""
    arrangements = (None, Arrangement(), Arrangement(device.vector_bytes // 4))
    forms = {own: [(own, one) for one in arrangements if one is None or arrangeable(own, one)]
             for own in chain(*asked.values())}  # fmt: skip
    costs.ask(chain(*forms.values()))

    def seconds(own: Convolution) -> float:
        shapes = [own.data, (own.data[0], own.weights[0], *own.results)] * moves
        moved = sum(costs.transformation(shape, Arrangement()) for shape in shapes)
        return moved + min(costs.convolution(*form) for form in forms[own])

    return {conv: sum(map(seconds, convs)) for conv, convs in asked.items()}


def _forms(conv: Convolution) -> dict[str, list[Convolution]]:
    """Return the convolutions of each form that a dilated one has."""
    own, parts = apart(conv), [one for row in in_parts(conv) for *_, one in row]
    return {name: convs for name, convs in ((APART, [own] if own else []), (PARTS, parts)) if convs}


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: Any, chosen: Mapping[Convolution, str]) -> None:
        super().__init__(mod)
        self.chosen = chosen

    def visit_call_(self, call: Any) -> Any:
        call = self.builder_.normalize(super().visit_call_(call))
        conv = convolution_of(call)
        form = self.chosen.get(conv) if conv is not None else None
        if conv is None or form is None:
            return call
        return self._apart(call, conv) if form == APART else self._in_parts(call, conv)

    def _convolved(self, data: Any, weights: Any, conv: Convolution) -> Any:
        return self.builder_.emit(relax.op.nn.conv2d(
            data, weights, [1, 1], list(conv.padding), list(conv.dilation), conv.groups, out_dtype=conv.out_dtype
        ))  # fmt: skip

    def _apart(self, call: Any, conv: Convolution) -> Any:
        (own,), (high, wide) = _forms(conv)[APART], conv.dilation
        shape, whole = extents_of(call.args[0]) or (), extents_of(call) or ()
        pixels = self.builder_.emit(Move(APART, high, wide).call(self.builder_, call.args[0], None, shape))
        made = self._convolved(pixels, call.args[1], own)
        back = Move(TOGETHER, high, wide, int(whole[2]), int(whole[3]))
        return back.call(self.builder_, made, None, extents_of(made) or ())

    def _in_parts(self, call: Any, conv: Convolution) -> Any:
        emit, weights, rows = self.builder_.emit, array_of(call.args[1]), []
        for line in in_parts(conv):
            made = []
            for row, column, own in line:
                begin, met = (row.begin, column.begin), own.data[2:]
                ends = [b + m for b, m in zip(begin, met, strict=True)]
                data = emit(relax.op.strided_slice(call.args[0], [2, 3], list(begin), ends))
                taps = (slice(part.first, part.first + part.taps) for part in (row, column))
                kept = np.ascontiguousarray(weights[(slice(None), slice(None), *taps)])
                made.append(self._convolved(data, relax.const(kept, str(kept.dtype)), own))
            rows.append(emit(relax.op.concat(made, axis=3)) if len(made) > 1 else made[0])
        return relax.op.concat(rows, axis=2) if len(rows) > 1 else rows[0]
