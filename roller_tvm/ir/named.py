"""The table of named operators: looking them up, checking parameters, building."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput, UsageError
from .expression import TensorExpression
from .parameters import REQUIRED, check_elements, convert, parse_params


@dataclass(frozen=True)
class Operator:
    """A named operator: its builder and its parameters with their defaults."""

    name: str
    build: Callable[..., TensorExpression]
    defaults: Mapping[str, Any]
    summary: str

    @property
    def usage(self) -> str:
        """One line: required parameters, then the optional ones with their defaults."""
        return " ".join(
            [
                self.name,
                *(f"{n}=..." if d is REQUIRED else f"[{n}={_text(d)}]" for n, d in self.defaults.items()),
            ]
        )


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


OPERATORS: dict[str, Operator] = {}
ALIASES = {
    "avg_pool2d": "avg_pool2d_nchw",
    "max_pool2d": "max_pool2d_nchw",
    "conv2d": "conv2d_nchw",
    "depthwise_conv2d": "depthwise_conv2d_nchw",
    "global_avg_pool": "global_avg_pool2d_nchw",
}


def named(build: Callable[..., TensorExpression]) -> Callable[..., TensorExpression]:
    """Enter a builder into the table; return a replacement that checks the parameters first."""
    return functools.wraps(build)(_entered(build.__name__, build, (build.__doc__ or "").splitlines()[0]))


def alike(build: Callable[..., TensorExpression], **summaries: str) -> Iterator[Callable[..., TensorExpression]]:
    """Enter a builder under several names, each with its summary; the builder is told the name first.

    Yields
    ------
    function
        For each name the builder that checks the parameters first.
    """
    for name, summary in summaries.items():
        yield _entered(name, functools.partial(build, name), summary)


def _entered(name: str, build: Callable[..., TensorExpression], summary: str) -> Callable[..., TensorExpression]:
    parameters = inspect.signature(build).parameters.values()
    defaults = {p.name: REQUIRED if p.default is p.empty else p.default for p in parameters}
    if "kind" in defaults:  # of a pooling, by its name
        defaults["kind"] = name[:3]
    OPERATORS[name] = Operator(name, build, defaults, summary)
    return functools.partial(operator, name)


def operator_names() -> list[str]:
    """Return the names of all operators, sorted."""
    return sorted(OPERATORS)


def lookup(name: str) -> Operator:
    """Return the operator with that name or alias; raises `UsageError` with a list of the known ones."""
    known = OPERATORS.get(ALIASES.get(name, name))
    if known is None:
        close = difflib.get_close_matches(name, [*OPERATORS, *ALIASES], n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"unknown operator {name!r}", remedy=f"{guess}known operators: {', '.join(operator_names())}"
        )
    return known


def normalize(name: str, params: Mapping[str, object]) -> dict[str, Any]:
    """Return the checked parameters of an operator, with every default filled in.

    Examples
    --------
    >>> normalize("matmul", {"m": "64", "n": 32, "k": 16})["layout"]
    'NN'
    """
    found = lookup(name)
    given = {k: v for k, v in params.items() if v is not None}
    if "kh" in found.defaults and "k" in given and "k" not in found.defaults:
        # One 'k' stands for a square window.
        for side in ("kh", "kw"):
            given.setdefault(side, given["k"])
        del given["k"]
    values = convert(found.name, found.defaults, given)
    if values.get("kind") not in (None, found.name[:3]):
        raise BadInput(f"'kind' is {values['kind']}", found.name, f"use {values['kind']}{found.name[3:]}")
    return values


def operator(name: str, **params: object) -> TensorExpression:
    """Build a named operator.

    Parameters
    ----------
    name : str
        One of ``operator_names()``.
    **params
        Numbers or their text, as on the command line.

    Examples
    --------
    >>> operator("conv2d_nchw", n=1, c=64, h=56, w=56, f=64, kh=3, kw=3, padding=1).anchor.flops
    231211008
    """
    values = normalize(name, params)
    expression = lookup(name).build(**values)
    for tensor in expression.tensors.values():
        check_elements(name, tensor.name, tensor.shape)
    return expression


def parse_operator(words: Sequence[str]) -> TensorExpression:
    """Build an operator from command line words.

    Examples
    --------
    >>> parse_operator(["relu", "shape=128x256x14x14"]).output.shape
    (128, 256, 14, 14)
    """
    if not words:
        raise UsageError("no operator given", remedy=f"name one of {', '.join(operator_names())}")
    return operator(words[0], **parse_params(" ".join(words[1:])))
