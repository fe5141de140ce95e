"""GPU schedules of the Relax line executed on the CPU: TVM's CUDA source, launched as its host code would.

Plans for a GPU of the Relax line, executed on the CPU and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from roller_check.check import Checked, check, check_on_pocl, check_values
from roller_check.function import Function
from roller_check.pocl import OpenClFunction
from roller_check.run import compile_source
from roller_tvm.codegen.apply_tensorir import apply_steps_tir
from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.codegen.host_code_tensorir import generated, generated_opencl, target_of
from roller_tvm.errors import RollerError
from roller_tvm.planner.lower import lower
from roller_tvm.relax.reference import reference_module
from roller_tvm.relax.tasks import output_positions, reduction_terms
from roller_tvm.roller.rprogram import Plan
from roller_tvm.tir.nodes import parameters, structurally_equal
from roller_tvm.tir.read import read_prim_func
from roller_tvm.tuning.numerics import reference_on, shape_of


def emulated_function(
    scheduled: Any, target: Any = "sm_80", name: str = "", sizes: Mapping[str, int] | None = None, checked: bool = True
) -> Function:
    """Return the kernels of a scheduled function, compiled for this CPU, and their launches.

    Parameters
    ----------
    scheduled : IRModule, PrimFunc or s_tir.Schedule
        Function scheduled for a GPU. PassContext options (``tirx.use_async_copy``) hold as in a build.
    target : tvm.target.Target or str
        Target for cuda, or just the architecture, such as 'sm_90'.
    name : str
        Name of the function, if the module has several.
    sizes : mapping of str to int, optional
        Values of symbolic shapes, by the names of their variables.
    checked : bool
        True to check accesses to memory.

    Raises
    ------
    NotEmulated
        If the host code does more than launch kernels, or the emulator does not know part of the source.
    """
    source, host = generated(scheduled, target, name)
    program = compile_source(source, checked, str(target_of(target).attrs["arch"]))
    return Function.of(program, host, sizes)


def opencl_function(scheduled: Any, name: str = "") -> OpenClFunction:
    """Return the same schedule in OpenCL, for PoCL: an independent check of its results.

    Parameters
    ----------
    scheduled, name
        See `emulated_function`.

    Raises
    ------
    NotEmulated
        TVM cannot generate OpenCL for it (tensor cores, cp.async).
    """
    return OpenClFunction(*generated_opencl(scheduled, name))


def check_plan(plan: Plan, tensors: Sequence[Any], arch: str = "sm_80", budget_s: float = 20.0) -> Checked:
    """Execute a plan's kernels on the CPU and compare them with the loops as they were.

    Parameters
    ----------
    plan : Plan
        For a GPU.
    tensors : sequence of te.Tensor
        What the plan was made for: inputs, outputs.
    budget_s : float
        A single kernel that takes longer is run in part.

    Raises
    ------
    KernelFault, WrongAnswer
        What is wrong with the kernels.
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
    return _reference(func, tensors, made)


def check_module(
    before: Any, after: Any, target: Any = "sm_80", budget_s: float = 5.0, names: Sequence[str] = ()
) -> dict[str, Checked | RollerError]:
    """Execute every GPU-scheduled function of a module and compare it with the same function before.

    Parameters
    ----------
    before, after : IRModule
        As `ScheduleWithRoller` takes and returns them; functions are told by name, and those it left are left out.
    budget_s : float
        Of each function; a single kernel that takes longer is run in part.
    names : sequence of str
        Only these functions.

    Returns
    -------
    dict of str to Checked or RollerError
        The result of each function: a `KernelFault` or `WrongAnswer` if a kernel is wrong, another error if it could
        not be executed.
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


def check_scheduled(plain: Any, scheduled: Any, target: Any, budget_s: float = 5.0) -> Checked:
    """Execute a scheduled function on this CPU, by the emulator if it is for a GPU, and compare it with its own loops.

    Raises
    ------
    KernelFault, WrongAnswer
        What is wrong with it.
    """
    if target.kind.name != "llvm":
        return _check_function(plain, scheduled, target, budget_s)
    made, given = set(output_positions(plain)), parameters(plain)
    arrays, expected = _reference(plain, given, made)
    return check_values(_computed(scheduled, made), arrays, expected, reduction_terms(plain))


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
    arrays, expected = _reference(plain, given, made)
    flops = float(reading.expression.flops)
    return check(function, arrays, expected, reduction_terms(plain), flops, budget_s)


def _reference(func: Any, buffers: Sequence[Any], made: set[int]) -> tuple[list[Any], list[Any]]:
    """Return inputs by position, and the results of the function's own loops for them on the CPU."""
    feeds, expected = reference_on([b for n, b in enumerate(buffers) if n not in made], own_loops(func, made))
    values = iter(feeds)
    return [None if n in made else next(values) for n in range(len(buffers))], expected


def own_loops(func: Any, made: Collection[int]) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Return a function from a PrimFunc's inputs to its results, at the positions `made`, by its unscheduled loops."""
    import tvm

    return _computed(reference_module(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))["main"], made)


def _computed(func: Any, made: Collection[int]) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Return the same for a function with the loops that it has."""
    import tvm

    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    kernel = tvm.compile(mod, target=tvm.target.Target({"kind": "llvm", "mcpu": str(cpu)}))
    shapes = [(shape_of(b), str(b.dtype)) for b in parameters(func)]

    def compute(feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = iter(feeds)
        arrays = [np.zeros(*shape) if n in made else next(values) for n, shape in enumerate(shapes)]
        memory = [tvm.runtime.tensor(array) for array in arrays]
        kernel(*memory)
        return [memory[n].numpy() for n in sorted(made)]

    return compute
