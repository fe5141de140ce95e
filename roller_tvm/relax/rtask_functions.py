"""PrimFuncs as rOperators: read, planned, and scheduled for TVM's code generator."""

from __future__ import annotations

from typing import Any

import tvm

from ..codegen.apply_tensorir import apply_steps_tir
from ..codegen.host_code import HostCode
from ..codegen.host_code_tensorir import generated, generated_opencl
from ..device import DeviceSpec
from ..errors import RollerError, UnsupportedOperator
from ..planner.lower import lower
from ..rammer import RKernel, planned_rkernels
from ..rammer.dialect import CUDA, Dialect
from ..rammer.functions import CodeFunctions, Planned
from ..rammer.opencl_functions import OPENCL
from ..roller.features import NO_FEATURES, Features
from ..tir.nodes import parameters, structural_hash, structurally_equal
from ..tir.read import read_prim_func
from .structures import bare


class RFunctions(CodeFunctions):
    """PrimFuncs that are not scheduled yet; equal ones are one, whatever their names. The handle is (func, reading).

    Parameters
    ----------
    top : int
        Plans per function; they are its rKernels.
    tf32 : bool
        See `plan.features.Features`.
    target : tvm.target.Target, dict or str, optional
        Target for cuda, or just the architecture; needed for code.

    Examples
    --------
    >>> functions = RFunctions(device)
    >>> functions.of(func, "conv1").kernels[0].name
    'plan 0'
    """

    def __init__(self, device: DeviceSpec, top: int = 10, tf32: bool = False, target: Any = None) -> None:
        super().__init__(device)
        self.top, self.target = top, target
        # Loops side by side on a CPU are merged as they are: no copies with layouts of their own.
        self.features = Features.of_tensor_ir(device, tf32) if device.kind == "gpu" else NO_FEATURES

    def digest(self, func: Any) -> int:
        return structural_hash(bare(func))

    def same(self, func: Any, other: Any) -> bool:
        return structurally_equal(bare(func), bare(other))

    def reason(self, error: RollerError) -> str:
        return error.what + (f" ({error.where})" if error.where else "")

    def read(self, func: Any, name: str) -> Planned:
        reading = read_prim_func(func, name or None)
        for stage, told in reading.elsewhere.items():
            raise UnsupportedOperator(f"block '{stage}' writes {told}", name, "leave it a kernel of its own")
        kernels = planned_rkernels(reading.expression, self.device, self.top, self.features)
        named = reading.arguments
        if len(named) != len(parameters(func)):
            if len(reading.expression.stages) > 1:
                raise UnsupportedOperator("one of its blocks has several results, and it has further blocks", name,
                                          "leave it a kernel of its own")  # fmt: skip
            named = ("",) * len(parameters(func))
        return Planned((func, reading), tuple(named), kernels)

    def generate(self, planned: Planned, kernel: RKernel, dialect: Dialect) -> tuple[str, HostCode]:
        assert kernel.plan is not None
        func, reading = planned.handle
        current = tvm.transform.PassContext.current()
        ahead = dialect is CUDA and any(program.choice("stages", 1) > 1 for program in kernel.plan.programs)
        config = {**current.config, **({"tirx.use_async_copy": True} if ahead else {})}
        with tvm.transform.PassContext(opt_level=current.opt_level, config=config):
            scheduled = apply_steps_tir(func, reading, lower(kernel.plan)).mod["main"]
            return generated_opencl(scheduled) if dialect is OPENCL else generated(scheduled, self.target)

