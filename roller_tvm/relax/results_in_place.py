"""ResultsInPlace: a kernel leaves its result where an operand was that nothing reads afterwards.

A residual connection adds a tensor to the sums of a product or a convolution, element by element, and is its last
reader. Written to memory of its own, each line of the result is fetched first, and what the caches hold is thrown out
for it; written over the tensor it is there already, and a model needs less memory.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..tir.joined import shape_of
from ..tir.nodes import key
from ..tir.overwritten import overwritable, overwriting
from ..tuning.model_report import IN_PLACE
from .allocations import Allocations, Tensor, without_unused
from .concat_in_place import PLACES
from .fused_calls import with_blocks
from .modules import with_functions


@tvm.transform.module_pass(opt_level=0, name="ResultsInPlace")
class ResultsInPlace:
    """Have kernels for CPUs overwrite operands with their results.

    For functions after ``CallTIRRewrite`` and ``ConcatInPlace``, before ``StaticPlanBlockMemory``; ``build`` and the
    pipeline "roller" have it. Operands are tensors of the result's shape, allocated before, used by kernels alone and
    now for the last time; inputs, constants and parts of other tensors are not.

    Examples
    --------
    >>> mod = ResultsInPlace()(relax.transform.CallTIRRewrite()(mod))
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with fewer tensors."""
        changed = mod
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                flow = Allocations(changed, func)
                chosen = _chosen(changed, flow)
                if chosen:
                    changed = _rewritten(changed, var, func, flow, chosen)
        return changed if changed is mod else without_unused(changed, mod)


def _chosen(mod: Any, flow: Allocations) -> dict[int, int]:
    """Return the calls of a function that overwrite an operand: number -> position."""
    known: dict[str, set[int]] = {}
    chosen: dict[int, int] = {}
    for number, call in flow.calls.items():
        func, name, result = mod[call.op], str(call.op.name_hint), flow.tensor(call.args[-1])
        if result is None or (func.attrs and PLACES in func.attrs) or shape_of(func.params[-1]) != result.shape:
            continue
        if min(result.uses) != (number, len(call.args) - 1):
            continue
        if name not in known:
            known[name] = overwritable(func)
        for position in sorted(known[name]):
            operand = flow.tensor(call.args[position])
            if operand is not None and _dies(operand, number) and _alike(operand, result):
                chosen[number] = position
                break
    return chosen


def _dies(tensor: Tensor, number: int) -> bool:
    """Return whether a call, which takes a tensor once, is the last that uses it."""
    return not tensor.escapes and max(tensor.uses)[0] == number and [use for use, _ in tensor.uses].count(number) == 1


def _alike(operand: Tensor, result: Tensor) -> bool:
    return operand.order < result.order and (operand.shape, operand.kind) == (result.shape, result.kind)


def _rewritten(mod: Any, var: Any, func: Any, flow: Allocations, chosen: dict[int, int]) -> Any:
    """The module with a function whose kernels overwrite operands."""
    builder = relax.BlockBuilder(mod)
    made: dict[tuple[str, int], Any] = {}
    over: dict[int, Any] = {}  # result -> the operand in whose memory it is
    for number, position in chosen.items():
        call = flow.calls[number]
        variant = str(call.op.name_hint), position
        if variant not in made:
            one = overwriting(mod[call.op], position).without_attr("global_symbol")
            made[variant] = builder.add_func(one, f"{call.op.name_hint}{IN_PLACE}")
        over[key(flow.root(call.args[-1]))] = call.args[position]
    blocks, number = [], 0
    for block in func.body.blocks:
        bindings: list[Any] = []
        for binding in block.bindings:
            if number in chosen:
                call, position = flow.calls[number], chosen[number]
                arguments = [a for n, a in enumerate(call.args) if n != position]
                kernel = made[str(call.op.name_hint), position]
                value = builder.normalize(relax.Call(kernel, arguments, call.attrs, call.ty_args))
                binding = relax.VarBinding(binding.var, value)
            elif key(binding.var) in over:
                binding = relax.VarBinding(binding.var, over[key(binding.var)])
            bindings.append(binding)
            number += 1
        blocks.append(relax.BindingBlock(bindings))
    changed = builder.get()
    made_of = {changed.get_global_var(var.name_hint): with_blocks(func, dict(enumerate(blocks)))}
    return with_functions(changed, made_of)


__all__ = ["ResultsInPlace"]
