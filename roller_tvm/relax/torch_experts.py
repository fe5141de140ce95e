"""Operators of mixtures of experts that TVM's importer lacks: rows by their experts' matrices, histograms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .torch_nodes import caller, operator_of, tensor_of

#: Products of rows sorted by expert: rows (S, K), matrices (E, K, N), where each expert's rows end. torch's own
#: operator takes bfloat16 alone when a program is exported.
GROUPED = "transformers.grouped_mm_fallback"


def with_all_experts(graph: Any) -> Iterator[str]:
    """Multiply all rows by each expert's matrix and choose: TVM knows no products of sizes known at run time.

    This computes as many products as there are experts, where torch computes one.
    """
    import torch

    aten = torch.ops.aten
    for node in list(graph.nodes):
        if operator_of(node) != GROUPED or not isinstance(tensor_of(node.args[0]).shape[0], int):
            continue
        rows, matrices, ends = node.args
        call = caller(graph, node)
        kind = {"dtype": tensor_of(ends).dtype, "device": torch.device("cpu")}
        sizes = (tensor_of(one).shape[0] for one in (rows, matrices))
        places, experts = (call(aten.arange.start_step, 0, size, 1, **kind) for size in sizes)
        # An expert's rows end in front of a place if they are of an earlier expert.
        before = call(aten.ge.Tensor, call(aten.unsqueeze.default, places, 0), call(aten.unsqueeze.default, ends, 1))
        own = call(aten.sum.dim_IntList, call(aten._to_copy.default, before, dtype=kind["dtype"]), [0], True)
        chosen = call(aten.eq.Tensor, own, call(aten.unsqueeze.default, experts, 1))
        products = call(aten.matmul.default, rows, matrices)
        nothing = call(aten.full.default, [], 0.0, dtype=tensor_of(rows).dtype, device=torch.device("cpu"))
        kept = call(aten.where.self, call(aten.unsqueeze.default, chosen, 2), products, nothing)
        node.replace_all_uses_with(call(aten.sum.dim_IntList, kept, [0]))
        graph.erase_node(node)
        yield "products by all experts"


def with_counts(graph: Any) -> Iterator[str]:
    """Count the values between the edges of a histogram's bins: TVM has no ``histc``."""
    import torch

    aten = torch.ops.aten
    for node in list(graph.nodes):
        if operator_of(node) != "aten.histc":
            continue
        values = node.args[0]
        bins, least, most = list(node.args[1:]) + [100, 0, 0][len(node.args) - 1 :]
        if not all(isinstance(one, (int, float)) for one in (bins, least, most)) or not least < most:
            continue  # by default the edges are the values' own
        call, dtype = caller(graph, node), tensor_of(values).dtype
        edges = [float(edge) for edge in torch.linspace(least, most, bins + 1, dtype=dtype)]
        flat = call(aten.view.default, values, [-1])
        parts = []
        for number, edge in enumerate(edges[:-1]):
            above = call(aten.ge.Scalar, flat, edge)
            last = number == bins - 1  # the last bin has its upper edge
            below = call(aten.le.Scalar if last else aten.lt.Scalar, flat, edges[number + 1])
            held = call(aten._to_copy.default, call(aten.logical_and.default, above, below), dtype=dtype)
            parts.append(call(aten.sum.dim_IntList, held, [0], True))
        node.replace_all_uses_with(call(aten.cat.default, parts, 0))
        graph.erase_node(node)
        yield "histogram by comparisons"
