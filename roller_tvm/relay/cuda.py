"""CUDA source of a schedule, a CUDA compiler for TVM without nvcc, and the check of kernels' resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roller_tvm.codegen import KernelResources, compile_cuda, kernel_resources
from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
from roller_tvm.codegen.check import CompiledPlan, ResourcesDiffer, check_plan
from roller_tvm.codegen.mended_cuda import mend_cuda
from roller_tvm.micro_perf.estimate import Estimate
from roller_tvm.planner.lower import lower
from roller_tvm.roller.alignment import Rejection
from roller_tvm.roller.rprogram import Plan


def cuda_source(schedule: Any, args: Sequence[Any], arch: str) -> str:
    """Return the CUDA C++ that TVM generates for a schedule. Compiles nothing, needs no device.

    Parameters
    ----------
    schedule : te.Schedule
    args : sequence of te.Tensor
    arch : str
        Architecture, such as 'sm_90'.
    """
    import tvm

    mend_cuda()
    seen: list[str] = []

    def keep(code: str, _target: Any = None) -> str:
        seen.append(code)
        return ""

    previous = tvm.get_global_func("tvm_callback_cuda_compile", allow_missing=True)
    tvm.register_func("tvm_callback_cuda_compile", keep, override=True)
    try:
        tvm.build(schedule, list(args), tvm.target.Target(f"cuda -arch={arch}", host="llvm"), name="kernel")
    finally:
        if previous is not None:
            tvm.register_func("tvm_callback_cuda_compile", previous, override=True)
    return seen[-1]


def check_resources(
    plan: Plan, estimate: Estimate, program: TeProgram, archs: Sequence[str], compiler: str = "auto", dag: Any = None
) -> CompiledPlan | Rejection:
    """Lower a plan and compile it for every architecture; if a kernel spills, try variants of the plan.

    Parameters
    ----------
    plan, estimate
        A constructed plan, and the model's estimate of it.
    program : TeProgram
        The tensors that the plan was made for.
    archs : sequence of str
        Such as ('sm_80', 'sm_90').
    dag : ComputeDAG, optional
        The program's, if there is one already.

    Returns
    -------
    CompiledPlan or Rejection
        The rejection holds the resources of the last variant.

    Raises
    ------
    ToolchainError
        There is no compiler, or it rejected the source.
    """

    def source_of(changed: Plan) -> tuple[str, tuple[int, ...]]:
        return cuda_source(*apply_steps_te(program, lower(changed), dag), archs[0]), ()

    return check_plan(plan, estimate, source_of, archs, compiler)


def use_toolchain(seen: Callable[[Mapping[str, KernelResources]], object] | None = None) -> None:
    """Make TVM compile CUDA with the compiler found here (NVRTC from PyPI, or nvcc).

    TVM alone calls nvcc. After this, ``relay.build`` for cuda works wherever ``roller-tvm doctor`` finds one.

    Parameters
    ----------
    seen : function of {kernel: KernelResources}, optional
        Receives the resources of each compiled source.
    """
    import tvm

    mend_cuda()

    def compile_source(code: str, target: Any = None) -> bytearray:
        current = target if target is not None else tvm.target.Target.current(allow_none=False)
        cubin = compile_cuda(code, str(current.arch))
        if seen is not None:
            seen(kernel_resources(cubin))
        return bytearray(cubin.data)

    tvm.register_func("tvm_callback_cuda_compile", compile_source, override=True)


__all__ = ["CompiledPlan", "ResourcesDiffer", "check_resources", "cuda_source", "use_toolchain"]
