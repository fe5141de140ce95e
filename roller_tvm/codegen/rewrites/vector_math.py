"""exp, erf, tanh and sigmoid of float32 as arithmetic that vectors do.

LLVM has no vector form of these: it takes a vector apart and calls the mathematics library for each element, 5 to 12
cycles each; a polynomial of 16 elements takes about as long. In softmax and GELU that is most of the time. Results are
within 2 units in the last place, or 8 if fast ones are asked for. Infinities, NaN and ``exp(0) = 1`` are exact; results
below 1.2e-38 may be 0.

The functions are text in LLVM's language (`vector_functions.py`) that the kernel brings along. This comes after all
rewrites that make vectors of numbers.
"""

from __future__ import annotations

import re
from typing import Any

from ...te.numbering import dtype_of_node
from ..dialect import Dialect
from ..flat import OURS, called, our_function
from ..vector_functions import FUNCTIONS, MERGED, RECIPROCAL, defined, name_of

#: A number or a vector of the type that is computed so.
_FLOAT32 = re.compile(r"float32(?:x(\d+))?")
#: Functions that have a text.
KNOWN = {*FUNCTIONS, *RECIPROCAL, *MERGED.values()}


def with_vector_math(func: Any, dialect: Dialect, fast: bool = False) -> Any:
    """Return a flattened PrimFunc without calls of these functions on float32, or of those that merge lanes."""
    used: set[tuple[str, int]] = set()

    def one(call: Any) -> Any | None:
        name = our_function(call) or called(call)
        if name not in KNOWN or not (kind := _FLOAT32.fullmatch(dtype_of_node(call.args[-1]))):
            return None
        used.add((name, lanes := int(kind[1] or 1)))
        return _outside(name_of(name, lanes), call, dialect)

    body = dialect.with_calls(func.body, one)
    if not used:
        return func
    text = dialect.text(defined(frozenset(used), dialect.loses_nan, fast))
    nothing = dialect.tir.const(0, "int32")
    return dialect.with_body(func, dialect.tir.AttrStmt(nothing, "pragma_import_llvm", text, body))


def kept_for_later(name: str, call: Any, dialect: Dialect) -> Any:
    """Return the call of a function as one that no rule of TVM knows, for `with_vector_math`."""
    return _outside(OURS + name, call, dialect)


def _outside(name: str, call: Any, dialect: Dialect) -> Any:
    return dialect.extern(dtype_of_node(call), name, [call.args[-1]])


def by_element(call: Any, dialect: Dialect) -> Any:
    """Return a call on a vector as a vector of a call per element; any other call as it is."""
    dtype, _, lanes = dtype_of_node(call).partition("x")
    if not lanes:
        return call
    tir = dialect.tir
    lane = [tir.const(n, "int32") for n in range(int(lanes))]
    calls = [dialect.call(dtype, call.op, [tir.Shuffle([given], [n]) for given in call.args]) for n in lane]
    return tir.Shuffle(calls, lane)
