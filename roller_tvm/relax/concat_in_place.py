"""ConcatInPlace: what is put side by side is computed where it belongs, and nothing is copied.

An Inception module's branches, a fire module's two convolutions, all of a dense block: each is computed into a tensor
of its own and then copied beside the others. Instead, whoever writes or reads such a part is given the whole tensor,
and works on its part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from ..tir.joined import Place, joined_by, placed, shape_of
from ..tir.nodes import key
from ..tuning.model_report import IN_PLACE
from .allocations import Allocations, Tensor, without_unused
from .fused_calls import with_blocks
from .modules import with_functions

#: Attribute of a kernel that is given whole tensors: position -> their shape, and where its own begins, as JSON.
PLACES = "roller_tvm.places"


@tvm.transform.module_pass(opt_level=0, name="ConcatInPlace")
class ConcatInPlace:
    """Have kernels for CPUs write the parts of a concatenation into its result.

    For functions after ``CallTIRRewrite``, which says where each tensor is allocated, and before
    ``StaticPlanBlockMemory``; ``build`` and the pipeline "roller" have it. Left as they are: parts that are inputs,
    constants, results or part of another tensor already, and parts that something else than kernels works on.

    Examples
    --------
    >>> mod = ConcatInPlace()(relax.transform.CallTIRRewrite()(mod))
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with fewer copies."""
        changed = mod
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                flow = _Flow(changed, func)
                if flow.places:
                    changed = _rewritten(changed, var, func, flow)
        return changed if changed is mod else without_unused(changed, mod)


class _Flow(Allocations):
    """A function's tensors, kernels, and the tensors of which others become parts.

    Attributes
    ----------
    places : dict
        Tensor (by hash) -> tensor that it is part of, and where.
    joins : set of int
        Bindings that are not needed any more: they joined tensors.
    """

    def __init__(self, mod: Any, func: Any) -> None:
        super().__init__(mod, func)
        self.places: dict[int, tuple[Tensor, Place]] = {}
        self.joins: set[int] = set()
        for number in self.calls:
            self._join(number)

    def whole(self, tensor: Tensor) -> tuple[Tensor, Place | None]:
        """The largest tensor that one is part of, and where in it."""
        where: Place | None = None
        while key(tensor.variable) in self.places:
            tensor, place = self.places[key(tensor.variable)]
            where = place if where is None else where.inside(place)
        return tensor, where

    def _join(self, number: int) -> None:
        """Have a call's operands be parts of its result, if it joins them and nothing stands against it."""
        call = self.calls[number]
        joined = joined_by(self.mod[call.op])
        if joined is None:
            return
        result = self.tensor(call.args[-1])
        found = (self.tensor(call.args[position]) for position in joined.order)
        parts = {key(part.variable): part for part in found if part is not None}
        if result is None or self.writers(result) != [number] or len(parts) < len(joined.order):
            return
        if not all(self._may_be_placed(part, result, number) for part in parts.values()):
            return
        at = 0
        for part in parts.values():
            start = tuple(at if axis == joined.axis else 0 for axis in range(len(result.shape)))
            self.places[key(part.variable)] = result, Place(result.shape, start)
            at += part.shape[joined.axis]
        self.joins.add(number)

    def _may_be_placed(self, part: Tensor, result: Tensor, number: int) -> bool:
        if part.escapes or key(part.variable) in self.places or part.kind != result.kind:
            return False
        writers = self.writers(part)
        if writers is None or len(writers) != 1 or writers[0] >= number:
            return False
        taken = (self.mod[self.calls[use].op].params[position] for use, position in part.uses)
        return all(shape_of(param) == part.shape for param in taken)  # none takes it as anything else


def _rewritten(mod: Any, var: Any, func: Any, flow: _Flow) -> Any:
    """The module with a function whose kernels are given the whole tensors."""
    builder = relax.BlockBuilder(mod)
    first: dict[int, int] = {}  # of each whole tensor: where the first of its parts was allocated
    for at in flow.places:
        whole, _ = flow.whole(flow.tensors[at])
        known = first.get(key(whole.variable), whole.order)
        first[key(whole.variable)] = min(known, flow.tensors[at].order)
    moved = {order: flow.tensors[at] for at, order in first.items()}
    made: dict[Any, Any] = {}
    blocks, number = [], 0
    for block in func.body.blocks:
        bindings: list[Any] = []
        for binding in block.bindings:
            if number in moved:
                bindings.append(flow.bindings[moved[number].order])
            if not _dropped(binding, number, flow, first):
                bindings.append(_given_the_whole(builder, binding, number, flow, made))
            number += 1
        blocks.append(relax.BindingBlock(bindings))
    changed = builder.get()
    made_of = {changed.get_global_var(var.name_hint): with_blocks(func, dict(enumerate(blocks)))}
    return with_functions(changed, made_of)


def _dropped(binding: Any, number: int, flow: _Flow, first: Mapping[int, int]) -> bool:
    """Return whether a binding is obsolete: a join, a part's allocation, or one that has moved."""
    at = key(flow.root(binding.var))
    if at in flow.places or number in flow.joins:
        return True
    return at in first and flow.tensors[at].order == number


def _given_the_whole(builder: Any, binding: Any, number: int, flow: _Flow, made: dict[Any, Any]) -> Any:
    """A binding whose kernel is given whole tensors, as a function of its own."""
    call = flow.calls.get(number)
    if call is None:
        return binding
    arguments, places = list(call.args), {}
    for position, argument in enumerate(call.args):
        tensor = flow.tensor(argument)
        if tensor is None:
            continue
        whole, place = flow.whole(tensor)
        if place is not None:
            arguments[position], places[position] = whole.variable, place
    if not places:
        return binding
    variant = str(call.op.name_hint), tuple(places.items())
    if variant not in made:
        name = f"{call.op.name_hint}{IN_PLACE}"
        told = json.dumps({position: [place.shape, place.start] for position, place in places.items()})
        func = placed(flow.mod[call.op], places).with_attr(PLACES, told)
        made[variant] = builder.add_func(func.without_attr("global_symbol"), name)
    value = builder.normalize(relax.Call(made[variant], arguments, call.attrs, call.ty_args))
    return relax.VarBinding(binding.var, value)


__all__ = ["ConcatInPlace"]
