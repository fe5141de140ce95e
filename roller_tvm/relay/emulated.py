"""GPU schedules of the Relay line executed on the CPU: TVM's CUDA source, launched as its host code would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
from roller_tvm.codegen.host_reading import TakeHost
from roller_tvm.emulate import (
    Checked,
    Function,
    HostCode,
    NotEmulated,
    OpenClFunction,
    check,
    check_on_pocl,
    compile_source,
)
from roller_tvm.emulate.opencl import LIMITS
from roller_tvm.errors import RollerError, last_line
from roller_tvm.planner.lower import lower
from roller_tvm.relay.cuda import cuda_source
from roller_tvm.relay.reference import reduction_terms, reference_on, reference_schedule
from roller_tvm.roller.rprogram import Plan
from roller_tvm.te import read_te


def emulated_function(schedule: Any, args: Sequence[Any], arch: str = "sm_80", checked: bool = True) -> Function:
    """Return the kernels of a schedule compiled for this CPU, with their launches.

    Parameters
    ----------
    schedule : te.Schedule
    args : sequence of te.Tensor
    arch : str
    checked : bool
        Whether accesses to memory are checked.

    Raises
    ------
    NotEmulated
        The host code does more than launch kernels, or the emulator does not support the source.

    Examples
    --------
    >>> function = emulated_function(schedule, args)  # doctest: +SKIP
    >>> (out,) = function.run([a, b])  # doctest: +SKIP
    """
    source, host = generated(schedule, args, arch)
    return Function.of(compile_source(source, checked, arch), host)


def generated(schedule: Any, args: Sequence[Any], arch: str = "sm_80") -> tuple[str, HostCode]:
    """Return the CUDA C++ that TVM generates for a schedule, and its host code with the launches.

    Raises
    ------
    NotEmulated
        The host code does more than launch kernels.
    """
    import tvm

    take, current = TakeHost(), tvm.transform.PassContext.current()
    config = {str(k): v for k, v in current.config.items()}
    with tvm.transform.PassContext(current.opt_level, config=config, instruments=[take.instrument]):
        source = cuda_source(schedule, args, arch)
    if not take.modules:
        raise RollerError("TVM's build has no pass tir.MakePackedAPI", remedy="report this with TVM's version")
    functions, refused = take.read()
    for name, why in refused.items():
        raise NotEmulated(why, where=name)
    if len(functions) != 1:
        raise NotEmulated(f"{len(functions)} functions on the host")
    (host,) = functions.values()
    return source, host


def opencl_function(schedule: Any, args: Sequence[Any]) -> OpenClFunction:
    """Return the schedule compiled as OpenCL for PoCL: a second, independent execution of it.

    Parameters
    ----------
    schedule : te.Schedule
    args : sequence of te.Tensor

    Raises
    ------
    NotEmulated
        TVM cannot generate OpenCL for it.

    Examples
    --------
    >>> (out,) = opencl_function(schedule, args).run([a, b])  # doctest: +SKIP
    """
    import tvm

    take, current = TakeHost(), tvm.transform.PassContext.current()
    config = {str(k): v for k, v in current.config.items()}
    options = " ".join(f"-{name}={value}" for name, value in LIMITS.items())
    try:
        with tvm.transform.PassContext(current.opt_level, config=config, instruments=[take.instrument]):
            built = tvm.build(schedule, list(args), tvm.target.Target(f"opencl {options}", host="llvm"), name="kernel")
    except Exception as error:  # whatever its code generator stumbles over
        raise NotEmulated(f"TVM makes no OpenCL of it: {last_line(error)}") from error
    (host,) = take.read()[0].values()
    return OpenClFunction.of(str(built.imported_modules[0].get_source()), host)


def check_plan(plan: Plan, tensors: Sequence[Any], arch: str = "sm_80", budget_s: float = 20.0) -> Checked:
    """Execute a plan's kernels on the CPU and compare them with TVM's own schedule.

    Parameters
    ----------
    plan : Plan
        For a GPU.
    tensors : sequence of te.Tensor
        The tensors that the plan was made for: inputs, then outputs.
    arch : str
    budget_s : float
        Time limit of a kernel, seconds; one that takes longer is run in part.

    Raises
    ------
    KernelFault, WrongAnswer
        A kernel misbehaves, or its results are wrong.

    Examples
    --------
    >>> print(check_plan(plan, te_operator("matmul", m=64, n=64, k=64)))  # doctest: +SKIP
    executed on the CPU: 1 kernel, all blocks, all elements agree with the reference (0.1 s)
    """
    tensors = list(tensors)
    program = TeProgram.of_reading(read_te(tensors), tensors)
    function = emulated_function(*apply_steps_te(program, lower(plan)), arch)
    arrays, expected, terms = _reference(tensors)
    return check(function, arrays, expected, terms, float(plan.expression.flops), budget_s)


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

    Examples
    --------
    >>> print(check_plan_on_pocl(plan, te_operator("matmul", m=64, n=64, k=64)))  # doctest: +SKIP
    executed in OpenCL by PoCL: 1 kernel, all blocks, all elements agree with the reference (0.4 s)
    """
    tensors = list(tensors)
    program = TeProgram.of_reading(read_te(tensors), tensors)
    return check_on_pocl(opencl_function(*apply_steps_te(program, lower(plan))), *_reference(tensors))


def _reference(tensors: Sequence[Any]) -> tuple[list[Any], list[Any], int]:
    """Return (inputs by position, outputs of TVM's own schedule, number of terms of its sums)."""
    import tvm
    from tvm import te

    given = [isinstance(t.op, te.PlaceholderOp) for t in tensors]
    outputs = [t for t, is_given in zip(tensors, given, strict=True) if not is_given]
    kernel = tvm.build(reference_schedule(outputs), tensors, "llvm")

    def compute(feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        made = [tvm.nd.empty([int(e) for e in t.shape], t.dtype) for t in outputs]
        inputs, results = iter(feeds), iter(made)
        kernel(*(tvm.nd.array(next(inputs)) if is_given else next(results) for is_given in given))
        return [m.numpy() for m in made]

    feeds, expected = reference_on([t for t, is_given in zip(tensors, given, strict=True) if is_given], compute)
    inputs = iter(feeds)
    arrays = [next(inputs) if is_given else None for is_given in given]
    return arrays, expected, reduction_terms(tvm.auto_scheduler.ComputeDAG(tensors).ops)
