"""Relay's fused functions as rOperators: reads and plans their computations, has TVM generate code."""

from __future__ import annotations

import contextlib
from typing import Any

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
from roller_tvm.codegen.host_code import HostCode
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import UnsupportedOperator, last_line
from roller_tvm.planner.lower import lower
from roller_tvm.planner.plan_cache import plan_cache
from roller_tvm.rammer import RKernel, rkernels
from roller_tvm.rammer.dialect import Dialect
from roller_tvm.rammer.functions import CodeFunctions, Planned
from roller_tvm.rammer.opencl_functions import OPENCL
from roller_tvm.relay.host_code import generated, generated_opencl
from roller_tvm.te import TeReading, read_te

#: Relay's own lowering of a fused function to TE, its operators by their generic computations.
LOWER = "relay.backend.LowerToTE"


class RelayFunctions(CodeFunctions):
    """``Primitive`` functions of a Relay module; the handle of each is its `TeProgram`.

    Parameters
    ----------
    target : tvm.target.Target, optional
        Target in whose scope functions are lowered to TE.
    """

    def __init__(self, device: DeviceSpec, arch: str, top: int = 10, target: Any = None) -> None:
        super().__init__(device)
        self.arch, self.top, self.target = arch, top, target

    def digest(self, func: Any) -> int:
        import tvm

        return int(tvm.ir.structural_hash(func))

    def same(self, func: Any, other: Any) -> bool:
        import tvm

        return bool(tvm.ir.structural_equal(func, other))

    def read(self, func: Any, name: str) -> Planned:
        import tvm

        try:
            with self.target if self.target is not None else contextlib.nullcontext():
                lowered = tvm.get_global_func(LOWER)(func)
        except Exception as error:  # whatever an operator's computation raises for what it was not made for
            raise UnsupportedOperator(f"Relay has no tensor expression of it: {last_line(error)}", name) from error
        outputs = list(lowered.outputs)
        read = _operations(outputs)
        inputs = [t for t in lowered.inputs if t.op in read]  # of a tuple not every element need be read
        reading = read_te([*inputs, *outputs], name)
        names = {tensor.op: name for name, tensor in reading.tensors.items()} | {o: n for n, o in reading.ops.items()}
        if any(o.op not in reading.ops.values() for o in outputs) or len({o.op for o in outputs}) < len(outputs):
            raise UnsupportedOperator("an output that it does not compute by itself", name)
        program = TeProgram.of_reading(reading, [*inputs, *outputs])
        arguments = tuple(names.get(t.op) for t in (*lowered.inputs, *outputs))
        made = self.planned(program, arguments, reading)
        if not made.kernels:
            raise UnsupportedOperator("Roller has no plan for it", name)
        return made

    def planned(
        self, program: TeProgram, arguments: tuple[str | None, ...], reading: TeReading
    ) -> Planned:  # fmt: skip
        """Return a computation with its rKernels."""
        plans = plan_cache().construct(reading.expression, self.device, self.top).plans
        return Planned(program, arguments, rkernels(plans, self.device))

    def generate(self, planned: Planned, kernel: RKernel, dialect: Dialect) -> tuple[str, HostCode]:
        assert kernel.plan is not None
        scheduled = apply_steps_te(planned.handle, lower(kernel.plan))
        if dialect is OPENCL:
            return generated_opencl(*scheduled)
        return generated(*scheduled, self.arch)


def _operations(outputs: list[Any]) -> set[Any]:
    """Return all operations that these tensors depend on."""
    found: set[Any] = set()
    todo = [t.op for t in outputs]
    while todo:
        op = todo.pop()
        if op not in found:
            found.add(op)
            todo += [t.op for t in op.input_tensors]
    return found
