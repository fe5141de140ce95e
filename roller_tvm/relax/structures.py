"""PrimFuncs by their structure: what is asked of one is known of all that equal it."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import tvm

from ..tir.nodes import structural_hash, structurally_equal


class Function:
    """A function that equals another of the same structure, whatever they are called."""

    def __init__(self, func: Any) -> None:
        self.func, self.bare = func, bare(func)

    def __hash__(self) -> int:
        return self._digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and bool(structurally_equal(self.bare, other.bare))

    @cached_property
    def _digest(self) -> int:
        return structural_hash(self.bare)

    @property
    def text(self) -> str:
        """The function in JSON, without its name."""
        return _text(self)


@lru_cache(maxsize=512)  # passes ask one after the other of the same functions
def _text(function: Function) -> str:
    return str(tvm.ir.save_json(function.bare))


def bare(func: Any) -> Any:
    """Return the function without its name."""
    return func.without_attr("global_symbol") if func.attrs and "global_symbol" in func.attrs else func
