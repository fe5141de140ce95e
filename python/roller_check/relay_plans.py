"""Plans and schedules for a GPU of the Relay line, executed on the CPU and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roller_check.check import Checked, check, check_on_pocl, check_values
from roller_check.function import Function
from roller_check.pocl import OpenClFunction
from roller_check.run import compile_source
from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
from roller_tvm.planner.lower import lower
from roller_tvm.relay.host_code import generated, generated_opencl
from roller_tvm.relay.reference import reduction_terms, reference_on, reference_schedule
from roller_tvm.roller.rprogram import Plan
from roller_tvm.te import read_te
from roller_tvm.tuning.numerics import shape_of


def emulated_function(schedule: Any, args: Sequence[Any], arch: str = "sm_80", checked: bool = True) -> Function:
    """Return the kernels of a schedule compiled for this CPU, with their launches.

    Parameters
    ----------
    checked : bool
        Whether accesses to memory are checked.

    Raises
    ------
    NotEmulated
        The host code does more than launch kernels, or the emulator does not support the source.
    """
    source, host = generated(schedule, args, arch)
    return Function.of(compile_source(source, checked, arch), host)


def opencl_function(schedule: Any, args: Sequence[Any]) -> OpenClFunction:
    """Return the schedule in OpenCL for PoCL: a second, independent execution of it.

    Raises
    ------
    NotEmulated
        TVM cannot generate OpenCL for it.
    """
    return OpenClFunction(*generated_opencl(schedule, args))


def check_plan(plan: Plan, tensors: Sequence[Any], arch: str = "sm_80", budget_s: float = 20.0) -> Checked:
    """Execute a plan's kernels on the CPU and compare them with TVM's own schedule.

    Parameters
    ----------
    plan : Plan
        For a GPU.
    tensors : sequence of te.Tensor
        The tensors that the plan was made for: inputs, then outputs.
    budget_s : float
        Time limit of a kernel, seconds; one that takes longer is run in part.

    Raises
    ------
    KernelFault, WrongAnswer
        A kernel misbehaves, or its results are wrong.
    """
    tensors = list(tensors)
    program = TeProgram.of_reading(read_te(tensors), tensors)
    function = emulated_function(*apply_steps_te(program, lower(plan)), arch)
    arrays, expected, terms = _reference(tensors)
    return check(function, arrays, expected, terms, float(plan.expression.flops), budget_s)


def check_schedule(schedule: Any, args: Sequence[Any], target: Any, flops: float, budget_s: float = 5.0) -> Checked:
    """Execute a schedule on this CPU, by the emulator if it is for a GPU, and compare it with TVM's own schedule.

    Parameters
    ----------
    args : sequence of te.Tensor
        Inputs, then outputs.
    flops : float
        Of the whole computation.
    budget_s : float
        See `check_plan`.

    Raises
    ------
    KernelFault, WrongAnswer
        A kernel misbehaves, or its results are wrong.
    """
    import tvm

    arrays, expected, terms = _reference(args)
    if target.kind.name == "llvm":
        return check_values(_computed(tvm.build(schedule, list(args), "llvm"), args), arrays, expected, terms)
    return check(emulated_function(schedule, args, str(target.arch)), arrays, expected, terms, flops, budget_s)


def check_plan_on_pocl(plan: Plan, tensors: Sequence[Any]) -> Checked:
    """Execute a plan's kernels as OpenCL on PoCL and compare them as `check_plan` does.

    Raises
    ------
    NotEmulated
        TVM cannot generate OpenCL for it.
    ToolchainError
        There is no PoCL.
    WrongAnswer
        The results differ.
    """
    tensors = list(tensors)
    program = TeProgram.of_reading(read_te(tensors), tensors)
    return check_on_pocl(opencl_function(*apply_steps_te(program, lower(plan))), *_reference(tensors))


def _reference(tensors: Sequence[Any]) -> tuple[list[Any], list[Any], int]:
    """Return (inputs by position, outputs of TVM's own schedule, number of terms of its sums)."""
    feeds, expected = reference_on([t for t in tensors if _given(t)], own_loops(tensors))
    inputs = iter(feeds)
    arrays = [next(inputs) if _given(t) else None for t in tensors]
    return arrays, expected, terms_of(tensors)


def _given(tensor: Any) -> bool:
    from tvm import te

    return isinstance(tensor.op, te.PlaceholderOp)


def terms_of(tensors: Sequence[Any]) -> int:
    """Return the number of terms of the sums of a computation, given its inputs and outputs."""
    import tvm

    return reduction_terms(tvm.auto_scheduler.ComputeDAG(list(tensors)).ops)


def own_loops(tensors: Sequence[Any]) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Return a function from a computation's inputs to its outputs, by TVM's own schedule; `tensors` are both."""
    import tvm

    outputs = [t for t in tensors if not _given(t)]
    return _computed(tvm.build(reference_schedule(outputs), list(tensors), "llvm"), tensors)


def _computed(kernel: Any, tensors: Sequence[Any]) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Return a function from a computation's inputs to its outputs, by a built kernel."""
    import tvm

    outputs = [t for t in tensors if not _given(t)]

    def compute(feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        made = [tvm.nd.empty(shape_of(t), t.dtype) for t in outputs]
        inputs, results = map(tvm.nd.array, feeds), iter(made)
        kernel(*(next(inputs) if _given(t) else next(results) for t in tensors))
        return [m.numpy() for m in made]

    return compute
