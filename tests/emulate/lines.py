"""An operator's GPU kernels on either of TVM's lines: run by the emulator or by PoCL, compared with TVM's own loops."""

from math import prod, sqrt

import numpy as np
import tvm
from tvm import te

from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.tuning.numerics import difference, reference_on, shape_of
from roller_tvm.tvm_env import line

from ..lower.gpu_check import spread
from ..plan.devices import device

RELAY = line() == "relay"


class Operator:
    """A computation with inputs, what it should make of them, and plans for a GPU."""

    def __init__(self, tensors, positive=(False, True)):
        self.tensors = list(tensors)
        self.given = [isinstance(t.op, te.PlaceholderOp) for t in self.tensors]
        placeholders = [t for t, given in zip(self.tensors, self.given, strict=True) if given]
        if RELAY:
            from roller_tvm.te import read_te

            self.reading = read_te(self.tensors, "op")
        else:
            from roller_tvm.tir import read_prim_func

            self.func = te.create_prim_func(self.tensors)
            self.reading = read_prim_func(self.func, name="op")
        feeds, self.expected = reference_on(placeholders, self._own, positive)
        values = iter(feeds)
        self.arrays = [next(values) if given else None for given in self.given]
        sums = [prod(a.extent for a in s.reduce) for s in self.reading.expression.stages if s.reduce]
        self.terms = max(1, round(sum(sqrt(n) for n in sums) ** 2))

    def _own(self, feeds):
        """What TVM computes of the loops as they are, on the CPU."""
        values = iter(feeds)
        pairs = zip(self.tensors, self.given, strict=True)
        made = [next(values) if given else np.zeros(shape_of(t), str(t.dtype)) for t, given in pairs]
        if RELAY:
            from roller_tvm.relay.reference import reference_schedule

            outputs = [t for t, given in zip(self.tensors, self.given, strict=True) if not given]
            kernel, tensor = tvm.build(reference_schedule(outputs), self.tensors, "llvm"), tvm.nd.array
        else:
            kernel, tensor = tvm.compile(self.func, target="llvm"), tvm.runtime.tensor
        memory = list(map(tensor, made))
        kernel(*memory)
        return [m.numpy() for m, given in zip(memory, self.given, strict=True) if not given]

    def plans(self, gpu, most, features=None):
        """The first of each kind, then the best others."""
        options = {"features": features} if features else {}
        return spread([r.plan for r in construct(self.reading.expression, device(gpu), top=10, **options).plans], most)

    def schedule(self, plan):
        if RELAY:
            from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te

            return apply_steps_te(TeProgram.of_reading(self.reading, self.tensors), lower(plan))
        from roller_tvm.codegen.apply_tensorir import apply_steps_tir

        return (apply_steps_tir(self.func, self.reading, lower(plan)),)

    def emulated(self, plan):
        if RELAY:
            from roller_check.relay_plans import emulated_function
        else:
            from roller_check.relax_plans import emulated_function
        return emulated_function(*self.schedule(plan))

    def on_pocl(self, plan):
        if RELAY:
            from roller_check.relay_plans import opencl_function
        else:
            from roller_check.relax_plans import opencl_function
        return opencl_function(*self.schedule(plan))

    def check(self, function, plan):
        """Run a function and compare what it makes."""
        for got, wanted in zip(function.run(self.arrays), self.expected, strict=True):
            wrong = difference(got, wanted, self.terms)
            assert not wrong, f"{wrong}\n{function}\n{plan}"
