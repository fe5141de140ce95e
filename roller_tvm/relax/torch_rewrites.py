"""Rewrites of an ExportedProgram in core ATen, of forms that TVM's importer lacks or reads otherwise than torch does.

A rewrite keeps every value. Those that were needed are told by name, with their count.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

#: Largest constant that folding adds, in bytes.
LARGEST = 64 << 20
#: Reductions and scans that torch computes in int64 for bool and narrow integers; TVM keeps the operand's type.
WIDENING = ("aten.cumsum", "aten.cumprod", "aten.sum", "aten.prod")
#: Operators of two tensors whose types torch promotes; TVM wants one type.
PROMOTING = (
    "aten.add", "aten.sub", "aten.mul", "aten.div", "aten.maximum", "aten.minimum", "aten.pow", "aten.remainder",
    "aten.fmod", "aten.eq", "aten.ne", "aten.lt", "aten.le", "aten.gt", "aten.ge", "aten.where",
)  # fmt: skip


def rewritten(program: Any) -> tuple[Any, Counter[str]]:
    """Return an ExportedProgram in core ATen as TVM's importer reads it, and the count of each rewrite.

    Parameters
    ----------
    program : torch.export.ExportedProgram

    Returns
    -------
    (torch.export.ExportedProgram, Counter)
        The program decomposed; the one given stays as it was. Name of a rewrite -> how often it was applied.

    Examples
    --------
    >>> program, needed = rewritten(torch.export.export(module, (x,)))  # doctest: +SKIP
    >>> needed  # doctest: +SKIP
    Counter({'constants folded': 12, 'cumsum in int64': 1})
    """
    program = program.run_decompositions()
    needed: Counter[str] = Counter()
    graph = program.graph_module.graph
    for rewrite in (_without_empty, _widened, _promoted):
        needed.update(rewrite(graph))
    needed.update(_folded(program))
    graph.eliminate_dead_code()
    graph.lint()
    program.graph_module.recompile()
    return program, needed


def _named(node: Any, names: tuple[str, ...]) -> str:
    """Return the operator's name if it is one of these, else an empty string."""
    told = str(node.target) if node.op == "call_function" else ""
    name = told.rpartition(".")[0]
    return name if name in names else ""


def _value(node: Any) -> Any:
    """Return the fake tensor that the exporter noted for a node, or None."""
    import torch

    value = node.meta.get("val") if hasattr(node, "meta") else None
    return value if isinstance(value, torch.Tensor) else None


def _cast(graph: Any, before: Any, node: Any, dtype: Any) -> Any:
    """Return a node with the value of another in a type, placed in front of `before`."""
    import torch

    with graph.inserting_before(before):
        made = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
    made.meta["val"] = _value(node).to(dtype)
    return made


def _without_empty(graph: Any) -> Iterator[str]:
    """Drop tensors of shape [0] from concatenations, which torch skips whatever the rank of the others."""
    for node in graph.nodes:
        if not _named(node, ("aten.cat",)):
            continue
        parts = node.args[0]
        kept = [part for part in parts if (value := _value(part)) is None or tuple(value.shape) != (0,)]
        if kept and len(kept) < len(parts):
            node.args = (kept, *node.args[1:])
            yield "cat without empty parts"


def _widened(graph: Any) -> Iterator[str]:
    """Cast the operand of a reduction or scan to the type of its result."""
    for node in list(graph.nodes):
        if not (name := _named(node, WIDENING)):
            continue
        operand, result = node.args[0], _value(node)
        value = _value(operand)
        if value is None or result is None or value.dtype == result.dtype:
            continue
        node.args = (_cast(graph, node, operand, result.dtype), *node.args[1:])
        node.kwargs = {key: given for key, given in node.kwargs.items() if key != "dtype"}
        yield f"{name.removeprefix('aten.')} in {str(result.dtype).removeprefix('torch.')}"


def _promoted(graph: Any) -> Iterator[str]:
    """Cast the tensors of an operator of two to the type that torch promotes them to."""
    import torch

    for node in list(graph.nodes):
        if not (name := _named(node, PROMOTING)):
            continue
        first = 1 if name == "aten.where" else 0
        pair = node.args[first : first + 2]
        values = [_value(one) for one in pair]
        if len(pair) < 2 or any(value is None for value in values) or values[0].dtype == values[1].dtype:
            continue
        common = torch.result_type(values[0], values[1])
        if name == "aten.div" and not common.is_floating_point:
            common = _value(node).dtype
        cast = [n if v.dtype == common else _cast(graph, node, n, common) for n, v in zip(pair, values, strict=True)]
        node.args = (*node.args[:first], *cast, *node.args[first + 2 :])
        yield "operands in one type"


def _folded(program: Any) -> Iterator[str]:
    """Compute by torch whatever depends on no input and no weight: positions, masks, tables of angles."""
    import torch

    graph = program.graph_module.graph
    constants = {
        spec.arg.name: program.constants[spec.target]
        for spec in program.graph_signature.input_specs
        if spec.kind.name == "CONSTANT_TENSOR" and isinstance(program.constants.get(spec.target), torch.Tensor)
    }
    known: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            if node.name in constants:
                known[node] = constants[node.name]
        elif node.op == "call_function" and _foldable(node, known):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            with torch.no_grad():
                known[node] = node.target(*args, **kwargs)
    for node in list(known):
        value = known[node]
        wanted = node.op != "placeholder" and any(user not in known for user in node.users)
        if wanted and isinstance(value, torch.Tensor):
            node.replace_all_uses_with(_constant(program, value.detach().clone().contiguous()))
            yield "constants folded"


def _foldable(node: Any, known: dict[Any, Any]) -> bool:
    """Return True for a pure operator of known values, of a result that is not too large."""
    import torch

    pure = node.target is operator.getitem or (
        isinstance(node.target, torch._ops.OpOverload)
        and not node.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in node.target.tags
    )
    value = node.meta.get("val")
    found = [one for one in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(one, torch.Tensor)]
    fixed = bool(found) and all(
        all(isinstance(extent, int) for extent in one.shape) and one.numel() * one.element_size() <= LARGEST
        for one in found
    )
    return pure and fixed and all(source in known for source in node.all_input_nodes)


def _constant(program: Any, value: Any) -> Any:
    """Add a constant to a program; return its node."""
    from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

    graph, specs = program.graph_module.graph, program.graph_signature.input_specs
    name = f"roller_constant_{len(specs)}"
    first = next(iter(graph.nodes))
    with graph.inserting_before(first):
        node = graph.placeholder(name)
    node.meta["val"] = value.to("meta")
    specs.insert(0, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name))
    program.constants[name] = value
    return node
