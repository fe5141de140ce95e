"""What flattened functions of the two TVM lines do not share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dialect:
    """What the two lines' TensorIR do not share.

    Parameters
    ----------
    tir : module
        ``tvm.tir`` or ``tvm.tirx``.
    analyzer : function of () -> Analyzer
    truth : str
        The type of conditions in vectors, without their number.
    call : function of (dtype, op, arguments) -> Call
    substituted : function of (store or expression, variable, value) -> the same with the value
    with_loops : function of (statement, function of loop -> loop, statement or None) -> statement
        Every loop rewritten but those of which it says None; those inside of others first.
    with_loads, with_calls : the same for loads and calls, of which expressions are made
    """

    tir: Any
    analyzer: Callable[[], Any]
    truth: str
    call: Callable[[str, Any, list[Any]], Any]
    substituted: Callable[[Any, Any, Any], Any]
    with_loops: Callable[[Any, Callable[[Any], Any]], Any]
    with_loads: Callable[[Any, Callable[[Any], Any]], Any]
    with_calls: Callable[[Any, Callable[[Any], Any]], Any]
