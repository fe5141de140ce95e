"""MergeAxes: products whose neighbouring axes become one, where the model predicts a gain (see ``tir.merged_axes``)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tvm import relax

from ..codegen.kernel_cache import kept_answer
from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..tir.joined import joined_by
from ..tir.merged_axes import MergedFunction, merged_function
from ..tir.nodes import key
from .candidates import seconds_alone
from .constants import array_of
from .dataflow import used_variables
from .dead_code import without_dead_code
from .devices import device_of, find_target
from .marks import PLANNED
from .modules import called_tir, changed_by, is_prim_func
from .structures import Function

#: How much faster a function must be predicted: views of its tensors take some microseconds. Both forms are predicted
#: by one model, whose errors they share (measured with AVX2: 1x1 convolutions of 14x14 and 28x28 pixels, 8 sums in
#: registers apart and 12 merged, take 1.12 to 1.16 times as long apart, predicted 1.01 to 1.06).
GAIN = 1.03


class MergeAxes:
    """Replaces functions of a prepared module; their tensors are views of other shapes.

    Parameters
    ----------
    target, device
        As of ``ScheduleWithRoller``.
    without : collection of str
        Functions that stay as they are.
    """

    def __init__(
        self, target: Any = None, device: DeviceSpec | str | None = None, without: Collection[str] = ()
    ) -> None:
        self.device, self.without = device_of(device, find_target(target)), without

    def __call__(self, mod: Any) -> Any:
        """Return the module with axes merged."""
        if self.device.kind != "cpu":
            return mod
        chosen = {}
        for var, func in mod.functions_items():
            if is_prim_func(func) and (found := self._chosen(func)) is not None:
                chosen[var] = found
        chosen = {var: one for var, one in chosen.items() if str(var.name_hint) not in self.without}
        if not chosen:
            return mod
        return without_dead_code(changed_by(_Changer(mod, chosen), mod))

    def _chosen(self, func: Any) -> MergedFunction | None:
        if any((func.attrs or {}).get(mark) for mark in PLANNED) or (func.attrs or {}).get("tirx.is_scheduled"):
            return None
        return merged_function(func, constant_parameters(func)) if self.pays(func) else None

    def pays(self, func: Any) -> bool:
        """Return whether a function is predicted to be faster with its axes merged."""

        def made() -> bool:
            found = merged_function(func, constant_parameters(func))
            apart, merged = (None if f is None else seconds_alone(f, self.device) for f in (func, found and found.func))
            return merged is not None and (apart is None or merged * GAIN < apart)

        known: bool = kept_answer(made, "merged", Function(func).text, self.device.name, self.device.digest())
        return known


@relax.expr_functor.mutator
class _Changer(relax.PyExprMutator):
    """Calls the merged functions."""

    def __init__(self, mod: Any, chosen: dict[Any, MergedFunction]) -> None:
        super().__init__(mod)
        self.chosen, self.joined, self.stays = chosen, _joined(mod), False
        self.made: dict[Any, Any] = {}  # a function's variable -> that of the merged one

    def visit_var_binding_(self, binding: Any) -> None:
        used = [binding.var, *used_variables(binding.value)]
        self.stays = any(key(variable) in self.joined for variable in used)
        super().visit_var_binding_(binding)

    def visit_call_(self, op: Any) -> Any:
        op = self.visit_expr_post_order(op)
        if self.stays:
            return op
        called = called_tir(op)
        if called not in self.chosen or len(op.ty_args) != 1 or not isinstance(op.ty_args[0], relax.TensorType):
            return op
        found, (kind,) = self.chosen[called], op.ty_args
        if called not in self.made:
            self.made[called] = self.builder_.add_func(found.func, str(called.name_hint))
        arguments = [self._view(a, shape) for a, shape in zip(op.args[1].fields, found.shapes[:-1], strict=True)]
        out = relax.TensorType(found.shapes[-1], kind.dtype)
        made = self.builder_.emit(relax.call_tir(self.made[called], relax.Tuple(arguments), [out]))
        return relax.op.reshape(made, [int(e) for e in kind.shape.values])

    def _view(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        if (values := array_of(tensor)) is not None:
            return relax.const(values.reshape(shape), tensor.ty.dtype)
        return self.builder_.emit(relax.op.reshape(tensor, shape))


def _joined(mod: Any) -> set[int]:
    """Return the tensors that are concatenated, and the results: `ConcatInPlace` makes them one, not views of them."""
    found: set[int] = set()
    for _, func in mod.functions_items():
        blocks = func.body.blocks if isinstance(func, relax.Function) else ()
        for binding in (one for block in blocks for one in block.bindings):
            if (called := called_tir(binding.value)) is not None and joined_by(mod[called]):
                found.update(key(variable) for variable in (binding.var, *used_variables(binding.value)))
    return found
