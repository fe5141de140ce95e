"""Conditions on a model's open extents in words (``p + n <= 2048``), over numbers or a compiler's expressions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import BadInput
from .arguments import Signature

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LtE: operator.le, ast.GtE: operator.ge, ast.Eq: operator.eq,
}  # fmt: skip
Calls = Mapping[str, Callable[..., Any]]


def condition(check: str, known: Mapping[str, Any], const: Callable[[int], Any] = int,
              calls: Calls = {"min": min, "max": max}) -> Any:  # noqa: B006
    """Return the value of a check over sizes by name.

    Parameters
    ----------
    check : str
    known : mapping of name to value
    const : function of int
        A number as a value.
    calls : mapping
        min and max of values.

    Raises
    ------
    BadInput
        It is no comparison of sizes, or names an extent that is not open.

    Examples
    --------
    >>> condition("p + n <= 2048", {"p": 2000, "n": 64})
    False
    """

    def made(node: ast.AST) -> Any:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BINARY:
            return _BINARY[type(node.ops[0])](made(node.left), made(node.comparators[0]))
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](made(node.left), made(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return const(0) - made(node.operand)
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return const(node.value)
        if isinstance(node, ast.Name) and node.id in known:
            return known[node.id]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in calls:
            return calls[node.func.attr](*map(made, node.args))
        raise BadInput(f"'{check}' is no condition on its sizes", "model", f"they are {', '.join(known)}")

    return made(ast.parse(check, mode="eval").body)


def names_of(check: str) -> set[str]:
    """Return the sizes that a check names.

    Examples
    --------
    >>> sorted(names_of("T.min(p, n) <= 2048"))
    ['n', 'p']
    """
    return {node.id for node in ast.walk(ast.parse(check)) if isinstance(node, ast.Name)} - {"T"}


def failing(checks: Iterable[str], inputs: Mapping[str, Any], wanted: Signature) -> str:
    """Return what is wrong with the sizes of inputs, in words; '' if all checks hold.

    Examples
    --------
    >>> import numpy as np
    >>> failing(["n <= 512"], {"x": np.zeros((600, 4))}, {"x": (("n", 4), "float32")})
    'its sizes are n = 600, but n <= 512 must hold'
    """
    sizes: dict[str, int] = {}
    for name, (shape, _) in wanted.items():
        for extent, got in zip(shape, inputs[name].shape, strict=True):
            if isinstance(extent, str):
                sizes.setdefault(extent, int(got))
    told = ", ".join(f"{name} = {value}" for name, value in sizes.items())
    broken = [c for c in checks if names_of(c) <= set(sizes) and not condition(c, sizes)]
    return f"its sizes are {told}, but {' and '.join(broken)} must hold" if broken else ""
