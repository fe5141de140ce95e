"""Inputs as callers have them: a numpy array is aligned to 16 bytes, TVM's kernels take every tensor for aligned to 64.

If an array is not aligned to 64 bytes, an aligned vector load crashes. Memory of the virtual machine is aligned;
so only the parameters that a function's own inputs reach are declared with the alignment of their elements. The loads
of these become unaligned ones, which cost the same on data that is aligned after all. Kernels that no input reaches are
marked (`own_memory.py`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..tir.nodes import key
from .constants import is_constant
from .modules import is_prim_func, with_functions
from .own_memory import OWN_MEMORY

#: Operators whose result starts where their operand does.
_VIEWS = ("relax.reshape", "relax.memory.ensure_zero_offset")
_BITS_OF_A_BYTE = 8


@tvm.transform.module_pass(opt_level=0, name="UnalignedInputs")
class UnalignedInputs:
    """Make kernels take a module's inputs wherever they lie in memory, such as bare numpy arrays.

    Put it last of the passes on PrimFuncs, before the module is built; ``build`` and the pipeline "roller" have it.
    Other modules that TVM builds expect tensors aligned to 64 bytes, as ``tvm.runtime.tensor`` makes them.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with parameters declared as they may come."""
        calls = _Calls()
        for _, func in mod.functions_items():
            if isinstance(func, relax.Function):
                calls.visit_expr(func)
        changed = {}
        for var, func in mod.functions_items():
            positions = calls.found.get(str(var.name_hint))
            if positions is not None and is_prim_func(func):
                made = anywhere(func, positions) if positions else func
                named = "global_symbol" in (func.attrs or {})  # somebody may call it by its name
                changed[var] = made if positions or named else made.with_attr(OWN_MEMORY, True)
        return with_functions(mod, changed)


def anywhere(func: Any, positions: set[int]) -> Any:
    """A PrimFunc that takes the tensors at these positions aligned to their elements alone."""
    import tvm_ffi

    made = {}
    for position in positions:
        param = func.params[position]
        old: Any = getattr(param, "ty", None)
        if not hasattr(old, "data_alignment"):  # a scalar
            continue
        bits = tvm.DataType(str(old.dtype)).bits
        made[key(param)] = tvm.tirx.decl_buffer(
            list(old.shape), old.dtype, str(param.name), None, list(old.strides), old.elem_offset, param.scope(),
            -(-bits // _BITS_OF_A_BYTE), old.offset_factor, layout=old.layout,
        )  # fmt: skip
    if not made:
        return func
    return tvm_ffi.structural_map(func, (tvm.tirx.Var, lambda var: made.get(key(var), var)), order="post")


@relax.expr_functor.visitor
class _Calls(relax.PyExprVisitor):
    """Positions of the PrimFuncs' parameters that may be given something that nobody here allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, set[int]] = {}
        self._known: dict[int, bool] = {}

    def visit_var_binding_(self, binding: Any) -> None:
        self.visit_expr(binding.value)
        self._known[key(binding.var)] = self._aligned(binding.value)

    def visit_call_(self, call: Any) -> None:
        for argument in call.args:
            self.visit_expr(argument)
        if not str(getattr(call.op, "name", "")).startswith("relax.call_tir"):
            return
        given = call.args[1]
        fields = list(given.fields) if isinstance(given, relax.Tuple) else [given] * len(given.ty.fields)
        wanted = {n for n, field in enumerate(fields) if not self._aligned(field)}
        self.found.setdefault(str(call.args[0].name_hint), set()).update(wanted)

    def _aligned(self, node: Any) -> bool:
        """Return whether a value lies in memory that the virtual machine allocated."""
        if isinstance(node, relax.Var):
            return self._known.get(key(node), False)
        if isinstance(node, relax.Call):
            name = str(getattr(node.op, "name", ""))
            return name == "relax.call_tir" or (name in _VIEWS and self._aligned(node.args[0]))
        if isinstance(node, relax.Tuple):
            return all(self._aligned(field) for field in node.fields)
        if isinstance(node, relax.TupleGetItem):
            return self._aligned(node.tuple_value)
        return is_constant(node)
