"""Nodes of TVM's expressions by themselves: their numbers, types, names, and what its arithmetic makes of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..errors import UnsupportedOperator
from ..ir.stage import DTYPE_BYTES
from .affine import constant

REMEDY = "leave this operator to TVM's own schedule"


def unique(name: str, used: set[str]) -> str:
    """Return `name`, with a number appended if it is used already."""
    result, count = name, 0
    while result in used:
        count += 1
        result = f"{name}_{count}"
    used.add(result)
    return result


def read_by(node: Any) -> tuple[Any, list[Any]] | None:
    """Return tensor and indices if the expression reads one (a ProducerLoad; on the Relax line a call), else None."""
    if type(node).__name__ == "ProducerLoad":
        return node.producer, list(node.indices)
    if type(node).__name__ == "Call" and callee_of(node) == "tensor_load":
        return node.args[0], list(node.args)[1:]
    return None


def callee_of(call: Any) -> str:
    """Return the name of the called function without its namespace, which differs between TVM's versions."""
    return str(getattr(call.op, "name", call.op)).rsplit(".", 1)[-1]


def literal(node: Any) -> float | None:
    """Return the value of a constant expression, also one held by a tensor without dimensions; else None."""
    tensor, indices = read_by(node) or (None, ())
    if tensor is not None and not indices and len(getattr(tensor.op, "body", ())) == 1:
        node = tensor.op.body[0]
    value = getattr(node, "value", None)
    return float(value) if isinstance(value, (int, float)) else None


def extent_of(node: Any, where: str, what: str) -> int:
    """Return a constant extent; refuses dynamic and empty ones."""
    value = constant(node)
    if value is None:
        value = constant(analyzer_here().simplify(node))
    if value is None:
        raise UnsupportedOperator(
            f"{what} has the extent {node}, which is not a constant",
            where,
            "fix the shape when importing the model, or " + REMEDY,
        )
    if value < 1:
        raise UnsupportedOperator(f"{what} has the extent {value}, it must be >= 1", where, REMEDY)
    return value


def analyzer_here() -> Any:
    """Return an Analyzer; later versions of TVM have it in another module."""
    import tvm

    return (tvm.arith if hasattr(tvm, "arith") else tvm.sym).Analyzer()


def dtype_of(dtype: Any, where: str) -> str:
    """Return a dtype as text; refuses dtypes that cannot be planned."""
    text = str(dtype)
    if text not in DTYPE_BYTES:
        raise UnsupportedOperator(f"dtype '{text}' is not one of {', '.join(DTYPE_BYTES)}", where, REMEDY)
    return text


def value_at(node: Any, variable: Any, value: int) -> int | None:
    """Return the value of an expression for one value of a variable; None if it is not constant then."""
    import tvm

    analyzer = analyzer_here()
    analyzer.bind(variable, tvm.ir.Range(value, value + 1))
    return constant(analyzer.simplify(node))


def low_of(iv: Any, where: str) -> int:
    low = constant(iv.dom.min)
    if low is None:
        raise UnsupportedOperator(
            f"axis '{iv.var.name}' starts at {iv.dom.min}, which is not a constant", where, REMEDY
        )
    return low


def canonical(index: Any, variables: list[Any], lows: list[int], extents: list[int]) -> Any:
    """Return the index simplified by TVM, for arithmetic that `affine` does not handle."""
    import tvm

    analyzer = analyzer_here()
    for var, low, extent in zip(variables, lows, extents, strict=True):
        analyzer.bind(var, tvm.ir.Range(low, low + extent))
    try:
        return analyzer.simplify(index)
    except TypeError:  # the Relax line's cannot compare conditions that read a tensor
        return index


@lru_cache(maxsize=1)
def misjudges_axes() -> bool:
    """Return whether TVM wrongly proves ``16 * x < i`` false for x and i of other ranges (0.17 does; 0.27 does not)."""
    import tvm

    def variable(name: str) -> Any:
        return tvm.tir.Var(name, "int32") if hasattr(tvm, "tir") else tvm.tirx.Var(name, "int32")

    analyzer, x, i = analyzer_here(), variable("x"), variable("i")
    analyzer.bind(x, tvm.ir.Range(0, 4))
    analyzer.bind(i, tvm.ir.Range(0, 16))
    return constant(analyzer.simplify(x * 16 < i)) == 0
