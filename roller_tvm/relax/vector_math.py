"""VectorMath: exp, erf, tanh and sigmoid as arithmetic that vectors do, where a CPU would call a function an element.

LLVM has no vector form of these: it takes a vector apart and calls the mathematics library for each element, 5 to 12
cycles each, where a polynomial of 16 elements takes about as long. In softmax and GELU that is most of the time.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..te import fits
from ..te.numbering import dtype_of_node
from ..tir.nodes import access_of, buffer_of, key
from .modules import each_prim_func

#: Of functions of each other so many are rewritten: each repeats its argument about 20 times.
NESTED = 2


@tvm.transform.module_pass(opt_level=0, name="VectorMath")
class VectorMath:
    """Write exp, erf, tanh and sigmoid of float32 as arithmetic, in every PrimFunc.

    Of functions of each other (a chain of activations, a recurrence written out) the first two; the others stay calls.
    Results agree with the mathematics library's to a few units in the last place; infinities, not-a-numbers and
    ``exp(0) = 1`` stay what they are; ``exp`` below 1.2e-38 is 0. For targets of kind llvm; ``prepare`` and the
    pipeline "roller" have it, before tuning, so that a database matches.

    Examples
    --------
    >>> mod = VectorMath()(mod)  # doctest: +SKIP
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs rewritten."""
        return each_prim_func(mod, with_vector_math)


def with_vector_math(func: Any) -> Any:
    """A PrimFunc without calls of these functions on float32.

    Examples
    --------
    >>> func = with_vector_math(func)  # doctest: +SKIP
    """
    return tvm_ffi.structural_map(func, (tvm.ir.Call, _Rewriter(func).arithmetic), order="post")


class _Rewriter:
    """A function's argument stands in it some twenty times, so of functions of functions only the first are rewritten.

    Parameters
    ----------
    func : PrimFunc
        What its blocks compute one by one may be inlined into each other, but for reductions.
    """

    def __init__(self, func: Any) -> None:
        self._written: dict[Any, int] = {}  # of what is rewritten, how deep
        self._alive: list[Any] = []  # whose addresses are keys
        self._buffers: dict[Any, int] = {}
        tvm_ffi.structural_walk(func.body, [(tirx.BufferStore, self._note), (s_tir.SBlock, self._stored)])

    def _note(self, store: Any) -> None:
        """How deep a buffer's values are, of blocks in the order in which they run."""
        at = key(store.buffer)
        self._buffers[at] = max(self._buffers.get(at, 0), self._depth(store.value))

    def _stored(self, block: Any) -> None:
        """Mark the buffers that a reduction writes as stored, not inlined into their readers."""
        if block.init is not None:
            self._buffers.update({key(buffer_of(region)): 0 for region in block.writes})

    def _depth(self, e: Any) -> int:
        """How many functions of each other an expression is, that are written out or will be."""
        if (known := self._written.get(key(e))) is not None:
            return known
        if (access := access_of(e)) is not None:
            return self._buffers.get(key(access[0]), 0)
        inside = max((self._depth(part) for part in _parts(e)), default=0)
        return min(inside + 1, NESTED) if _function(e) is not None else inside

    def arithmetic(self, call: Any) -> Any:
        """A call, its arguments rewritten already."""
        function = _function(call)
        if function is None or (depth := self._depth(call.args[0])) >= NESTED:
            return call
        made = function(call.args[0])
        self._alive.append(made)
        self._written[key(made)] = depth + 1
        return made


def _function(call: Any) -> Any:
    """Return the function that replaces a call; None if the call stays."""
    name = str(getattr(getattr(call, "op", None), "name", ""))
    function = _FUNCTIONS.get(name.rsplit(".", 1)[-1]) if name.startswith("tirx.") else None
    return function if function is not None and dtype_of_node(call) == "float32" else None


def _parts(e: Any) -> list[Any]:
    """The expressions that an expression is made of."""
    names = ("a", "b", "value", "condition", "true_value", "false_value")
    return [*(getattr(e, name) for name in names if hasattr(e, name)), *getattr(e, "args", ())]


def _number(value: float) -> Any:
    return tirx.const(value, "float32")


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    """Ascending coefficients, by Horner's rule."""
    *rest, result = (_number(c) for c in coefficients)
    for coefficient in reversed(rest):
        result = result * x + coefficient
    return result


def _clamped(x: Any, end: float) -> Any:
    """Within -end and end; not-a-number stays, which a comparison never prefers to the second operand.

    There is no asking for it: TVM takes vectors apart for ``isnan``.
    """
    return tirx.max(_number(-end), tirx.min(_number(end), x))


def _exp(x: Any) -> Any:
    # What is named here stands in the result several times: MetaSchedule cannot read T.Let, and LLVM finds it again.
    low, high = map(_number, fits.EXPONENTS)
    power = tirx.max(tirx.min(tirx.floor(x * _number(fits.LOG2_E)), high), low)
    rest = x - power * _number(fits.LN2[0]) - power * _number(fits.LN2[1])
    bits = (power.astype("int32") + tirx.const(fits.BIAS, "int32")) << tirx.const(fits.MANTISSA, "int32")
    result = _polynomial(fits.EXP, rest) * tirx.reinterpret("float32", bits)
    result = tirx.Select(x < _number(fits.SMALLEST), _number(0.0), result)
    return tirx.Select(x > _number(fits.LARGEST), _number(float("inf")), result)


def _rational(fit: tuple[tuple[float, ...], tuple[float, ...], float], x: Any) -> Any:
    above, below, end = fit
    near = _clamped(x, end)
    square = near * near
    return _clamped(near * _polynomial(above, square) / _polynomial(below, square), 1.0)


_FUNCTIONS = {
    "exp": _exp,
    "erf": lambda x: _rational(fits.ERF, x),
    "tanh": lambda x: _rational(fits.TANH, x),
    "sigmoid": lambda x: _number(1.0) / (_number(1.0) + _exp(_number(0.0) - x)),
}
