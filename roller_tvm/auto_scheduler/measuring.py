"""Measure States with the user's builder, runner, callbacks and verbosity; messages are worded as Ansor's.

Only a C++ ``ProgramMeasurer`` can call C++ callbacks, and only a C++ policy can call a ``ProgramMeasurer``. The
smallest policy, ``EmptyPolicy``, measures the initial State of its task's DAG. So a DAG with the measured State as its
initial State is made, and ``EmptyPolicy`` hands that State with its result to every callback.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm.auto_scheduler import EmptyPolicy, SearchTask
from tvm.auto_scheduler.loop_state import StateObject
from tvm.auto_scheduler.measure import (
    BuildResult,
    LocalRunner,
    MeasureErrorNo,
    MeasureInput,
    MeasureResult,
    ProgramMeasurer,
)

from roller_tvm.auto_scheduler.hooks import made_with
from roller_tvm.tuning.interrupt import deferred_interrupt
from roller_tvm.tuning.results import UNMEASURED

ERRORS = {
    getattr(MeasureErrorNo, name): name.lower().replace("_", " ") for name in vars(MeasureErrorNo) if name.isupper()
}
#: Errors of a runner if there is no device, or no device that accepts the code.
DEVICE_ERRORS = (MeasureErrorNo.COMPILE_DEVICE, MeasureErrorNo.RUNTIME_DEVICE)
BUILD, RUN = "auto_scheduler.local_builder.build", "auto_scheduler.local_runner.run"
REPLAYED = "roller_tvm.replayed"


@dataclass
class Means:
    """The user's means of measuring: builder, runner, callbacks and verbosity, with the state of the measurement.

    Parameters
    ----------
    builder, runner : ProgramBuilder, ProgramRunner
    callbacks : list of MeasureCallback
    verbose : int
        0 prints nothing, 1 prints Ansor's messages, 2 prints every State as well.
    trials : int
        Trials measured so far.
    best_flops : dict of workload key to float
        Best FLOP/s of each workload.
    broken : str
        Reason that no trial can work, or ''. Set if no trial has worked yet and one failed on the device.

    Examples
    --------
    >>> inputs, results = Means.of_options(options).measure(task, states)
    """

    builder: Any
    runner: Any
    callbacks: list[Any]
    verbose: int
    trials: int = 0
    best_flops: dict[str, float] = field(default_factory=dict)
    broken: str = ""
    proven: bool = False  # whether any trial has worked
    said: set[str] = field(default_factory=set)

    @classmethod
    def of_options(cls, options: Any) -> Means:
        return cls(options.builder, options.runner, list(options.measure_callbacks or []), int(options.verbose))

    @classmethod
    def of_measurer(cls, measurer: Any) -> Means:
        """Return the means that a ``ProgramMeasurer`` was made with; the same object for the same measurer."""
        found = vars(measurer).get("_roller_means")
        if found is None:
            arguments = made_with(measurer)
            if arguments is None:
                raise TypeError("this ProgramMeasurer was made before roller_tvm.auto_scheduler was imported")
            builder, runner, callbacks, verbose = arguments[:4]
            found = cls(builder, runner, list(callbacks or []), int(verbose))
            measurer._roller_means = found
        return found

    @property
    def local(self) -> bool:
        """True if programs run on this machine: the runner is a ``LocalRunner``."""
        return isinstance(self.runner, LocalRunner)

    def say(self, text: str, level: int = 1) -> None:
        if self.verbose >= level:
            print(text, flush=True)

    def say_once(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            self.say(text)

    def measure(self, task: Any, states: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Build and run States of one task; return their MeasureInputs and MeasureResults. Callbacks are not called."""
        start = time.perf_counter()
        inputs = [MeasureInput(task, state) for state in states]
        self.say(f"Get {len(inputs)} programs to measure:")
        with deferred_interrupt():  # both call Python from C++, where a KeyboardInterrupt is lost
            built = self.builder.build(inputs, self.verbose)
            results = list(self.runner.run(inputs, built, self.verbose))
        sys.stdout.flush()
        for state, result in zip(states, results, strict=True):
            self._tell(task, state, result)
        if not self.proven:
            self.broken = next((failure(r) for r in results if int(r.error_no) in DEVICE_ERRORS), "")
        self.say(f"Time elapsed for measurement: {time.perf_counter() - start:.2f} s")
        return inputs, results

    def _tell(self, task: Any, state: Any, result: Any) -> None:
        self.trials += 1
        key, seconds = str(task.workload_key), cost_of(result)
        flops = task.compute_dag.flop_ct / seconds if math.isfinite(seconds) else 0.0
        self.proven |= math.isfinite(seconds)  # a transpose has no FLOP, and works all the same
        self.best_flops[key] = max(flops, self.best_flops.get(key, 0.0))
        if self.verbose >= 2:
            line = "=" * 50
            speed = f"GFLOPS: {flops / 1e9:.2f} / {self.best_flops[key] / 1e9:.2f}"
            print(f"{line}\nNo: {self.trials}\t{speed}\tresults: {result}\n{line}\n{state}")

    def deliver(self, task: Any, states: Sequence[Any], results: Sequence[Any]) -> None:
        """Call every callback with the States and their results."""
        if not self.callbacks:
            return
        with deferred_interrupt(), _replay() as (builder, runner, answer):
            measurer = ProgramMeasurer(builder, runner, self.callbacks, 0)
            for state, result in zip(states, results, strict=True):
                answer[:] = [result]
                EmptyPolicy(_starting_at(task, state)).continue_search_one_round(1, measurer)


