"""DilatedApart: dilated convolutions as undilated ones of pictures that have every d-th pixel of a row and a column.

A dilated window meets pixels that are equally far apart, and its neighbours meet others: put apart, they are pictures
of their own, with a plain window. Winograd's algorithm then serves, and a tile's pixels are neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from ..device import DeviceSpec
from .arrangement import Arrangement, Convolution
from .arranging import Convolutions, arrangeable, convolution_of
from .dataflow import extents_of
from .devices import device_of, find_target
from .layout_cost import LayoutCosts
from .modules import changed_by
from .pixel_moves import APART, TOGETHER, Move


def apart(conv: Convolution) -> Convolution | None:
    """Return a dilated convolution's undilated one; None of others, of strides, and where the padding does not divide.

    Examples
    --------
    >>> dilated = Convolution((1, 8, 7, 7), (8, 8, 3, 3), (1, 1), (2,) * 4, (2, 2), 1, "float32", "float32")
    >>> apart(dilated).data, apart(dilated).padding
    ((4, 8, 4, 4), (1, 1, 1, 1))
    """
    (high, wide), (top, left, bottom, right), (n, c, h, w) = conv.dilation, conv.padding, conv.data
    if not conv.fixed or conv.dilation == (1, 1) or conv.strides != (1, 1) or top % high or left % wide:
        return None
    rows, columns = -(-h // high), -(-w // wide)
    behind = -(-(h + bottom) // high) - rows, -(-(w + right) // wide) - columns
    padding = (top // high, left // wide, *behind)
    return replace(conv, data=(n * high * wide, c, rows, columns), padding=padding, dilation=(1, 1))


@tvm.transform.module_pass(opt_level=0, name="DilatedApart")
class DilatedApart:
    """Rewrite dilated convolutions where the model predicts a gain; put it before ``PlanLayout``.

    Parameters
    ----------
    target, device, winograd
        As of ``PlanLayout``.

    Examples
    --------
    >>> mod = DilatedApart({"kind": "llvm", "num-cores": 2})(mod)
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
        dilated = {conv: own for conv in found.found.values() if (own := apart(conv)) is not None}
        if not dilated or device.kind != "cpu":
            return mod
        costs, forms = LayoutCosts(device, self.winograd), (None, Arrangement(), Arrangement(device.vector_bytes // 4))

        def arranged(conv: Convolution) -> Iterator[tuple[Convolution, Arrangement | None]]:
            return ((conv, form) for form in forms if form is None or arrangeable(conv, form))

        def seconds(conv: Convolution) -> float:
            return min(costs.convolution(*form) for form in arranged(conv))

        costs.ask(form for pair in dilated.items() for conv in pair for form in arranged(conv))
        pays = set()
        for conv, own in dilated.items():
            results = own.data[0], own.weights[0], *own.results
            moves = sum(costs.transformation(shape, Arrangement()) for shape in (own.data, results))
            if seconds(own) + moves < seconds(conv):
                pays.add(conv)
        return changed_by(_Rewriter(mod, pays), mod) if pays else mod


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: Any, pays: set[Convolution]) -> None:
        super().__init__(mod)
        self.pays = pays

    def visit_call_(self, call: Any) -> Any:
        call = self.builder_.normalize(super().visit_call_(call))
        conv = convolution_of(call)
        if conv not in self.pays or (own := apart(conv)) is None:
            return call
        (high, wide), emit = conv.dilation, self.builder_.emit
        shape, whole = extents_of(call.args[0]) or (), extents_of(call) or ()
        pixels = emit(Move(APART, high, wide).call(self.builder_, call.args[0], None, shape))
        made = emit(relax.op.nn.conv2d(pixels, call.args[1], [1, 1], list(own.padding), [1, 1], own.groups,
                                       out_dtype=own.out_dtype))  # fmt: skip
        back = Move(TOGETHER, high, wide, int(whole[2]), int(whole[3]))
        return back.call(self.builder_, made, None, extents_of(made) or ())
