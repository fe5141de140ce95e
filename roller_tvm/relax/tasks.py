"""Tasks of a module: its PrimFuncs as MetaSchedule's databases know them, equal ones once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from ..errors import BadInput, UnsupportedOperator
from ..ir.stage import DTYPE_BYTES
from ..te.copying import copies
from ..tir.nodes import key as identity
from ..tir.nodes import nests, parameters, structurally_equal
from ..tir.read import read_prim_func
from ..tuning.line import Tasks
from ..tuning.numerics import rounding_terms
from .fused_function import OPERATORS
from .lowered import require_lowered
from .marks import PLANNED

#: Attributes that tell functions apart in a database, but not what they compute or how.
NAMES = ("global_symbol", "op_pattern")
#: Class of a constant tensor: until 0.26, and since.
CONSTANTS = ("Constant", "GenericConst")


@dataclass(frozen=True, eq=False)
class Task:
    """One computation of a module.

    Parameters
    ----------
    id : int
    name : str
        Of the first function that computes it.
    weight : int
        How often the module calls it.
    func : PrimFunc
    workloads : tuple of IRModule
        As MetaSchedule's databases take them; functions that differ in a name or a mark are several.
    constants : tuple of int
        Parameters that are weights wherever it is called.
    key : str
        The same for the same computation, in another process too.
    """

    id: int
    name: str
    weight: int
    func: Any
    workloads: tuple[Any, ...]
    constants: tuple[int, ...] = ()
    key: str = ""

    @cached_property
    def flops(self) -> float:
        """Floating-point operations of one call; 0 if they cannot be read."""
        try:
            return float(read_prim_func(self.func).expression.flops)
        except UnsupportedOperator:
            return 0.0

    @property
    def constant_bytes(self) -> int:
        """Bytes of the weights; an extent that is not known yet counts as none."""
        try:
            buffers = [parameters(self.func)[n] for n in self.constants]
        except UnsupportedOperator:  # it gets no plan either
            return 0
        return sum(prod(getattr(e, "value", 0) for e in b.shape) * DTYPE_BYTES.get(str(b.dtype), 0) for b in buffers)


def normalized(func: Any) -> Any:
    """The module by which a database finds a function; ``MetaScheduleApplyDatabase`` looks for the same."""
    from tvm.s_tir.meta_schedule.tune_context import _normalize_mod

    return _normalize_mod(func)


def extract_tasks(mod: Any, params: Any = None, op_names: Sequence[str] | None = None) -> Tasks:
    """The tasks of a module, in the order in which it has them; kernels that have another plan already are none.

    Parameters
    ----------
    mod : IRModule, PrimFunc or relax.Function
        Legalized, and fused if its operators are to be.
    params : dict of str to tensor, optional
        Of its function 'main', to be bound.
    op_names : sequence of str, optional
        Keep tasks in whose names one of these is.

    Raises
    ------
    BadInput
        Where Relax operators are left: it was not lowered yet.
    """
    mod = as_module(mod, params)
    require_lowered(mod)
    prim_funcs = [(var, f) for var, f in mod.functions_items() if type(f).__name__ == "PrimFunc"]
    planned = (OPERATORS, *PLANNED)
    funcs = [(str(v.name_hint), v, f) for v, f in prim_funcs if not any(mark in (f.attrs or {}) for mark in planned)]
    counts, constants = _calls(mod)
    found: list[tuple[Any, Task]] = []
    for name, var, func in funcs:
        bare = without_names(func)
        weight, weights = counts.get(identity(var), 0) if counts else 1, constants.get(identity(var), ())
        at = next((n for n, (other, _) in enumerate(found) if structurally_equal(other, bare)), None)
        workload = normalized(func)
        if at is None:
            task = Task(len(found), name, weight, workload["main"], (workload,), weights, hash_of(bare))
            found.append((bare, task))
            continue
        known = found[at][1]
        others = known.workloads
        if not any(structurally_equal(workload, other) for other in others):
            others = (*others, workload)
        shared = tuple(n for n in known.constants if n in weights)
        found[at] = bare, replace(known, weight=known.weight + weight, workloads=others, constants=shared)
    tasks = [task for _, task in found]
    if op_names:
        tasks = [task for task in tasks if any(name in task.name for name in op_names)]
    result = Tasks(replace(task, id=n, weight=max(1, task.weight)) for n, task in enumerate(tasks))
    result.weight_bytes = sum(task.weight * task.constant_bytes for task in result)
    return result


def as_module(mod: Any, params: Any = None) -> Any:
    """A module of what MetaSchedule's entry points take."""
    import tvm
    from tvm import relax

    if type(mod).__name__ == "PrimFunc":
        return normalized(mod)
    if isinstance(mod, relax.Function):
        mod = tvm.IRModule({"main": mod})
    if not isinstance(mod, tvm.IRModule):
        raise BadInput(f"'mod' must be an IRModule, a PrimFunc or a relax.Function (got a {type(mod).__name__})")
    return relax.transform.BindParams("main", params)(mod) if params else mod


