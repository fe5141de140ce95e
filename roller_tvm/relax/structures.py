"""PrimFuncs by their structure: what is asked of one is known of all that equal it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import tvm

from ..tir.nodes import structural_hash, structurally_equal
from .marks import ORIGIN

_NUMBERS = re.compile(r"\d+")


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
        return int(structural_hash(self.bare))

    @cached_property
    def text(self) -> str:
        """The function in JSON, without its name."""
        return str(tvm.ir.save_json(self.bare))


def unnamed_text(func: Any) -> str:
    """Return a function in JSON without its name, and the names in it without their numbers.

    Networks number their functions and tensors: an equal function of another network has the same text, as a rule.

    Examples
    --------
    >>> unnamed_text(func.with_attr("global_symbol", "conv2d7")) == unnamed_text(func)
    True
    """
    own = func.without_attr(ORIGIN) if func.attrs and ORIGIN in func.attrs else func
    data = json.loads(tvm.ir.save_json(bare(own)))
    nodes, names = data["nodes"], set[int]()
    for node in nodes:
        fields = node.get("data")
        for field in ("name", "name_hint") if isinstance(fields, dict) else ():
            if isinstance(at := fields.get(field), int) and nodes[at]["type"] == "ffi.String":
                names.add(at)
                fields[field] = _NUMBERS.sub("", nodes[at]["data"])
    used = {at for node in nodes for at in _numbers(node.get("data"))}
    for at in names - used:
        nodes[at] = None
    return json.dumps(data)


def _numbers(fields: Any) -> Iterator[int]:
    """Yield the numbers in a node, those of other nodes among them."""
    for value in fields.values() if isinstance(fields, dict) else fields if isinstance(fields, list) else (fields,):
        if isinstance(value, int):
            yield value


def bare(func: Any) -> Any:
    """Return the function without its name."""
    return func.without_attr("global_symbol") if func.attrs and "global_symbol" in func.attrs else func
