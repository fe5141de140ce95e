"""LiveTaps: taps of a window that meet nothing but padding are dropped, as of DeepLab's dilated convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from .constants import array_of
from .dataflow import extents_of, rewritten

_CONVOLUTIONS = {"relax.nn.conv1d": "W", "relax.nn.conv2d": "HW", "relax.nn.conv3d": "DHW"}


def live(extent: int, results: int, taps: int, stride: int, dilation: int, padding: tuple[int, int]) -> slice:
    """Return the taps along an axis that meet elements; all of them where others would need a negative padding.

    Parameters
    ----------
    extent, results : int
        Elements and windows along the axis.
    padding : (int, int)
        Zeros ahead of the elements and behind them.

    Examples
    --------
    >>> live(14, 14, 3, 1, 24, (24, 24)), live(14, 14, 3, 1, 12, (12, 12))
    (slice(1, 2, None), slice(0, 3, None))
    """
    first = [tap * dilation - padding[0] for tap in range(taps)]  # place that a tap of the first window meets
    kept = [tap for tap, at in enumerate(first) if at < extent and at + (results - 1) * stride >= 0]
    if not kept:
        return slice(0, taps)
    begin, end = kept[0], kept[-1] + 1
    fits = begin * dilation <= padding[0] and (taps - end) * dilation <= padding[1]
    return slice(begin, end) if fits else slice(0, taps)


@tvm.transform.module_pass(opt_level=0, name="LiveTaps")
class LiveTaps:
    """Drop the taps of constant windows that meet nothing but padding; put it before the layout is planned.

    Examples
    --------
    >>> mod = LiveTaps()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions rewritten."""
        return rewritten(mod, _Rewriter)


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def visit_call_(self, op: Any) -> Any:
        op = super().visit_call_(op)
        axes = _CONVOLUTIONS.get(getattr(op.op, "name", ""), "")
        extents, results = (extents_of(op.args[0]), extents_of(op)) if axes else (None, None)
        weights, attrs = array_of(op.args[1]) if axes else None, op.attrs
        if weights is None or extents is None or results is None:
            return op
        padding, half = [int(n) for n in attrs.padding], len(axes)
        before, after = padding[:half], padding[half:]
        parts = [slice(None)] * weights.ndim
        for n, axis in enumerate(axes):
            at, dilation = str(attrs.kernel_layout).index(axis), int(attrs.dilation[n])
            extent, result = extents[str(attrs.data_layout).index(axis)], results[str(attrs.out_layout).index(axis)]
            if not (isinstance(extent, int) and isinstance(result, int)):
                continue
            taps, around = weights.shape[at], (before[n], after[n])
            parts[at] = own = live(extent, result, taps, int(attrs.strides[n]), dilation, around)
            before[n] -= own.start * dilation
            after[n] -= (taps - own.stop) * dilation
        kept = weights[tuple(parts)]
        if kept.shape == weights.shape or not np.isfinite(weights).all():  # zero by infinity is no zero
            return op
        return getattr(relax.op.nn, op.op.name.rpartition(".")[2])(
            op.args[0], relax.const(np.ascontiguousarray(kept), str(weights.dtype)), attrs.strides, [*before, *after],
            attrs.dilation, attrs.groups, attrs.data_layout, attrs.kernel_layout, attrs.out_layout,
            attrs.out_dtype or None,
        )  # fmt: skip
