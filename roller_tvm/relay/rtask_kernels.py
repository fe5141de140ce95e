"""Relay's fused functions as rOperators: reads and plans their computations, has TVM generate CUDA."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
from roller_tvm.device import DeviceSpec
from roller_tvm.emulate import HostCode
from roller_tvm.errors import RollerError, UnsupportedOperator, last_line
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.rammer import RKernel, rkernels
from roller_tvm.rammer.code import check_intermediates
from roller_tvm.rammer.device_code import CannotFuse
from roller_tvm.rammer.dialect import CUDA, Dialect
from roller_tvm.rammer.opencl_code import OPENCL
from roller_tvm.relay.emulated import generated, opencl_function
from roller_tvm.te import TeReading, read_te

#: Relay's own lowering of a fused function to TE, its operators by their generic computations.
LOWER = "relay.backend.LowerToTE"


@dataclass(eq=False)
class Computation:
    """A fused function's computation, and its rKernels.

    Parameters
    ----------
    inputs, outputs : tuple of str
        Tensor names in the expression, one per input or output of the function; '' for an unread input.
    program : TeProgram
    kernels : tuple of RKernel
        Its rKernels; one without code is removed later.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    program: TeProgram
    kernels: tuple[RKernel, ...]


@dataclass
class Computations:
    """Reads and plans fused functions; equal ones once.

    Parameters
    ----------
    device : DeviceSpec
    arch : str
        Architecture to generate code for.
    top : int
        Number of plans per function.
    target : tvm.target.Target, optional
        Target in whose scope functions are lowered to TE.
    dialect : Dialect
        Language to generate code in.
    """

    device: DeviceSpec
    arch: str
    top: int = 10
    target: Any = None
    dialect: Dialect = CUDA
    _known: dict[int, list[tuple[Any, Computation | UnsupportedOperator]]] = field(default_factory=dict, repr=False)
    _code: dict[tuple[int, int], tuple[RKernel, tuple[str, HostCode]]] = field(default_factory=dict, repr=False)

    def of(self, function: Any, name: str) -> Computation:
        """Return the computation of a ``Primitive`` function.

        Raises
        ------
        UnsupportedOperator
            The function cannot be planned; the reason is the same for all equal functions.
        """
        import tvm

        known = self._known.setdefault(tvm.ir.structural_hash(function), [])
        found = next((made for other, made in known if tvm.ir.structural_equal(other, function)), None)
        if found is None:
            try:
                found = self._read(function, name)
            except UnsupportedOperator as error:
                found = error
            known.append((function, found))
        if isinstance(found, UnsupportedOperator):
            raise found
        return found

    def _read(self, function: Any, name: str) -> Computation:
        import tvm

        try:
            with self.target if self.target is not None else contextlib.nullcontext():
                lowered = tvm.get_global_func(LOWER)(function)
        except Exception as error:  # whatever an operator's computation raises for what it was not made for
            raise UnsupportedOperator(f"Relay has no tensor expression of it: {last_line(error)}", name) from error
        outputs = list(lowered.outputs)
        read = _operations(outputs)
        inputs = [t for t in lowered.inputs if t.op in read]  # of a tuple not every element need be read
        reading = read_te([*inputs, *outputs], name)
        names = {tensor.op: name for name, tensor in reading.tensors.items()} | {o: n for n, o in reading.ops.items()}
        if any(o.op not in reading.ops.values() for o in outputs) or len({o.op for o in outputs}) < len(outputs):
            raise UnsupportedOperator("an output that it does not compute by itself", name)
        made = Computation(
            tuple(names.get(t.op, "") for t in lowered.inputs), tuple(names[t.op] for t in outputs),
            TeProgram.of_reading(reading, [*inputs, *outputs]), (),
        )  # fmt: skip
        made.kernels = self.kernels(made, reading)
        if not made.kernels:
            raise UnsupportedOperator("Roller has no plan for it", name)
        return made

    def kernels(self, computation: Computation, reading: TeReading) -> tuple[RKernel, ...]:
        """Return the rKernels of a computation."""
        return rkernels(construct(reading.expression, self.device, self.top).plans, self.device)

    def _generated(self, schedule: Any, args: list[Any]) -> tuple[str, HostCode]:
        if self.dialect is OPENCL:
            function = opencl_function(schedule, args)
            return function.source, function.host
        return generated(schedule, args, self.arch)

    def code(self, computation: Computation, kernel: RKernel, name: str) -> tuple[str, HostCode]:
        """Return the source of an rKernel, and its host code with the launches.

        Raises
        ------
        CannotFuse
            The plan's steps do not apply, or TVM generates no kernels for it; names the operator.
        """
        key = id(computation), id(kernel)
        if key not in self._code:
            assert kernel.plan is not None
            try:
                made = self._generated(*apply_steps_te(computation.program, lower(kernel.plan)))
                check_intermediates(kernel, made[1])
            except Exception as error:  # a defect of one recipe, or of TVM's lowering, must not stop the others
                what = error.what if isinstance(error, RollerError) else last_line(error)
                raise CannotFuse(f"no code for its rKernel '{kernel.name}': {what}", where=f"operator '{name}'",
                                 remedy="leave the operator a kernel of its own") from error
            self._code[key] = kernel, made
        return self._code[key][1]


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
