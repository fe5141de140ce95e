"""Nodes of a torch.fx graph in ATen: operators called, values noted by the exporter, calls added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def operator_of(node: Any) -> str:
    """Return the name of the operator that a node calls, without its overload; '' if it calls none.

    Examples
    --------
    >>> import torch
    >>> graph = torch.fx.Graph()
    >>> operator_of(graph.call_function(torch.ops.aten.cumsum.default, (graph.placeholder("x"), 0)))
    'aten.cumsum'
    """
    return str(node.target).rpartition(".")[0] if node.op == "call_function" else ""


def tensor_of(node: Any) -> Any:
    """Return the fake tensor that the exporter noted for a node; None for what is no tensor, or no node."""
    import torch

    value = node.meta.get("val") if hasattr(node, "meta") else None
    return value if isinstance(value, torch.Tensor) else None


def caller(graph: Any, before: Any) -> Callable[..., Any]:
    """Return a function that adds a call in front of a node, with its value noted, and returns the call's node.

    Examples
    --------
    >>> import torch
    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> x.meta["val"] = torch.empty(2, 3)
    >>> turned = caller(graph, graph.output(x))(torch.ops.aten.t.default, x)
    >>> turned.meta["val"].shape
    torch.Size([3, 2])
    """
    from torch.fx.node import map_arg

    def call(target: Any, *args: Any, **kwargs: Any) -> Any:
        with graph.inserting_before(before):
            made = graph.call_function(target, args, kwargs)
        made.meta["val"] = target(*map_arg(args, lambda one: one.meta["val"]), **kwargs)
        return made

    return call
