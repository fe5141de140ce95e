"""Indices that are floor quotients of affine forms, at least in the interior: dilation, resizing, borders.

``(h + kh - 1) // 2``, ``max(min(x - 1, 7), 0)``, ``floor(0.5 * x - 0.25)``: digits of axes (see ``affine``) express
these only by splitting the axes, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any

import numpy as np

from .affine import Affine, affine, constant, type_of

#: Variable -> (position of its axis, least value, extent), or None if it is no axis.
AxisOf = Callable[[Any], tuple[int, int, int] | None]
#: Divisors tried for a slope that is written in floating point.
LARGEST_DIVISOR = 64
_ROUND: dict[str, Callable[[Any], Any]] = {
    "floor": np.floor, "ceil": np.ceil, "nearbyint": np.round, "trunc": np.trunc,
    "round": lambda v: np.trunc(v + np.copysign(0.5, v)),  # halves away from zero, which numpy rounds to even
}  # fmt: skip


@dataclass(frozen=True)
class Quotient:
    """An index ``floor(form / divisor)``; `clamped` if the formula holds only in the interior."""

    form: Affine
    divisor: int = 1
    clamped: bool = False

    def plus(self, other: Affine, sign: int = 1) -> Quotient:
        return replace(self, form=self.form.plus(other.times(self.divisor), sign))

    def negated(self) -> Quotient:
        """Return the negated index: ``-floor(n / d)`` is ``floor((d - 1 - n) / d)``."""
        return replace(self, form=Affine(const=self.divisor - 1).plus(self.form, -1))

    def steps(self) -> dict[Any, int]:
        """Return the absolute coefficient of each axis."""
        return {digit: abs(c) for digit, c in self.form.terms.items()}


def quotient(node: Any, axis_of: AxisOf) -> Quotient | None:
    """Return the quotient form of an index expression over whole axes; None if it has none."""
    whole = affine(node, axis_of)
    if whole is not None and is_whole(whole, axis_of, node):
        return Quotient(whole)
    kind = type(node).__name__
    if kind in ("FloorDiv", "Div"):
        return _divided(node, axis_of)
    if kind in ("FloorMod", "Mod"):
        return _wrapped(quotient(node.a, axis_of), constant(node.b))
    if kind in ("Add", "Sub"):
        return _sum(node, axis_of)
    if kind == "Mul":
        factor, other = (constant(node.a), node.b) if constant(node.a) is not None else (constant(node.b), node.a)
        inner = quotient(other, axis_of)
        if inner is None or factor is None or (inner.divisor > 1 and abs(factor) != 1):
            return None
        if inner.divisor > 1:
            return inner if factor == 1 else inner.negated()
        return replace(inner, form=inner.form.times(factor))
    if kind in ("Min", "Max"):
        inner, bound = (node.a, node.b) if constant(node.b) is not None else (node.b, node.a)
        found = quotient(inner, axis_of)
        return replace(found, clamped=True) if found is not None and constant(bound) is not None else None
    if kind == "Select":
        return _either(node.true_value, node.false_value, axis_of)
    if kind == "Call" and str(getattr(node.op, "name", "")).endswith("if_then_else"):
        return _either(node.args[1], node.args[2], axis_of)
    if kind == "Cast" and "int" in type_of(node):
        return quotient(node.value, axis_of) if "int" in type_of(node.value) else _sampled(node, axis_of)
    return None


def is_whole(form: Affine, axis_of: AxisOf, node: Any) -> bool:
    """Return whether the form is over whole axes, none of them divided."""
    extents = {found[0]: found[2] for found in map(axis_of, _variables(node)) if found is not None}
    return all(lo == 1 and hi == extents[var] for var, lo, hi in form.terms)


def _divided(node: Any, axis_of: AxisOf) -> Quotient | None:
    inner, by = quotient(node.a, axis_of), constant(node.b)
    if inner is None or by is None or by < 1:
        return None
    if type(node).__name__ == "Div" and inner.form.range()[0] < 0:  # rounds towards zero
        return None
    return replace(inner, divisor=inner.divisor * by)


def _wrapped(inner: Quotient | None, by: int | None) -> Quotient | None:
    """Return the form of a remainder: that of its operand, clamped, without multiples of the modulus."""
    if inner is None or not by:
        return None
    if inner.divisor == 1 and by > 0:
        terms = {digit: c % by if c > 0 else c for digit, c in inner.form.terms.items()}
        inner = Quotient(Affine({d: c for d, c in terms.items() if c}, inner.form.const))
    return replace(inner, clamped=True)


def _sum(node: Any, axis_of: AxisOf) -> Quotient | None:
    left, right = quotient(node.a, axis_of), quotient(node.b, axis_of)
    if left is None or right is None:
        return None
    if type(node).__name__ == "Sub":
        right = right.negated()
    if left.divisor > 1:
        left, right = right, left
    if left.divisor > 1:
        return None  # a sum of two quotients is none
    return replace(right.plus(left.form), clamped=left.clamped or right.clamped)


def _either(yes: Any, no: Any, axis_of: AxisOf) -> Quotient | None:
    """Return the form of a choice between two that move alike (mirrored border): the second, the interior; or None."""
    one, other = quotient(yes, axis_of), quotient(no, axis_of)
    if one is None or other is None or one.divisor != other.divisor or one.steps() != other.steps():
        return None
    return replace(other, clamped=True)


def _sampled(node: Any, axis_of: AxisOf) -> Quotient | None:
    """Return the quotient that equals a rounded floating-point function of one axis at every point, or None."""
    variables = {str(v.name): v for v in _variables(node)}
    found = [axis for axis in map(axis_of, variables.values()) if axis is not None]
    if len(variables) != 1 or len(found) != 1:
        return None
    position, low, extent = found[0]
    values = _evaluate(node, np.arange(low, low + extent))
    if values is None or extent < 2:
        return None
    fit = fit_quotient(np.asarray(values, np.int64))
    if fit is None:
        return None
    slope, offset, divisor = fit
    return Quotient(Affine({(position, 1, extent): slope} if slope else {}, offset), divisor)


def fit_quotient(values: np.ndarray) -> tuple[int, int, int] | None:
    """Return (a, b, d) with the least d such that ``floor((a*x + b) / d) == values[x]`` for every x; None if d is too
    large.

    Examples
    --------
    >>> fit_quotient(np.array([0, 0, 1, 1, 2]))
    (1, 0, 2)
    >>> fit_quotient(np.array([-1, 0, 0, 1, 1]))
    (1, -1, 2)
    """
    x = np.arange(len(values))
    slope = float(values[-1] - values[0]) / (len(values) - 1)
    for divisor in range(1, LARGEST_DIVISOR + 1):
        near = slope * divisor
        for a in range(floor(near) - 1, ceil(near) + 2):
            least = int((divisor * values - a * x).max())
            most = int((divisor * values + divisor - 1 - a * x).min())
            if least <= most:
                return a, min(max(0, least), most), divisor
    return None


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum,
}  # fmt: skip


def _evaluate(node: Any, values: np.ndarray) -> Any:
    """Return the values of an expression in one variable, in its own dtypes; None if it reads a tensor."""
    kind = type(node).__name__
    if kind in ("Var", "SizeVar"):
        return values
    if kind in ("IntImm", "FloatImm"):
        return np.array(node.value).astype(type_of(node))
    if kind == "Cast":
        inner = _evaluate(node.value, values)
        return None if inner is None else inner.astype(type_of(node))
    if kind == "Call" and str(getattr(node.op, "name", "")).rsplit(".", 1)[-1] in _ROUND:
        inner = _evaluate(node.args[0], values)
        return None if inner is None else _ROUND[str(node.op.name).rsplit(".", 1)[-1]](inner)
    if kind in _BINARY or (kind == "Div" and "float" in type_of(node)):
        a, b = _evaluate(node.a, values), _evaluate(node.b, values)
        return None if a is None or b is None else _BINARY.get(kind, np.divide)(a, b)
    return None


def _variables(node: Any) -> list[Any]:
    """Return the variables of an index expression, also those inside loads."""
    return [one for one in nodes_of(node) if type(one).__name__ in ("Var", "SizeVar")]


def nodes_of(node: Any) -> list[Any]:
    """Return an index expression and all its subexpressions; repeated ones are repeated."""
    found: list[Any] = []
    todo = [node]
    while todo:
        one = todo.pop()
        found.append(one)
        for field in ("a", "b", "value", "body", "condition", "true_value", "false_value"):
            child = getattr(one, field, None)
            if _typed(child):
                todo.append(child)
        todo += [c for c in (*getattr(one, "args", ()), *getattr(one, "indices", ())) if _typed(c)]
    return found


def _typed(node: Any) -> bool:
    """Return whether a value is an expression: it has a dtype (a `ty` on the Relax line)."""
    return hasattr(node, "dtype") or hasattr(node, "ty")
