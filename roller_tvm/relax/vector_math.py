"""VectorMath: exp, erf, tanh and sigmoid as arithmetic, written into PrimFuncs before they are scheduled."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..codegen.rewrites.vector_math import Arithmetic
from ..te.numbering import dtype_of_node
from ..tir.nodes import access_of, buffer_of, key
from .modules import each_prim_func

#: Functions of each other that are rewritten: each repeats its argument about 20 times.
NESTED = 2


@tvm.transform.module_pass(opt_level=0, name="VectorMath")
class VectorMath:
    """Write exp, erf, tanh and sigmoid of float32 as arithmetic, in every PrimFunc.

    Of functions of each other (a chain of activations, a recurrence written out) the first two; the others stay calls.
    For targets of kind llvm; ``prepare`` and the pipeline "roller" have it, before tuning, so that a database matches.
    See ``codegen.rewrites.vector_math``.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs rewritten."""
        return each_prim_func(mod, with_vector_math)


def with_vector_math(func: Any) -> Any:
    """A PrimFunc without calls of these functions on float32."""
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
    if not name.startswith("tirx.") or dtype_of_node(call) != "float32":
        return None
    return Arithmetic(tirx, False).function(name.removeprefix("tirx."))


def _parts(e: Any) -> list[Any]:
    """The expressions that an expression is made of."""
    names = ("a", "b", "value", "condition", "true_value", "false_value")
    return [*(getattr(e, name) for name in names if hasattr(e, name)), *getattr(e, "args", ())]
