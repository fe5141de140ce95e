"""Plans for a GPU of the Relax line, executed on the CPU and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..codegen.apply_tensorir import apply_steps_tir
from ..emulate import Checked, NotEmulated, check, check_on_pocl
from ..errors import RollerError
from ..planner.lower import lower
from ..roller.rprogram import Plan
from ..tir.emulated import emulated_function, opencl_function
from ..tir.nodes import parameters, structurally_equal
from ..tir.read import read_prim_func
from ..tuning.numerics import reference_on, shape_of
from .reference import reference_module
from .tasks import output_positions, reduction_terms


def check_plan(plan: Plan, tensors: Sequence[Any], arch: str = "sm_80", budget_s: float = 20.0) -> Checked:
    """Execute a plan's kernels on the CPU and compare them with the loops as they were.

    Parameters
    ----------
    plan : Plan
        For a GPU.
    tensors : sequence of te.Tensor
        What the plan was made for: inputs, outputs.
    arch : str
    budget_s : float
        A single kernel that takes longer is run in part.

    Raises
    ------
    KernelFault, WrongAnswer
        What is wrong with the kernels.

    Examples
    --------
    >>> print(check_plan(plan, te_operator("matmul", m=64, n=64, k=64)))  # doctest: +SKIP
    executed on the CPU: 1 kernel, all blocks, all elements agree with the reference (0.1 s)
    """
    import tvm
    from tvm import te

    tensors = list(tensors)
    func = te.create_prim_func(tensors)
    reading = read_prim_func(func)
    ahead = any(p.choice("stages", 1) > 1 for p in plan.programs)
    with tvm.transform.PassContext(config={"tirx.use_async_copy": True} if ahead else {}):
        function = emulated_function(apply_steps_tir(func, reading, lower(plan)), arch)
    return check(function, *_feeds(func, tensors), reduction_terms(func), float(plan.expression.flops), budget_s)


def check_plan_on_pocl(plan: Plan, tensors: Sequence[Any]) -> Checked:
    """As `check_plan`, by a second witness: the same schedule in OpenCL, on PoCL.

    Raises
    ------
    NotEmulated
        It uses tensor cores, which OpenCL has not.
    ToolchainError
        There is no PoCL.
    WrongAnswer
        It computed something else.

    Examples
    --------
    >>> print(check_plan_on_pocl(plan, te_operator("matmul", m=64, n=64, k=64)))  # doctest: +SKIP
    executed in OpenCL by PoCL: 1 kernel, all blocks, all elements agree with the reference (0.4 s)
    """
    from tvm import te

    if any(program.recipe == "gpu.tensor" for program in plan.programs):
        remedy = "leave --on-pocl out: the emulator is the only witness of tensor cores"
        raise NotEmulated("OpenCL has no tensor cores", plan.expression.name, remedy)
    tensors = list(tensors)
    func = te.create_prim_func(tensors)
    function = opencl_function(apply_steps_tir(func, read_prim_func(func), lower(plan)))
    return check_on_pocl(function, *_feeds(func, tensors), reduction_terms(func))


def _feeds(func: Any, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(inputs by position, None for a result; what the results should be)."""
    from tvm import te

    made = {n for n, t in enumerate(tensors) if not isinstance(t.op, te.PlaceholderOp)}
    feeds, expected = _reference(func, tensors, made)
    return [None if n in made else feeds[n] for n in range(len(tensors))], expected


def check_module(
    before: Any, after: Any, target: Any = "sm_80", budget_s: float = 5.0, names: Sequence[str] = ()
) -> dict[str, Checked | RollerError]:
    """Execute every GPU-scheduled function of a module and compare it with the same function before.

    Parameters
    ----------
    before, after : IRModule
        As `ScheduleWithRoller` takes and returns them; functions are told by name, and those it left are left out.
    target : Target or str
    budget_s : float
        Of each function; a single kernel that takes longer is run in part.
    names : sequence of str
        Only these functions.

    Returns
    -------
    dict of str to Checked or RollerError
        The result of each function: a `KernelFault` or `WrongAnswer` if a kernel is wrong, another error if it could
        not be executed.

    Examples
    --------
    >>> found = check_module(mod, ScheduleWithRoller(target)(mod), target)  # doctest: +SKIP
    >>> [name for name, result in found.items() if isinstance(result, WrongAnswer)]  # doctest: +SKIP
    []
    """
    import tvm

    found: dict[str, Checked | RollerError] = {}
    functions = {var.name_hint: f for var, f in after.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    for name, func in functions.items():
        plain = before[name]
        if (names and name not in names) or structurally_equal(without_name(func), without_name(plain)):
            continue
        try:
            found[name] = _check_function(plain, func, target, budget_s)
        except RollerError as error:
            found[name] = error
    return found


def without_name(func: Any) -> Any:
    """A function without the attributes that scheduling or naming leaves."""
    for attribute in ("tirx.is_scheduled", "global_symbol"):
        func = func.without_attr(attribute)
    return func


def _check_function(plain: Any, scheduled: Any, target: Any, budget_s: float) -> Checked:
    reading = read_prim_func(plain)
    made = set(output_positions(plain))
    given = parameters(plain)
    function = emulated_function(scheduled, target)
    feeds, expected = _reference(plain, given, made)
    arrays = [None if n in made else feeds[n] for n in range(len(given))]
    flops = float(reading.expression.flops)
    return check(function, arrays, expected, reduction_terms(plain), flops, budget_s)


def _reference(func: Any, buffers: Sequence[Any], made: set[int]) -> tuple[list[Any], list[Any]]:
    """Inputs by position, and what the function's own loops make of them on the CPU."""
    import tvm

    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    plain = reference_module(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    kernel = tvm.compile(plain, target=tvm.target.Target({"kind": "llvm", "mcpu": str(cpu)}))

    def placed(feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = iter(feeds)
        return [np.zeros(shape_of(b), str(b.dtype)) if n in made else next(values) for n, b in enumerate(buffers)]

    def compute(feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        memory = [tvm.runtime.tensor(a) for a in placed(feeds)]
        kernel(*memory)
        return [memory[n].numpy() for n in sorted(made)]

    feeds, expected = reference_on([b for n, b in enumerate(buffers) if n not in made], compute)
    return placed(feeds), expected
