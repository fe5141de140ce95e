"""PrimFuncs that are marked are rewritten once TVM has flattened them, where no pass of a user is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm.tirx import compilation_pipeline as pipelines

from .modules import each_prim_func

#: The pipeline that ``tvm.compile`` asks for by default.
_PIPELINE = "s_tir"
#: Mark -> what is done to a flattened function that has it.
_WAYS: dict[str, Callable[[Any], Any]] = {}


def before_llvm(mark: str, rewritten: Callable[[Any], Any]) -> None:
    """Have TVM rewrite functions with this attribute, right before it decides what is on the stack.

    Examples
    --------
    >>> before_llvm("my.mark", lambda func: func)  # doctest: +SKIP
    """
    if not _WAYS:
        _extend()
    _WAYS[mark] = rewritten


def marked(mod: Any, mark: str) -> Any:
    """The module with its PrimFuncs marked."""
    return each_prim_func(mod, lambda func: func.with_attr(mark, True))


def with_loops(statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    """A statement with every loop rewritten but those of which `rewritten` says None; those inside of others first."""
    return _with(tvm.tirx.For, statement, rewritten)


def with_loads(statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    """A statement with every load rewritten but those of which `rewritten` says None."""
    return _with(tvm.ir.TensorLoad, statement, rewritten)


def with_calls(statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    """A statement with every call rewritten but those of which `rewritten` says None."""
    return _with(tvm.ir.Call, statement, rewritten)


def _with(kind: type, statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    import tvm_ffi

    def one(node: Any) -> Any:
        made = rewritten(node)
        return node if made is None else made

    return tvm_ffi.structural_map(statement, (kind, one), order="post")


@tvm.transform.module_pass(opt_level=0, name="RollerBeforeLlvm")
class _Rewrite:
    def transform_module(self, mod: Any, _context: Any) -> Any:
        return each_prim_func(mod, _in_its_ways)


def _in_its_ways(func: Any) -> Any:
    for mark, rewritten in _WAYS.items():
        if func.attrs and mark in func.attrs:
            func = rewritten(func)
    return func


def _extend() -> None:
    made = pipelines.PIPELINE_MAP[_PIPELINE]

    def extended(**options: Any) -> Any:
        passes, on_host, on_device = made(**options)
        return passes, lambda: tvm.transform.Sequential([_Rewrite(), on_host()]), on_device

    pipelines.register_tir_pipeline(_PIPELINE, extended)
