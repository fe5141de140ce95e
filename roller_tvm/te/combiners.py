"""Combiners of reductions: their kind, whether they begin neutral, and whether they sum products."""

from __future__ import annotations

from typing import Any

from .numbering import dtype_of_node

#: Node of a combiner -> te.compute's name for it, by which ``StageReader`` tells reductions.
COMBINERS = {"Add": "sum", "Max": "max", "Min": "min", "Mul": "prod"}


def begins_neutral(reducer: Any, combiner: str) -> bool:
    """Return whether a reduction starts from its neutral element, so that each of its parts can start from it too."""
    identity = list(getattr(reducer, "identity_element", ()))
    value = getattr(identity[0], "value", None) if len(identity) == 1 else None
    if value is None or combiner not in ("sum", "prod", "max", "min"):
        return True  # one of several results, of no kind that is split; or what the block's reader has compared
    if combiner in ("sum", "prod"):
        return bool(value == (combiner == "prod"))
    import tvm

    limits = tvm.tir if hasattr(tvm, "tir") else tvm.tirx
    dtype = dtype_of_node(identity[0])
    least, most = limits.min_value(dtype).value, limits.max_value(dtype).value
    return bool(value <= least if combiner == "max" else value >= most)


def combiner_of(reducer: Any) -> str:
    results = list(reducer.result)
    if len(results) != 1:
        return "other"
    result = results[0]
    kind = COMBINERS.get(type(result).__name__)
    if kind is None:
        return "other"
    sides = {str(reducer.lhs[0].name), str(reducer.rhs[0].name)}
    operands = [result.a, result.b]
    plain = all(type(o).__name__ in ("Var", "SizeVar") for o in operands)
    return kind if plain and {str(o.name) for o in operands} == sides else "other"


def is_product(source: Any) -> bool:
    """Return whether the expression is a multiplication, possibly under a bounds condition."""
    kind = type(source).__name__
    if kind == "Mul":
        return True
    if kind == "Call" and str(getattr(source.op, "name", "")).endswith("if_then_else"):
        return is_product(source.args[1])
    return kind == "Select" and is_product(source.true_value)