def without_names(func: Any) -> Any:
    """The function without what tells equal ones apart."""
    for name in NAMES:
        if func.attrs and name in func.attrs:
            func = func.without_attr(name)
    return func


def hash_of(func: Any) -> str:
    import tvm_ffi

    return f"{tvm_ffi.structural_hash(func) & (2**64 - 1):016x}"


def _calls(mod: Any) -> tuple[dict[int, int], dict[int, tuple[int, ...]]]:
    """How often each PrimFunc is called, and which of its arguments are weights at every call.

    Weights are constants, and the parameters of a function behind its inputs (``num_input``).
    """
    from tvm import relax

    counts: dict[int, int] = {}
    constants: dict[int, tuple[int, ...]] = {}
    for _, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        inputs = int(func.attrs["num_input"]) if func.attrs and "num_input" in func.attrs else len(func.params)
        weights = {identity(p) for p in func.params[inputs:]}
        bound: dict[int, Any] = {}

        def is_weight(node: Any, weights: set[int] = weights, bound: dict[int, Any] = bound) -> bool:
            if type(node).__name__ in CONSTANTS or identity(node) in weights:
                return True
            made = bound.get(identity(node))  # a weight transposed at run time
            arguments = arguments_of(made) if made is not None else ()
            return bool(arguments) and all(is_weight(a) for a in arguments)

        def visit(node: Any, bound: dict[int, Any] = bound, is_weight: Any = is_weight) -> None:
            if isinstance(node, relax.VarBinding):
                bound[identity(node.var)] = node.value
            if isinstance(node, relax.Call) and (arguments := arguments_of(node)):
                var = identity(node.args[0])
                mine = tuple(n for n, a in enumerate(arguments) if is_weight(a))
                constants[var] = tuple(n for n in constants[var] if n in mine) if var in constants else mine
                counts[var] = counts.get(var, 0) + 1

        each_binding(func, visit)
    return counts, constants


def each_binding(func: Any, visit: Any) -> None:
    """Visit the bindings of a Relax function in their order, each before the call in it."""
    from tvm import relax

    def block(body: Any) -> None:
        for part in body.blocks:
            for binding in part.bindings:
                visit(binding)
                value = getattr(binding, "value", None)
                if isinstance(value, relax.Call):
                    visit(value)
                elif isinstance(value, relax.If):
                    block(value.true_branch)
                    block(value.false_branch)
                elif isinstance(value, relax.Function):
                    block(value.body)

    if isinstance(func.body, relax.SeqExpr):
        block(func.body)


def arguments_of(call: Any) -> tuple[Any, ...]:
    """The tensors that a ``call_tir`` hands its PrimFunc."""
    from tvm import relax

    if not isinstance(call, relax.Call) or str(getattr(call.op, "name", "")) not in (
        "relax.call_tir", "relax.call_tir_inplace",
    ):  # fmt: skip
        return ()
    given = call.args[1]
    return tuple(given.fields) if isinstance(given, relax.Tuple) else (given,)


def output_positions(func: Any) -> tuple[int, ...]:
    """Parameters that the function writes."""
    made = {identity(buffer) for nest in nests(func) for buffer in nest.outputs}
    return tuple(n for n, buffer in enumerate(parameters(func)) if identity(buffer) in made)


def reduction_terms(func: Any) -> int:
    """Terms of the one sum that rounds as much as all blocks of a function in a row."""
    sums = []
    for nest in nests(func):
        terms = 1
        for iv, _ in nest.reduce:
            terms *= int(iv.dom.extent)
        if not all(copies(store.value) for store in nest.stores):
            sums.append((terms, str(nest.outputs[0].dtype)))
    results = parameters(func)
    return rounding_terms(sums, [str(results[n].dtype) for n in output_positions(func)])
