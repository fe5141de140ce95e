"""exp, erf, tanh and sigmoid of float32 as arithmetic that vectors do.

LLVM has no vector form of these: it takes a vector apart and calls the mathematics library for each element, 5 to 12
cycles each; a polynomial of 16 elements takes about as long. In softmax and GELU that is most of the time. Results
agree with the library to a few units in the last place. Infinities, NaN and ``exp(0) = 1`` are exact; ``exp`` below
1.2e-38 is 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...te import fits
from ...te.numbering import dtype_of_node
from ..dialect import Dialect
from ..flat import called

#: A number or a vector of the type that is computed so.
_FLOAT32 = re.compile(r"float32(x\d+)?")


def with_vector_math(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc without calls of these functions on float32."""
    arithmetic = Arithmetic(dialect.tir, dialect.loses_nan)

    def one(call: Any) -> Any | None:
        function = arithmetic.function(called(call))
        return None if function is None or not _FLOAT32.fullmatch(dtype_of_node(call)) else function(call.args[0])

    return func.with_body(dialect.with_calls(func.body, one))


def by_element(call: Any, dialect: Dialect) -> Any:
    """Return a call on a vector as a vector of a call per element; any other call as it is."""
    dtype, _, lanes = dtype_of_node(call).partition("x")
    if not lanes:
        return call
    tir = dialect.tir
    lane = [tir.const(n, "int32") for n in range(int(lanes))]
    calls = [dialect.call(dtype, call.op, [tir.Shuffle([given], [n]) for given in call.args]) for n in lane]
    return tir.Shuffle(calls, lane)


@dataclass(frozen=True)
class Arithmetic:
    """Makes expressions of TVM for these functions, of scalars or vectors."""

    tir: Any  # ``tvm.tir`` or ``tvm.tirx``
    #: True to choose NaN last: LLVM 10 loses it in comparisons. TVM 0.27 takes vectors apart for ``isnan``.
    chooses_nan: bool

    def function(self, name: str) -> Callable[[Any], Any] | None:
        """Return the function of that name; None if there is none."""
        return {"exp": self.exp, "erf": self.erf, "tanh": self.tanh, "sigmoid": self.sigmoid}.get(name)

    def exp(self, x: Any) -> Any:
        return self._named(x, self._exp)

    def erf(self, x: Any) -> Any:
        return self._rational(fits.ERF, x)

    def tanh(self, x: Any) -> Any:
        return self._rational(fits.TANH, x)

    def sigmoid(self, x: Any) -> Any:
        return self._like(1.0, x) / (self._like(1.0, x) + self.exp(self._like(0.0, x) - x))

    def _exp(self, x: Any) -> Any:
        tir = self.tir
        low, high = (self._like(e, x) for e in fits.EXPONENTS)
        nearest = tir.floor(x * self._like(fits.LOG2_E, x) + self._like(0.5, x))
        whole = tir.max(tir.min(nearest, high), low)

        def result(power: Any) -> Any:
            rest = x - power * self._like(fits.LN2[0], x) - power * self._like(fits.LN2[1], x)
            bits = power.astype(_as(x, "int32")) + self._like(fits.BIAS, x, "int32")
            scale = tir.reinterpret(_as(x, "float32"), bits << self._like(fits.MANTISSA, x, "int32"))
            value = self._named(rest, lambda r: self._polynomial(fits.EXP, r)) * scale
            value = tir.Select(x < self._like(fits.SMALLEST, x), self._like(0.0, x), value)
            value = tir.Select(x > self._like(fits.LARGEST, x), self._like(float("inf"), x), value)
            return tir.Select(tir.isnan(x), x, value) if self.chooses_nan else value  # LLVM 10 would give 0

        return self._named(whole, result)

    def _rational(self, fit: tuple[tuple[float, ...], tuple[float, ...], float], x: Any) -> Any:
        above, below, end = fit

        def quotient(near: Any) -> Any:
            value = self._named(
                near * near, lambda s: near * self._polynomial(above, s) / self._polynomial(below, s)
            )
            return self._clamped(value, 1.0)

        return self._named(self._clamped(x, end), quotient)

    def _polynomial(self, coefficients: tuple[float, ...], x: Any) -> Any:
        """Return a polynomial of `x` by Horner's rule; coefficients are in ascending order."""
        *rest, result = (self._like(c, x) for c in coefficients)
        for coefficient in reversed(rest):
            result = result * x + coefficient
        return result

    def _clamped(self, x: Any, end: float) -> Any:
        """Return `x` limited to [-end, end]. NaN stays, since no comparison with it prefers the other operand."""
        return self.tir.max(self._like(-end, x), self.tir.min(self._like(end, x), x))

    def _named(self, value: Any, body: Callable[[Any], Any]) -> Any:
        """Return the body of a value used several times in it, under a name: functions of functions stay short."""
        name = self.tir.Var("value", dtype_of_node(value))
        return self.tir.Let(name, value, body(name))

    def _like(self, value: float, x: Any, kind: str = "float32") -> Any:
        """Return a constant with as many lanes as `x`."""
        return self.tir.const(value, _as(x, kind))


def _as(x: Any, kind: str) -> str:
    return dtype_of_node(x).replace("float32", kind)
