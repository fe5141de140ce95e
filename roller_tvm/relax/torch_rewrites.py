"""Rewrites of an ExportedProgram in core ATen, of forms that TVM's importer lacks or reads otherwise than torch does.

A rewrite keeps every value. Those that were needed are told by name, with their count.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..errors import UnsupportedOperator
from .recurrent_torch import without_dropout, without_steps
from .torch_experts import with_all_experts, with_counts
from .torch_nodes import caller, operator_of, tensor_of

#: Largest constant that folding adds, in bytes.
LARGEST = 64 << 20
#: Reductions and scans that torch computes in int64 for bool and narrow integers; TVM keeps the operand's type.
WIDENING = ("aten.cumsum", "aten.cumprod", "aten.sum", "aten.prod")
#: Operators of two tensors whose types torch promotes; TVM wants one type.
PROMOTING = (
    "aten.add", "aten.sub", "aten.mul", "aten.div", "aten.maximum", "aten.minimum", "aten.pow", "aten.remainder",
    "aten.fmod", "aten.eq", "aten.ne", "aten.lt", "aten.le", "aten.gt", "aten.ge", "aten.where",
)  # fmt: skip


#: An end of a slice that means the end of the tensor.
ENDLESS = (1 << 63) - 1
COMPARISONS = ("aten.eq", "aten.ne", "aten.lt", "aten.le", "aten.gt", "aten.ge")


def rewritten(program: Any) -> tuple[Any, Counter[str]]:
    """Return an ExportedProgram in core ATen as TVM's importer reads it, and the count of each rewrite.

    Parameters
    ----------
    program : torch.export.ExportedProgram

    Returns
    -------
    (torch.export.ExportedProgram, Counter)
        The program decomposed; the one given stays as it was. Name of a rewrite -> how often it was applied.

    Raises
    ------
    UnsupportedOperator
        It draws random numbers.

    Examples
    --------
    >>> program, needed = rewritten(torch.export.export(module, (x,)))
    >>> sorted(needed.items())
    [('constants folded', 1), ('cumsum in int64', 1)]
    """
    program = _copied(program) if program.dialect == "ATEN" else without_steps(program)
    needed: Counter[str] = Counter()
    graph = program.graph_module.graph
    _refuse_random(graph)
    for rewrite in (with_counts, with_all_experts, *REWRITES):
        needed.update(rewrite(graph))
    needed.update(_with_whole_index(program))
    needed.update(_folded(program))
    graph.eliminate_dead_code()
    graph.lint()
    program.graph_module.recompile()
    return program, needed


def _copied(program: Any) -> Any:
    """Return a copy of a decomposed program that shares its weights; decomposing again would trace it again."""
    import torch

    module = torch.fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    return torch.export.ExportedProgram(
        root=module, graph=module.graph, graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=program.state_dict, range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph, example_inputs=program.example_inputs,
        constants=dict(program.constants), verifiers=[program.verifier],
    )  # fmt: skip


def _refuse_random(graph: Any) -> None:
    """Refuse operators that draw random numbers: TVM's importer drops dropout and draws once, when it imports."""
    import torch

    for node in graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not without_dropout(node):
            told = f"unsupported operators: {str(node.target).rpartition('.')[0]}, which draws random numbers"
            raise UnsupportedOperator(told, remedy="call eval() on the module, or give the numbers as an input")


def _cast(graph: Any, before: Any, node: Any, dtype: Any) -> Any:
    """Return a node with the value of another in a type, placed in front of `before`."""
    import torch

    return caller(graph, before)(torch.ops.aten._to_copy.default, node, dtype=dtype)


def _without_empty(graph: Any) -> Iterator[str]:
    """Drop tensors of shape [0] from concatenations, which torch skips whatever the rank of the others."""
    for node in graph.nodes:
        if operator_of(node) != "aten.cat":
            continue
        parts = node.args[0]
        kept = [part for part in parts if (value := tensor_of(part)) is None or tuple(value.shape) != (0,)]
        if kept and len(kept) < len(parts):
            node.args = (kept, *node.args[1:])
            yield "cat without empty parts"


