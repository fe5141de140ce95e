"""Differences between flattened functions of the two TVM lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dialect:
    """The parts of TensorIR in which the two lines differ.

    Parameters
    ----------
    tir : module
        ``tvm.tir`` or ``tvm.tirx``.
    analyzer : function of () -> Analyzer
    truth : str
        Dtype of conditions in vectors, without the number of lanes.
    call : function of (dtype, op, arguments) -> Call
    substituted : function of (store or expression, variable, value) -> the same with the value
    with_loops : function of (statement, function of loop -> loop, statement or None) -> statement
        Rewrites every loop, inner ones first; a loop stays as it is if the function returns None for it.
    with_loads, with_calls : the same for the loads and calls of expressions
    """

    tir: Any
    analyzer: Callable[[], Any]
    truth: str
    call: Callable[[str, Any, list[Any]], Any]
    substituted: Callable[[Any, Any, Any], Any]
    with_loops: Callable[[Any, Callable[[Any], Any]], Any]
    with_loads: Callable[[Any, Callable[[Any], Any]], Any]
    with_calls: Callable[[Any, Callable[[Any], Any]], Any]
