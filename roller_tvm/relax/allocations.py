"""Tensors that a lowered Relax function allocates, and the kernels that work on them.

For functions after ``CallTIRRewrite``, which says where each tensor is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from ..tir.joined import written_by
from ..tir.nodes import key
from .dataflow import static_tensor, used_variables
from .modules import is_prim_func

_ALLOCATES = "relax.builtin.alloc_tensor"


@dataclass
class Tensor:
    """One allocated tensor: the call that allocates it and the (kernel, argument) pairs that use it."""

    variable: Any
    order: int
    shape: tuple[int, ...]
    kind: str
    uses: list[tuple[int, int]] = field(default_factory=list)
    escapes: bool = False


class Allocations:
    """A function's tensors and kernels.

    Attributes
    ----------
    bindings : list
        The function's bindings; tensors and calls are told by their numbers.
    calls : dict of int
        Calls of kernels.
    """

    def __init__(self, mod: Any, func: Any) -> None:
        self.mod = mod
        self.same: dict[int, Any] = {}
        self.tensors: dict[int, Tensor] = {}
        self.calls: dict[int, Any] = {}
        self.written: dict[Any, set[int] | None] = {}
        self.bindings = [binding for block in func.body.blocks for binding in block.bindings]
        for number, binding in enumerate(self.bindings):
            self._read(number, binding)
        self._escape(func.body.body)

    def root(self, variable: Any) -> Any:
        """Return the variable that one is another name of."""
        while key(variable) in self.same:
            variable = self.same[key(variable)]
        return variable

    def tensor(self, value: Any) -> Tensor | None:
        """Return the tensor allocated here under that name; None if there is none."""
        return self.tensors.get(key(self.root(value))) if isinstance(value, relax.Var) else None

    def writes(self, call: Any) -> set[int] | None:
        """Return the positions of the arguments that a call writes (`written_by`)."""
        name = str(call.op.name_hint)
        if name not in self.written:
            self.written[name] = written_by(self.mod[call.op])
        return self.written[name]

    def writers(self, tensor: Tensor) -> list[int] | None:
        """Return the numbers of the calls that write a tensor, in order; None if a call's writes are unknown."""
        found = []
        for number, position in tensor.uses:
            written = self.writes(self.calls[number])
            if written is None:
                return None
            if position in written:
                found.append(number)
        return found

    def _read(self, number: int, binding: Any) -> None:
        value = binding.value
        if isinstance(value, relax.Var):
            self.same[key(binding.var)] = value
            return
        if isinstance(value, relax.Call) and getattr(value.op, "name", "") == _ALLOCATES:
            if static_tensor(binding.var) and len(value.args) == 4:
                extents = tuple(int(e) for e in binding.var.ty.shape.values)
                kind = " ".join(str(argument) for argument in value.args[1:])
                self.tensors[key(binding.var)] = Tensor(binding.var, number, extents, kind)
            return
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            func = self.mod[value.op]
            if is_prim_func(func) and len(value.args) == len(func.params):
                self.calls[number] = value
                for position, argument in enumerate(value.args):
                    if (tensor := self.tensor(argument)) is not None:
                        tensor.uses.append((number, position))
                return
        self._escape(value)

    def _escape(self, value: Any) -> None:
        """Mark the tensors of a value as escaping: their reader is not a kernel that could take another one."""
        for variable in used_variables(value):
            if (tensor := self.tensor(variable)) is not None:
                tensor.escapes = True


def without_unused(changed: Any, before: Any) -> Any:
    """The module without kernels that nothing calls any more."""
    called: set[str] = set()
    for _, func in changed.functions_items():
        if isinstance(func, relax.Function):
            called |= {str(v.name_hint) for v in relax.analysis.all_global_vars(func)}
    old = {str(v.name_hint) for v, f in before.functions_items() if is_prim_func(f)}
    kept = {}
    for var, func in changed.functions_items():
        name = str(var.name_hint)
        public = bool(func.attrs) and "global_symbol" in func.attrs
        if not is_prim_func(func) or name in called or public or name not in old:
            kept[var] = func
    return tvm.IRModule(kept, attrs=changed.attrs, global_infos=changed.global_infos)
