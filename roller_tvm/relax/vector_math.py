"""VectorMath: exp, erf, tanh and sigmoid as arithmetic that vectors do, where a CPU would call a function an element.

LLVM has no vector form of these: it takes a vector apart and calls the mathematics library for each element, 5 to 12
cycles each, where a polynomial of 16 elements takes about as long. In softmax and GELU that is most of the time.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

# exp(r) on [0, ln 2], least relative error with exp(0) = 1, ascending. Fitted for this project (reweighted least
# squares against float64): 2e-9 before rounding; 1.6 units in the last place over all of float32.
_EXP = (
    1.0, 0.9999998034522308, 0.5000058292368785, 0.16661009601341334, 0.041915107978684765, 0.007792100416129322,
    0.0019488646748334545,
)  # fmt: skip
# f(x) = x P(x^2) / Q(x^2) up to where f rounds to 1 in float32; fitted in the same way. P and Q ascending, and the end.
# Before rounding 5e-8 and 4e-9; 7 and 5 units in the last place.
_ERF = (
    (1.1283791089809179, 0.19992535114063034, 0.05057344164669627, 0.0037016461807441916, 0.00014185141690603156,
     -1.9578403058447647e-06, 1.992424510184105e-08),
    (1.0, 0.5105108841505295, 0.11499875855707585, 0.014353277134533422, 0.000956048203854332),
    3.92,
)  # fmt: skip
_TANH = (
    (1.0, 0.1310476145446631, 0.003127251088941968, 1.1402229753470477e-05, -2.126492751019186e-08,
     5.802538005062684e-11, -9.91366872763993e-14),
    (1.0, 0.4643809131061595, 0.024587612525081567, 0.0002580297844140312),
    8.5,
)  # fmt: skip
_LOG2_E = 1.4426950408889634
# ln 2 in two parts, so that n * first is exact for every exponent n.
_LN2 = (0.693145751953125, 1.428606765330187e-06)
# float32: results above and below are infinite, or less than its smallest normal number and taken for 0.
_LARGEST, _SMALLEST = 88.72283, -87.33654
_EXPONENTS, _BIAS, _MANTISSA = (-126, 127), 127, 23


@tvm.transform.module_pass(opt_level=0, name="VectorMath")
class VectorMath:
    """Write exp, erf, tanh and sigmoid of float32 as arithmetic, in every PrimFunc.

    Results agree with the mathematics library's to a few units in the last place; infinities, not-a-numbers and
    ``exp(0) = 1`` stay what they are; ``exp`` below 1.2e-38 is 0. For targets of kind llvm; ``prepare`` and the
    pipeline "roller" have it, before tuning, so that a database matches.

    Examples
    --------
    >>> mod = VectorMath()(mod)  # doctest: +SKIP
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs rewritten."""
        changed = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
        for var, func in mod.functions_items():
            if type(func).__name__ == "PrimFunc":
                changed.update_func(var, with_vector_math(func))
        return changed


def with_vector_math(func: Any) -> Any:
    """A PrimFunc without calls of these functions on float32.

    Examples
    --------
    >>> func = with_vector_math(func)  # doctest: +SKIP
    """
    import tvm_ffi

    return tvm_ffi.structural_map(func, (tvm.ir.Call, _arithmetic), order="post")


def _arithmetic(call: Any) -> Any:
    name = str(getattr(call.op, "name", ""))
    function = _FUNCTIONS.get(name.rsplit(".", 1)[-1]) if name.startswith("tirx.") else None
    if function is None or str(call.ty.dtype if hasattr(call, "ty") else call.dtype) != "float32":
        return call
    return function(call.args[0])


def _number(value: float) -> Any:
    return tirx.const(value, "float32")


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    """Ascending coefficients, by Horner's rule."""
    *rest, result = (_number(c) for c in coefficients)
    for coefficient in reversed(rest):
        result = result * x + coefficient
    return result


def _unless_nan(x: Any, result: Any) -> Any:
    return tirx.Select(tirx.isnan(x), x, result)


def _exp(x: Any) -> Any:
    # What is named here stands in the result several times: MetaSchedule cannot read T.Let, and LLVM finds it again.
    low, high = map(_number, _EXPONENTS)
    power = tirx.max(tirx.min(tirx.floor(x * _number(_LOG2_E)), high), low)
    rest = x - power * _number(_LN2[0]) - power * _number(_LN2[1])
    bits = (power.astype("int32") + tirx.const(_BIAS, "int32")) << tirx.const(_MANTISSA, "int32")
    result = _polynomial(_EXP, rest) * tirx.reinterpret("float32", bits)
    result = tirx.Select(x < _number(_SMALLEST), _number(0.0), result)
    result = tirx.Select(x > _number(_LARGEST), _number(float("inf")), result)
    return _unless_nan(x, result)


def _rational(fit: tuple[tuple[float, ...], tuple[float, ...], float], x: Any) -> Any:
    above, below, end = fit
    near = tirx.max(tirx.min(x, _number(end)), _number(-end))
    square = near * near
    result = near * _polynomial(above, square) / _polynomial(below, square)
    return _unless_nan(x, tirx.max(tirx.min(result, _number(1.0)), _number(-1.0)))


_FUNCTIONS = {
    "exp": _exp,
    "erf": lambda x: _rational(_ERF, x),
    "tanh": lambda x: _rational(_TANH, x),
    "sigmoid": lambda x: _number(1.0) / (_number(1.0) + _exp(_number(0.0) - x)),
}
