"""Digits of a loop that was fused of several: how an access moves with each of them.

The chunks of a kernel, which threads share, are one loop. Their places along the axes are digits of its variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...te.numbering import dtype_of_node
from ..flat import Sum, kind_of, number_of, sum_of

#: (divisor, modulus) of a digit; without a modulus it is all that is left.
Digit = tuple[int, "int | None"]


@dataclass(frozen=True)
class LoopAxis:
    """A loop, or a digit of its variable.

    Parameters
    ----------
    loop : For
    value : Expr
        The digit.
    extent : int, optional
        None if it is not known.
    stride : int
        Elements by which an access moves as the digit grows by one.
    """

    loop: Any
    value: Any
    extent: int | None
    stride: int

    def place(self) -> Sum:
        """Return the digit as a sum."""
        return sum_of(self.value, {}, set()) or Sum()


def axes_of(loop: Any, start: Sum, tir: Any) -> list[LoopAxis] | None:
    """Return a loop as the digits of its variable with which an access moves or not, the slowest first.

    Parameters
    ----------
    loop : For
    start : Sum
        Index of the access.
    tir : module

    Returns
    -------
    list of LoopAxis or None
        None if the access depends on anything else of the variable, or the digits do not make it up.
    """
    var, trips = loop.loop_var, number_of(loop.extent)
    strides: dict[Digit, int] = {}
    values: dict[Digit, Any] = {}
    apart = start.outside({hash(var)}).terms
    for atom, count in (term for at, term in start.terms.items() if at not in apart):
        if (digit := digit_of(atom, var)) is None:
            return None
        strides[digit], values[digit] = strides.get(digit, 0) + count, atom
    if trips is None or set(strides) <= {(1, None)}:
        return [LoopAxis(loop, var, trips, strides.get((1, None), 0))]
    bounds = sorted({1, *(n for n, _ in strides), *(n * m for n, m in strides if m)})
    bounds = [*(bound for bound in bounds if bound < trips), trips]
    axes: list[LoopAxis] = []
    for bound, above in zip(bounds, bounds[1:], strict=False):
        if above % bound:
            return None
        stride = sum(count * (bound // n) for (n, m), count in strides.items()
                     if n <= bound and (m is None or above <= n * m))  # fmt: skip
        digit = bound, None if above == trips else above // bound
        value = values[digit] if digit in values else _value(var, digit, tir)
        axes.append(LoopAxis(loop, value, above // bound, stride))
    return axes[::-1]


def digit_of(value: Any, var: Any) -> Digit | None:
    """Return divisor and modulus of a digit of a variable that is never negative; None of anything else."""
    kind = kind_of(value)
    if hash(value) == hash(var):
        return 1, None
    if kind not in ("FloorDiv", "Div", "FloorMod", "Mod") or (number := number_of(value.b)) is None:
        return None
    inner = digit_of(value.a, var)
    if inner is None or inner[1] is not None:
        return None
    return (inner[0] * number, None) if kind in ("FloorDiv", "Div") else (inner[0], number)


def _value(var: Any, digit: Digit, tir: Any) -> Any:
    """Return a digit as an expression."""

    def like(number: int) -> Any:
        return tir.const(number, dtype_of_node(var))

    divisor, modulus = digit
    value = var if divisor == 1 else tir.truncdiv(var, like(divisor))
    return value if modulus is None else tir.truncmod(value, like(modulus))
