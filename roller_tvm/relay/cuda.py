"""CUDA source of a schedule, and a CUDA compiler for TVM on a machine that has no nvcc and no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.toolchain import compile_cuda


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


def use_toolchain() -> None:
    """Let TVM compile CUDA with whichever compiler is here (NVRTC from PyPI, or nvcc).

    TVM alone calls nvcc. After this, ``relay.build`` for cuda works wherever ``roller-tvm doctor`` finds one.
    """
    import tvm

    def compile_source(code: str, target: Any = None) -> bytearray:
        current = target if target is not None else tvm.target.Target.current(allow_none=False)
        return bytearray(compile_cuda(code, str(current.arch)).data)

    tvm.register_func("tvm_callback_cuda_compile", compile_source, override=True)
