"""CUDA source of a TensorIR module, and the check of its kernels' resources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..codegen.apply_tensorir import apply_steps_tir
from ..codegen.check import CompiledPlan, check_plan
from ..codegen.host_code_tensorir import generated
from ..device import DeviceSpec
from ..micro_perf.estimate import Estimate
from ..planner.lower import lower
from ..roller.alignment import Rejection
from ..roller.rprogram import Plan
from ..tir.read import TirReading


def cuda_target(arch: str, device: DeviceSpec | None = None) -> Any:
    """Return a target for CUDA with the device's limits for a block; TVM's named targets allow 48 KiB shared memory."""
    import tvm

    limits = device.limits if device else None
    given = {
        "max_threads_per_block": limits and limits.max_threads_per_block,
        "max_shared_memory_per_block": limits
        and (limits.shared_per_block_optin_bytes or limits.shared_per_block_bytes),
        "thread_warp_size": device and device.vector_width,
    }
    stated = {name: value for name, value in given.items() if value}
    return tvm.target.Target({"kind": "cuda", "arch": arch, **stated}).with_host("llvm")


def cuda_source(module: Any, target: Any) -> str:
    """Return TVM's CUDA C++ for a scheduled module; nothing is compiled, no device is needed.

    Parameters
    ----------
    module : IRModule or PrimFunc
    target : Target
        For instance from ``cuda_target``.
    """
    import tvm

    built = tvm.compile(module, target=target)
    return str(getattr(built, "mod", built).imports[0].inspect_source())


def check_resources(
    plan: Plan, estimate: Estimate, func: Any, reading: TirReading, archs: Sequence[str], compiler: str = "auto",
    device: DeviceSpec | None = None,
) -> CompiledPlan | Rejection:  # fmt: skip
    """Lower a plan through TensorIR and compile it (see ``toolchain.check.check_plan``).

    Parameters
    ----------
    func, reading
        Function that the plan was made for, and its reading.
    """
    target = cuda_target(archs[0], device)

    def source_of(changed: Plan) -> tuple[str, tuple[int, ...]]:
        source, host = generated(apply_steps_tir(func, reading, lower(changed)), target)
        return source, tuple(launch.dynamic_shared for launch in host.launches)

    return check_plan(plan, estimate, source_of, archs, compiler)


__all__ = ["check_resources", "cuda_source", "cuda_target"]
