"""Plans held against what their compiled kernels take: no spills, shared memory as predicted. Imports no TVM."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from roller_tvm.errors import RollerError
from roller_tvm.model.estimate import Estimate
from roller_tvm.plan.align import Rejection
from roller_tvm.plan.gpu_variants import variants
from roller_tvm.plan.program import Plan
from roller_tvm.toolchain.compile import compile_cuda
from roller_tvm.toolchain.resources import KernelResources, kernel_resources

# Sources of the Relax line align every array so, also within dynamic memory: padding between them belongs to no array.
_ARRAY_ALIGNMENT = 64


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
    images : tuple of (arch, bytes)
        The cubins.
    """

    plan: Plan
    variant: str
    source: str
    resources: tuple[tuple[str, tuple[KernelResources, ...]], ...]
    images: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)

    def kernels(self, arch: str) -> tuple[KernelResources, ...]:
        return dict(self.resources)[arch]


def check_plan(
    plan: Plan, estimate: Estimate, source_of: Callable[[Plan], tuple[str, tuple[int, ...]]], archs: Sequence[str],
    compiler: str = "auto",
) -> CompiledPlan | Rejection:  # fmt: skip
    """Compile a plan for every architecture; a kernel that spills is replaced by a variant that does not.

    Parameters
    ----------
    plan, estimate
        A constructed plan and what the model said of it.
    source_of : function of Plan -> (str, tuple of int)
        CUDA C++ of a plan, by whichever TVM there is, and dynamic shared memory of its kernels, where they have any.
    archs : sequence of str
        Such as ('sm_80', 'sm_90').

    Returns
    -------
    CompiledPlan or Rejection
        The rejection names what the last variant took.

    Raises
    ------
    ToolchainError
        No compiler, or it refused the source.
    ResourcesDiffer
        The kernels take more shared memory than was predicted.
    """
    options = [list(variants(p)) for p in plan.programs]
    chosen = [0] * len(options)
    while True:
        choice = [of[n] for of, n in zip(options, chosen, strict=True)]
        changed = replace(plan, programs=tuple(p for _, p in choice)) if any(chosen) else plan
        source, dynamic = source_of(changed)
        found: list[tuple[str, tuple[KernelResources, ...]]] = []
        images: list[tuple[str, bytes]] = []
        spilled: dict[int, int] = {}
        for arch in archs:
            cubin = compile_cuda(source, arch, compiler)
            images.append((arch, cubin.data))
            kernels = kernel_resources(cubin)
            ordered = [kernels[name] for name in sorted(kernels, key=_launch_order)]
            asked = dynamic or (0,) * len(ordered)
            found.append((arch, tuple(
                replace(k, shared_bytes=k.shared_bytes + more) for k, more in zip(ordered, asked, strict=True)
            )))
            for number, kernel in enumerate(found[-1][1]):
                if kernel.local_bytes:
                    spilled[number] = max(spilled.get(number, 0), kernel.local_bytes)
            if spilled:
                break
        if not spilled:
            _hold(found, estimate, plan, source)
            told = "; ".join(name for name, _ in choice if name)
            return CompiledPlan(changed, told, source, tuple(found), tuple(images))
        # Only kernels that spill are changed: the others keep what the model chose.
        for number in spilled:
            chosen[number] += 1
        if any(n >= len(of) for of, n in zip(options, chosen, strict=True)):
            taken = f"{max(spilled.values())} B of local memory a thread"
            return Rejection("registers", taken, "0", "use a smaller register tile", str(plan))


def _launch_order(name: str) -> tuple[int, ...]:
    """TVM numbers the kernels of a function in the order in which they run: kernel_kernel, kernel_kernel_1, ..."""
    return tuple(int(n) for n in re.findall(r"_(\d+)$", name)) or (0,)


class ResourcesDiffer(RollerError):
    """Compiled kernels take what the model did not predict: a mistake in the model or in lowering."""


def _hold(found: list[tuple[str, tuple[KernelResources, ...]]], estimate: Estimate, plan: Plan, source: str) -> None:
    if "extern __shared__" in source:
        arrays = max(len(program.staged) for program in plan.programs)
    else:
        arrays = source.count(f"__shared__ alignas({_ARRAY_ALIGNMENT})")
    slack = (_ARRAY_ALIGNMENT - 1) * arrays
    for arch, kernels in found:
        predicted = [p.shared_bytes for p in estimate.programs]
        actual = [k.shared_bytes for k in kernels]
        near = len(predicted) == len(actual) and all(
            p <= a <= p + slack for p, a in zip(predicted, actual, strict=True)
        )
        if not near:
            raise ResourcesDiffer(
                f"shared memory of {actual} B, predicted {predicted} B", where=f"{plan.expression.name} for {arch}",
                remedy=f"report this plan:\n{plan}",
            )  # fmt: skip