def _widened(graph: Any) -> Iterator[str]:
    """Cast the operand of a reduction or scan to the type of its result."""
    for node in list(graph.nodes):
        if (name := operator_of(node)) not in WIDENING:
            continue
        operand, result = node.args[0], tensor_of(node)
        value = tensor_of(operand)
        if value is None or result is None or value.dtype == result.dtype:
            continue
        node.args = (_cast(graph, node, operand, result.dtype), *node.args[1:])
        node.kwargs = {key: given for key, given in node.kwargs.items() if key != "dtype"}
        yield f"{name.removeprefix('aten.')} in {str(result.dtype).removeprefix('torch.')}"


def _promoted(graph: Any) -> Iterator[str]:
    """Cast the tensors of an operator of two to the type that torch promotes them to."""
    import torch

    for node in list(graph.nodes):
        if (name := operator_of(node)) not in PROMOTING:
            continue
        first = 1 if name == "aten.where" else 0
        pair = node.args[first : first + 2]
        values = [tensor_of(one) for one in pair]
        if len(pair) < 2 or any(value is None for value in values) or values[0].dtype == values[1].dtype:
            continue
        common = torch.result_type(values[0], values[1])
        if name == "aten.div" and not common.is_floating_point:
            common = tensor_of(node).dtype
        cast = [n if v.dtype == common else _cast(graph, node, n, common) for n, v in zip(pair, values, strict=True)]
        node.args = (*node.args[:first], *cast, *node.args[first + 2 :])
        yield "operands in one type"


def _without_pools(graph: Any) -> Iterator[str]:
    """Drop pools to the extents that a tensor has, as AlexNet and VGG have for images of the usual size."""
    for node in list(graph.nodes):
        if operator_of(node) not in ("aten._adaptive_avg_pool2d", "aten.adaptive_avg_pool2d"):
            continue
        value, result = tensor_of(node.args[0]), tensor_of(node)
        if value is not None and value.shape == result.shape and all(isinstance(one, int) for one in value.shape):
            node.replace_all_uses_with(node.args[0])
            yield "pools of windows of one element dropped"


def _rounded(graph: Any) -> Iterator[str]:
    """Divide integers by a number of their own type: TVM takes it for int32."""
    import torch

    for node in list(graph.nodes):
        if operator_of(node) == "aten.div" and node.kwargs.get("rounding_mode") and isinstance(node.args[1], int):
            kind = tensor_of(node.args[0]).dtype
            number = caller(graph, node)(torch.ops.aten.full.default, [], node.args[1], dtype=kind)
            node.target, node.args = torch.ops.aten.div.Tensor_mode, (node.args[0], number)
            yield "divisor in its dividend's type"


def _without_bool(graph: Any) -> Iterator[str]:
    """Compare bools as uint8: TVM compares them as numbers with a point, which LLVM refuses."""
    import torch

    for node in list(graph.nodes):
        if operator_of(node) not in COMPARISONS:
            continue
        pair = [tensor_of(one) for one in node.args[:2]]
        if any(value is not None and value.dtype == torch.bool for value in pair):
            node.args = tuple(
                one if value is None else _cast(graph, node, one, torch.uint8) if value.dtype == torch.bool else one
                for one, value in zip(node.args, pair, strict=True)
            )
            yield "bools compared as uint8"


def _wrapped(graph: Any) -> Iterator[str]:
    """Count negative indices from the end: TVM reads in front of the tensor there."""
    import torch

    for node in list(graph.nodes):
        if operator_of(node) not in ("aten.index", "aten.index_put"):
            continue
        extents, indices = tensor_of(node.args[0]).shape, list(node.args[1])
        for d, index in enumerate(indices):
            if index is None or tensor_of(index).dtype not in (torch.int32, torch.int64) or _from_zero(index):
                continue
            if not isinstance(extents[d], int):
                continue
            indices[d] = caller(graph, node)(torch.ops.aten.remainder.Scalar, index, extents[d])
            yield "indices counted from the end"
        node.args = (node.args[0], indices, *node.args[2:])


def _selected(graph: Any) -> Iterator[str]:
    """Count a negative place on an axis from its start: TVM reads in front of the tensor there (``y[:, -1]``)."""
    for node in graph.nodes:
        if operator_of(node) != "aten.select" or node.args[2] >= 0:
            continue
        tensor, dim, place = node.args
        extent = tensor_of(tensor).shape[dim]
        if isinstance(extent, int):
            node.args = (tensor, dim, place + extent)
            yield "places counted from the end"


def _from_zero(node: Any) -> bool:
    """Return True for positions from 0, whatever their shape."""
    while operator_of(node) in ("aten.unsqueeze", "aten.view", "aten.expand", "aten.clone", "aten._to_copy"):
        node = node.args[0]
    return operator_of(node) == "aten.arange" and str(node.target) == "aten.arange.start_step" and node.args[0] == 0


