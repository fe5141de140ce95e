"""VectorMath: computes exp, erf and tanh with vector arithmetic instead of one call per element.

TVM's rule for LLVM calls a function per element, which splits vectors. Within this context another rule replaces it.
Schedules and records do not change, so TVM's, Ansor's and Roller's schedules all gain.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Any

from ..te import fits
from .switch import Switch

#: Priority of our rules, above TVM's own.
_LEVEL = 99
_LOCK, _contexts = threading.Lock(), 0


class VectorMath(Switch):
    """A context in which kernels for LLVM compute exp, erf and tanh of float32 with arithmetic.

    Sigmoid and softmax use exp. Results agree with the math library to a few units in the last place. Infinities, NaN
    and ``exp(0) = 1`` are exact; ``exp`` below 1.2e-38 is 0.

    Parameters
    ----------
    on : bool
        False restores the calls inside of another such context.

    Examples
    --------
    >>> with VectorMath():  # doctest: +SKIP
    ...     lib = relay.build(mod, "llvm -mcpu=skylake-avx512", params=params)
    """

    state = ContextVar("roller_vector_math", default=False)

    @staticmethod
    def install() -> None:
        """Replace TVM's rules."""
        _install()
        _erf_of_vectors(1)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self.on:
            _erf_of_vectors(-1)


def _erf_of_vectors(more: int) -> None:
    """Make TVM keep vectors whole for erf while any context is on; otherwise it splits them before it applies a rule.
    """
    import tvm

    global _contexts
    erf = tvm.ir.Op.get("tir.erf")
    with _LOCK:
        before, _contexts = _contexts, _contexts + more
        if not before:
            erf.set_attr("TVectorizable", True, _LEVEL)
        elif not _contexts:
            erf.reset_attr("TVectorizable")


@cache
def _install() -> None:
    """Replace TVM's rules, once per process; outside of the context ours call the replaced ones."""
    import tvm

    for name, function in (("exp", _exp), ("erf", _erf), ("tanh", _tanh)):
        own = tvm.ir.Op.get(f"tir.{name}").get_attr("llvm.FLowerIntrinsic")
        tvm.ir.register_intrin_lowering(f"tir.{name}", "llvm", f=_rule(function, own), level=_LEVEL)


def _rule(function: Callable[[Any], Any], own: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def lower(call: Any) -> Any:
        if VectorMath.active() and re.fullmatch(r"float32(x\d+)?", str(call.dtype)):
            return function(call.args[0])
        if own is not None:
            return own(call)
        return _by_element(call) if "x" in str(call.dtype) else call  # TVM goes on to its rule for every target

    return lower


def _by_element(call: Any) -> Any:
    """Return a call per element of a vector, joined to a vector again."""
    from tvm import tir

    dtype, lanes = str(call.dtype).split("x")
    elements = (tir.Shuffle(list(call.args), [lane]) for lane in range(int(lanes)))
    return tir.Shuffle([tir.call_intrin(dtype, call.op, e) for e in elements], list(range(int(lanes))))


def _let(value: Any, body: Callable[[Any], Any]) -> Any:
    """Return a let that names a value used several times in the body."""
    from tvm import tir

    name = tir.Var("value", value.dtype)
    return tir.Let(name, value, body(name))


def _like(value: float, x: Any, kind: str = "float32") -> Any:
    """Return a constant with as many lanes as `x`."""
    from tvm import tir

    return tir.const(value, str(x.dtype).replace("float32", kind))


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    """Return a polynomial of `x` by Horner's rule; coefficients are in ascending order."""
    *rest, result = (_like(c, x) for c in coefficients)
    for coefficient in reversed(rest):
        result = result * x + coefficient
    return result


def _exp(x: Any) -> Any:
    return _let(x, _exp_of_name)


def _exp_of_name(x: Any) -> Any:
    from tvm import tir

    low, high = (_like(e, x) for e in fits.EXPONENTS)
    whole = tir.max(tir.min(tir.floor(x * _like(fits.LOG2_E, x)), high), low)

    def result(power: Any) -> Any:
        rest = x - power * _like(fits.LN2[0], x) - power * _like(fits.LN2[1], x)
        bits = power.astype(str(x.dtype).replace("float32", "int32")) + _like(fits.BIAS, x, "int32")
        scale = tir.reinterpret(x.dtype, bits << _like(fits.MANTISSA, x, "int32"))
        value = _let(rest, lambda r: _polynomial(fits.EXP, r)) * scale
        value = tir.Select(x < _like(fits.SMALLEST, x), _like(0.0, x), value)
        value = tir.Select(x > _like(fits.LARGEST, x), _like(float("inf"), x), value)
        return tir.Select(tir.isnan(x), x, value)  # LLVM 10 would give 0

    return _let(whole, result)


def _rational(fit: tuple[tuple[float, ...], tuple[float, ...], float], x: Any) -> Any:
    above, below, end = fit

    def quotient(near: Any) -> Any:
        value = _let(near * near, lambda s: near * _polynomial(above, s) / _polynomial(below, s))
        return _clamped(value, 1.0)

    return _let(_clamped(x, end), quotient)


def _clamped(x: Any, end: float) -> Any:
    """Return `x` limited to [-end, end]. NaN stays, since no comparison with it prefers the other operand."""
    from tvm import tir

    return tir.max(_like(-end, x), tir.min(_like(end, x), x))


def _erf(x: Any) -> Any:
    return _rational(fits.ERF, x)


def _tanh(x: Any) -> Any:
    return _rational(fits.TANH, x)