def cost_of(result: Any) -> float:
    """Return the mean time of a MeasureResult in seconds, infinity for a failure."""
    if int(result.error_no) != MeasureErrorNo.NO_ERROR:
        return math.inf
    costs = [float(c) for c in result.costs]
    return math.fsum(costs) / len(costs)


def failure(result: Any) -> str:
    """Return the reason that a trial failed, in one line, or '' if it worked."""
    number = int(result.error_no)
    if number == MeasureErrorNo.NO_ERROR:
        return ""
    said = [line.strip() for line in str(result.error_msg or "").splitlines() if line.strip()]
    return f"{ERRORS.get(number, number)}: {said[-1][:200]}" if said else str(ERRORS.get(number, number))


def planned_result(seconds: float) -> Any:
    """Return the MeasureResult of a plan that was only predicted: its cost as record files mark it, elapsed time 0."""
    return MeasureResult([seconds * UNMEASURED], 0, "", 0.0, time.time())


def _starting_at(task: Any, state: Any) -> Any:
    """Return a copy of the task with the State as its DAG's initial State."""
    dag = task.compute_dag
    changed = tvm.ir.make_node(
        "auto_scheduler.ComputeDAG", tensors=dag.tensors, ops=dag.ops, flop_ct=dag.flop_ct,
        init_state=state if isinstance(state, StateObject) else state.state_object,
        access_analyzer=dag.access_analyzer)  # fmt: skip
    return SearchTask(
        workload_key=task.workload_key, compute_dag=changed, target=task.target, target_host=task.target_host,
        hardware_params=task.hardware_params, layout_rewrite_option=task.layout_rewrite_option,
        task_inputs=[str(n) for n in task.task_input_names], desc=task.desc)  # fmt: skip


@contextlib.contextmanager
def _replay() -> Iterator[tuple[Any, Any, list[Any]]]:
    """Yield a builder, a runner and a list; both do nothing but answer with the results in the list."""
    answer: list[Any] = []
    real = {name: tvm.get_global_func(name) for name in (BUILD, RUN)}
    # Not of their Python classes: making a LocalBuilder changes how every other one builds.
    builder = tvm.get_global_func("auto_scheduler.LocalBuilder")(1, 1, REPLAYED)
    runner = tvm.get_global_func("auto_scheduler.LocalRunner")(1, 0, 0, 0, 0.0, False, 0)

    def build(inputs: Any, timeout: int, n_parallel: int, build_func: str, *rest: Any) -> Any:
        if build_func != REPLAYED:  # a callback that measures something of its own
            return real[BUILD](inputs, timeout, n_parallel, build_func, *rest)
        return [BuildResult("", [], 0, "", 0.0) for _ in inputs]

    def run(inputs: Any, built: Any, timeout: int, number: int, *rest: Any) -> Any:
        return list(answer) if number == 0 else real[RUN](inputs, built, timeout, number, *rest)

    tvm.register_func(BUILD, build, override=True)
    tvm.register_func(RUN, run, override=True)
    try:
        yield builder, runner, answer
    finally:
        for name, function in real.items():
            tvm.register_func(name, function, override=True)