def _pieced(graph: Any) -> Iterator[str]:
    """Write a slice of an open extent by concatenation: TVM's ``slice_scatter`` takes fixed extents alone."""
    import torch

    for node in list(graph.nodes):
        if operator_of(node) != "aten.slice_scatter":
            continue
        tensor, part = node.args[:2]
        given: list[Any] = [*node.args[2:], *[0, None, None, 1][len(node.args) - 2 :]]
        dim, start, end, step = given
        start = start or 0
        length, extent = tensor_of(part).shape[dim], tensor_of(tensor).shape[dim]
        to_the_end = end is None or (isinstance(end, int) and end >= ENDLESS)
        fixed = isinstance(start, int) and start >= 0 and (to_the_end or isinstance(length, int))
        if isinstance(extent, int) or step != 1 or not fixed:
            continue
        pieces = [part]
        if start:
            pieces.insert(0, _sliced(graph, node, tensor, dim, 0, start))
        if not to_the_end:
            pieces.append(_sliced(graph, node, tensor, dim, start + length, ENDLESS))
        node.target, node.args = torch.ops.aten.cat.default, (pieces, dim)
        yield "slice written by cat"


def _sliced(graph: Any, before: Any, node: Any, dim: int, start: int, end: int) -> Any:
    """Return a node with a slice of another."""
    import torch

    return caller(graph, before)(torch.ops.aten.slice.Tensor, node, dim, start, end)


def _with_whole_index(program: Any) -> Iterator[str]:
    """Give ``index_put`` an index for each dimension: TVM takes no fewer, and mistakes left-out ones in the middle."""
    import torch

    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if operator_of(node) != "aten.index_put":
            continue
        tensor, given = tensor_of(node.args[0]), list(node.args[1])
        indices = [*given, *[None] * (tensor.dim() - len(given))]
        kinds = [None if one is None else tensor_of(one).dtype for one in indices]
        at = [d for d, kind in enumerate(kinds) if kind is not None]
        left = [d for d, kind in enumerate(kinds) if kind is None]
        if not left or torch.bool in kinds or not all(isinstance(tensor.shape[d], int) for d in left):
            continue
        if len(at) == 1 and not any(node.args[3:]) and _scattered(graph, node, indices, at[0]):
            yield "index_put as scatter"
            continue
        together = at == list(range(at[0], at[-1] + 1))
        call = caller(graph, node)
        # The indices' own dimensions stand in the place of those that they index, or first.
        own = max(tensor_of(indices[d]).dim() for d in at)
        before = [d for d in left if together and d < at[0]]
        after = [d for d in left if d not in before]
        whole: list[Any] = [None] * len(indices)
        for d in at:
            index = indices[d]
            for _ in after:
                index = call(torch.ops.aten.unsqueeze.default, index, -1)
            whole[d] = index
        for place, d in [*enumerate(before), *((len(before) + own + n, d) for n, d in enumerate(after))]:
            shape = [1] * (len(left) + own)
            shape[place] = tensor.shape[d]
            whole[d] = _constant(program, torch.arange(tensor.shape[d]).reshape(shape))
        node.args = (node.args[0], whole, *node.args[2:])
        yield "index_put with an index for each dimension"


def _scattered(graph: Any, node: Any, indices: list[Any], dim: int) -> bool:
    """Write at one index by scatter, of which TVM's importer does not warn; return False if it does not fit."""
    import torch

    aten, (tensor, _, values) = torch.ops.aten, node.args[:3]
    index, shape = indices[dim], list(tensor_of(tensor).shape)
    given = tensor_of(values).shape[dim - len(shape) :]
    fits = tensor_of(index).dim() == 1 and len(given) == len(shape) - dim
    if not fits or str(given[0]) != str(tensor_of(index).shape[0]):
        return False
    shape[dim] = -1
    call = caller(graph, node)
    for _ in range(len(shape) - dim - 1):
        index = call(aten.unsqueeze.default, index, -1)
    index, values = (call(aten.expand.default, one, shape) for one in (index, values))
    node.target, node.args = aten.scatter.src, (tensor, dim, index, values)
    return True


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


#: Rewrites of one graph, in their order.
REWRITES = (_without_empty, _without_pools, _widened, _promoted, _rounded, _without_bool, _pieced, _wrapped, _selected)
