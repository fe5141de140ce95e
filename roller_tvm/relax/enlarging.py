"""Pictures enlarged a whole number of times by their nearest elements: copies, for which no size is computed with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import te, tirx

from ..tir.nodes import analyzer_of_tvm
from .stretching import stretching_or


def whole_multiples(call: Any) -> tuple[int, int] | None:
    """Return how often a call of ``resize2d`` repeats rows and columns, if it repeats them; else None."""
    a, (data, size) = call.attrs, call.args[:2]
    if a.method != "nearest_neighbor" or a.layout != "NCHW" or not hasattr(size, "values"):
        return None
    way = a.coordinate_transformation_mode, a.rounding_method
    if way != ("asymmetric", "floor") and way[0] != "half_pixel":
        return None
    analyzer, found = analyzer_of_tvm(), []
    for old, new in zip(list(data.ty.shape)[2:], size.values, strict=True):
        times = analyzer.simplify(new // old)
        if not isinstance(times, tirx.IntImm) or int(times) < 1 or not analyzer.can_prove_equal(old * times, new):
            return None
        found.append(int(times))
    return found[0], found[1]


def repeated(data: Any, times: Sequence[int], first: int) -> Any:
    """Return the tensor with its rows and columns repeated; rows are dimension `first`.

    Examples
    --------
    >>> repeated(te.placeholder((1, 8, 4, 4)), (2, 2), 2).shape
    (1, 8, 8, 8)
    """
    simplify = analyzer_of_tvm().simplify
    shape = list(data.shape)
    for n, by in enumerate(times):
        shape[first + n] = simplify(shape[first + n] * by)

    def element(*at: Any) -> Any:
        return data[tuple(i // times[n - first] if first <= n < first + 2 else i for n, i in enumerate(at))]

    return te.compute(shape, element, name="resize")


def enlarging_or(other: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the rule by which ``resize2d`` is legalized: repeated where it can be, else `other`."""

    def rule(builder: Any, call: Any) -> Any:
        times = whole_multiples(call)
        return builder.call_te(repeated, call.args[0], times, 2) if times else other(builder, call)

    return rule


def view_or(other: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the rule by which ``reshape`` is legalized: a view where extents are computed, else `other`'s kernel.

    TVM knows a kernel to be a view where extents are numbers or variables, not where they are expressions.
    """

    def rule(builder: Any, call: Any) -> Any:
        shapes = [getattr(getattr(node, "ty", None), "shape", None) for node in (call, call.args[0])]
        extents = [e for shape in shapes for e in getattr(shape, "values", ())]
        computed = any(not isinstance(e, (tirx.IntImm, tirx.Var)) for e in extents)
        return call if computed else other(builder, call)

    return rule


def open_rules(cpu: bool = False) -> dict[str, Any]:
    """Return the rules for ``LegalizeOps``."""
    resized = [stretching_or, enlarging_or] if cpu else [enlarging_or]
    found = {}
    for name, rules in {"relax.image.resize2d": resized, "relax.reshape": [view_or]}.items():
        found[name] = tvm.ir.Op.get(name).get_attr("FLegalize")
        for rule in rules:
            found[name] = rule(found[name])
    return found


__all__ = ["open_rules", "repeated", "whole_multiples"]
