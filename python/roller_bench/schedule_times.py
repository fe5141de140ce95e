"""Steps of a schedule built and timed on this CPU: ``roller-tvm plan --measure``, on either TVM line."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roller_bench.timing import kernel_timer
from roller_tvm.device import default_cpu_target
from roller_tvm.ir.operators import parse_params
from roller_tvm.te import te_operator
from roller_tvm.tuning.numerics import make_inputs
from roller_tvm.tvm_env import line

#: What times a kernel (seconds of so many runs at a time, so often), and what runs it for its answer.
Built = tuple[Callable[[int, int], Sequence[float]], Callable[[], np.ndarray]]


def opened(module: Any, name: str, arrays: Sequence[Any], cpu: Any) -> Built:
    """Open a built kernel on its arguments; the last one is the answer."""

    def answer() -> np.ndarray:
        last = arrays[-1].numpy()
        arrays[-1].copyfrom(np.full(last.shape, np.nan, last.dtype))  # what is not written is not an earlier answer
        module[name](*arrays)
        return np.asarray(arrays[-1].numpy())

    return kernel_timer(module, name, arrays, cpu).evaluate, answer


def relay_builder(tensors: Sequence[Any], target: str) -> tuple[Any, Callable[[Any], Built]]:
    """Return the operator as the planner reads it, and a builder of steps (None: TVM's own), on the Relay line."""
    import tvm
    from tvm import te

    from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
    from roller_tvm.relay.rewrites import as_tvm, cpu_code
    from roller_tvm.te import read_te

    reading = read_te(list(tensors))
    arrays = [tvm.nd.array(a) for a in make_inputs(tensors)]

    def build(steps: Any) -> Built:
        if steps is None:
            schedule, args = te.create_schedule(tensors[-1].op), list(tensors)
        else:
            schedule, args = apply_steps_te(TeProgram.of_reading(reading, list(tensors)), steps)
        with as_tvm() if steps is None else cpu_code():
            built = tvm.build(schedule, args, target)
        return opened(built, built.entry_name, arrays, tvm.cpu())

    return reading.expression, build


def relax_builder(tensors: Sequence[Any], target: str) -> tuple[Any, Callable[[Any], Built]]:
    """Return the same on the Relax line."""
    import tvm
    from tvm import te

    from roller_tvm.codegen.apply_tensorir import apply_steps_tir
    from roller_tvm.relax.rewrites import cpu_code
    from roller_tvm.relax.targets import make_target
    from roller_tvm.tir.read import read_prim_func

    func = te.create_prim_func(list(tensors))
    reading = read_prim_func(func, name="main", constants=())
    arrays = [tvm.runtime.tensor(a) for a in make_inputs(tensors)]

    def build(steps: Any) -> Built:
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        if steps is not None:
            schedule = apply_steps_tir(func, reading, steps)
            mod = cpu_code()(schedule.mod)
        return opened(tvm.compile(mod, make_target(target)).mod, "main", arrays, tvm.cpu())

    return reading.expression, build


def operator_here(operator: str, params: Sequence[str], threads: int) -> tuple[Any, Callable[[Any], Built]]:
    """Return a named operator as the planner reads it, and a builder of a plan's steps, on this environment's line."""
    tensors = list(te_operator(operator, **parse_params(" ".join(params))))
    return (relay_builder if line() == "relay" else relax_builder)(tensors, default_cpu_target(threads))


def seconds_of(timed: Callable[[int, int], Sequence[float]]) -> float:
    """Return the median seconds of nine runs of at least ten milliseconds."""
    once = min(timed(1, 3))
    return statistics.median(timed(max(1, round(0.01 / once)), 9))
