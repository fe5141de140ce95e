"""CUDA source of a schedule, a CUDA compiler for TVM on a machine without nvcc, and the check of what kernels take."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roller_tvm.errors import RollerError
from roller_tvm.lower import lower
from roller_tvm.model.estimate import Estimate
from roller_tvm.plan.align import Rejection
from roller_tvm.plan.gpu_variants import variants
from roller_tvm.plan.program import Plan
from roller_tvm.relay.apply_state import apply_steps_state
from roller_tvm.relay.apply_te import apply_steps_te
from roller_tvm.relay.loops import TeProgram
from roller_tvm.toolchain import KernelResources, compile_cuda, kernel_resources


def cuda_source(schedule: Any, args: Sequence[Any], arch: str) -> str:
    """CUDA C++ that TVM generates for a schedule; nothing is compiled, no device is asked.

    Parameters
    ----------
    schedule : te.Schedule
    args : sequence of te.Tensor
    arch : str
        Such as 'sm_90'.
    """
    import tvm

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


@dataclass(frozen=True)
class CompiledPlan:
    """A plan whose kernels were compiled and keep within the prediction.

    Attributes
    ----------
    plan : Plan
        As given, or the variant of it that does not spill.
    variant : str
        What was changed; empty for the plan as given.
    source : str
        CUDA C++.
    resources : tuple of (arch, tuple of KernelResources)
        In the order in which the kernels run.
    """

    plan: Plan
    variant: str
    source: str
    resources: tuple[tuple[str, tuple[KernelResources, ...]], ...]

    def kernels(self, arch: str) -> tuple[KernelResources, ...]:
        return dict(self.resources)[arch]


def check_resources(
    plan: Plan, estimate: Estimate, program: TeProgram, archs: Sequence[str], compiler: str = "auto", dag: Any = None
) -> CompiledPlan | Rejection:
    """Lower a plan and compile it for every architecture; a kernel that spills is replaced by a variant that does not.

    Parameters
    ----------
    plan, estimate
        A constructed plan and what the model said of it.
    program : TeProgram
        The tensors that the plan was made for.
    archs : sequence of str
        Such as ('sm_80', 'sm_90').
    dag : ComputeDAG, optional
        The schedule is made through its State, as a record's is; through TE schedule primitives otherwise.

    Returns
    -------
    CompiledPlan or Rejection
        The rejection names what the last variant took.

    Raises
    ------
    ToolchainError
        No compiler, or it refused the source.

    Examples
    --------
    >>> checked = check_resources(ranked.plan, ranked.estimate, program, ("sm_90",))  # doctest: +SKIP
    >>> print(checked.kernels("sm_90")[0])  # doctest: +SKIP
    64 registers, 0 B local, 8192 B shared
    """
    options = [list(variants(p)) for p in plan.programs]
    chosen = [0] * len(options)
    while True:
        choice = [of[n] for of, n in zip(options, chosen, strict=True)]
        changed = replace(plan, programs=tuple(p for _, p in choice)) if any(chosen) else plan
        schedule, args = _schedule(changed, program, dag)
        source = cuda_source(schedule, args, archs[0])
        found: list[tuple[str, tuple[KernelResources, ...]]] = []
        spilled: dict[int, int] = {}
        for arch in archs:
            kernels = kernel_resources(compile_cuda(source, arch, compiler))
            found.append((arch, tuple(kernels[name] for name in sorted(kernels, key=_launch_order))))
            for number, kernel in enumerate(found[-1][1]):
                if kernel.local_bytes:
                    spilled[number] = max(spilled.get(number, 0), kernel.local_bytes)
            if spilled:
                break
        if not spilled:
            _hold(found, estimate, plan)
            return CompiledPlan(changed, "; ".join(name for name, _ in choice if name), source, tuple(found))
        # Only kernels that spill are changed: the others keep what the model chose.
        for number in spilled:
            chosen[number] += 1
        if any(n >= len(of) for of, n in zip(options, chosen, strict=True)):
            taken = f"{max(spilled.values())} B of local memory a thread"
            return Rejection("registers", taken, "0", "use a smaller register tile", str(plan))


def _schedule(plan: Plan, program: TeProgram, dag: Any) -> tuple[Any, Sequence[Any]]:
    """The plan's te.Schedule and arguments, through a State of `dag` where there is one."""
    if dag is None:
        return apply_steps_te(program, lower(plan))
    schedule, args = dag.apply_steps_from_state(apply_steps_state(dag, program, lower(plan)))
    return schedule, list(args)


def _launch_order(name: str) -> tuple[int, ...]:
    """TVM numbers the kernels of a function in the order in which they run: kernel_kernel, kernel_kernel_1, ..."""
    return tuple(int(n) for n in re.findall(r"_(\d+)$", name)) or (0,)


class ResourcesDiffer(RollerError):
    """Compiled kernels take what the model did not predict: a mistake in the model or in lowering."""


def _hold(found: list[tuple[str, tuple[KernelResources, ...]]], estimate: Estimate, plan: Plan) -> None:
    for arch, kernels in found:
        predicted = [p.shared_bytes for p in estimate.programs]
        actual = [k.shared_bytes for k in kernels]
        if predicted != actual:
            raise ResourcesDiffer(
                f"shared memory of {actual} B, predicted {predicted} B", where=f"{plan.expression.name} for {arch}",
                remedy=f"report this plan:\n{plan}",
            )  # fmt: skip


def use_toolchain(seen: Callable[[Mapping[str, KernelResources]], object] | None = None) -> None:
    """Let TVM compile CUDA with whichever compiler is here (NVRTC from PyPI, or nvcc).

    TVM alone calls nvcc. After this, ``relay.build`` for cuda works wherever ``roller-tvm doctor`` finds one.

    Parameters
    ----------
    seen : function of {kernel: KernelResources}, optional
        Told what each compiled source takes.
    """
    import tvm

    def compile_source(code: str, target: Any = None) -> bytearray:
        current = target if target is not None else tvm.target.Target.current(allow_none=False)
        cubin = compile_cuda(code, str(current.arch))
        if seen is not None:
            seen(kernel_resources(cubin))
        return bytearray(cubin.data)

    tvm.register_func("tvm_callback_cuda_compile", compile_source, override=True)
