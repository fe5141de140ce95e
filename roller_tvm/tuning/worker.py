"""A worker process: builds the candidates of one task at a time, runs them, compares their results.

The functions are called from another process (see `supervise`), or in a process that has its own use for kernels.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.tuning import numerics
from roller_tvm.tuning.line import Built, Workload, in_order, worker_side
from roller_tvm.tuning.session import PACKED
from roller_tvm.tuning.supervise import Failed, last_line
from roller_tvm.tuning.supervise import main as serve
from roller_tvm.tuning.timing import Kernel, Memory, Rotation, run_timed
from roller_tvm.tvm_env.pin import pin_calling_thread


@dataclass
class Opened:
    """A task, its answers, and what was built of it.

    Parameters
    ----------
    inputs, expected : list of array
        Values of the inputs, and the results for them.
    built : dict
        (number of a candidate, mode) -> kernel.
    """

    workload: Workload
    inputs: list[np.ndarray] = field(default_factory=list)
    expected: list[np.ndarray] = field(default_factory=list)
    built: dict[tuple[int, int], Built] = field(default_factory=dict)
    rotations: dict[tuple[int, ...], Rotation] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    @property
    def target(self) -> Any:
        return self.workload.target

    def given(self) -> list[Any]:
        """Return the tensors that are inputs."""
        return [t for n, t in enumerate(self.workload.tensors) if n not in self.workload.outputs]

    def results(self) -> list[Any]:
        """Return the tensors that are results."""
        return [self.workload.tensors[n] for n in self.workload.outputs]


TASKS: dict[str, Opened] = {}


def hello() -> int:
    """Make the process ready to build; return its number."""
    worker_side().warm_up()
    return os.getpid()


def device_present(kind: str) -> bool:
    """Return whether TVM finds a device for this kind of target here."""
    try:
        device = worker_side().device(kind)
    except ValueError:  # this TVM knows no such device
        return False
    return bool(device.exist)


def open_task(key: str, text: str, target: str, weights: Sequence[Any] = ()) -> None:
    """Open a task in the place of the one that is open: what is built for another is in the way."""
    TASKS.clear()
    TASKS[key] = Opened(worker_side().open(text, target, weights))


def close_task(key: str) -> None:
    TASKS.pop(key, None)


def make_reference(key: str, folder: str) -> float:
    """Compute the reference into the folder, from which all workers read it. Returns the seconds it took."""
    opened, start = TASKS[key], time.perf_counter()
    inputs, expected = numerics.reference_on(opened.given(), opened.workload.reference())
    if any(e.size and np.issubdtype(e.dtype, np.floating) and np.isnan(e).all() for e in expected):
        raise Failed("run error", "a result is NaN everywhere on random inputs: a kernel that writes nothing agrees")
    for kind, arrays in (("in", inputs), ("out", expected)):
        for number, array in enumerate(arrays):
            np.save(Path(folder, f"{kind}{number}.npy"), array)
    return time.perf_counter() - start


def load_reference(key: str, folder: str) -> None:
    """Read the reference that another worker has made."""
    opened = TASKS[key]
    for kind, into, tensors in (("in", opened.inputs, opened.given()), ("out", opened.expected, opened.results())):
        into[:] = [numerics.load(Path(folder, f"{kind}{n}.npy"), str(t.dtype)) for n, t in enumerate(tensors)]


def build(key: str, number: int, line: str, mode: int) -> float:
    """Build candidate `number` from its record. Returns the seconds it took."""
    opened, start = TASKS[key], time.perf_counter()
    opened.built[number, mode] = opened.workload.build(line, mode)
    return time.perf_counter() - start


def build_default(key: str, number: int, text: str, mode: int) -> float:
    """Build TVM's own kernel of the task. Returns the seconds it took."""
    opened, start = TASKS[key], time.perf_counter()
    try:
        opened.built[number, mode] = opened.workload.build_default(text)
    except Exception as error:  # whatever TVM's passes raise
        raise Failed("build error", last_line(error)) from error
    return time.perf_counter() - start


def build_alone(text: str, target: str, line: str) -> float:
    """Build a candidate of a task that is not open, and keep nothing. Returns the seconds it took.

    If there is a CUDA compiler, a kernel that spills registers to local memory fails too.
    """
    workload, start = worker_side().open(text, target, ()), time.perf_counter()
    if spilled := workload.spilled(line):
        raise Failed("register spills", f"{spilled} B of local memory a thread")
    return time.perf_counter() - start


def run(key: str, number: int, mode: int, best: float, options: dict[str, Any]) -> dict[str, Any]:
    """Run a built candidate: compare its results (unless its weights are packed), then time it.

    Parameters
    ----------
    best : float
        Seconds of the best candidate so far.
    options : dict
        Those of ``timing.run_timed``; without any it is not timed.

    Returns
    -------
    dict
        'repeats': seconds of each repeat; 'pruned'; 'wrong': why the result is not right, or ''.
    """
    opened = TASKS[key]
    try:
        return _run(opened, opened.built[number, mode], mode == PACKED, best, options)
    except Exception as error:  # whatever TVM raises of a kernel that fails
        raise Failed("run error", last_line(error)) from error


def _run(opened: Opened, built: Built, packed: bool, best: float, options: dict[str, Any]) -> dict[str, Any]:
    import tvm

    side, on_cpu = worker_side(), opened.target.kind.name in ("llvm", "c")
    device = side.device(opened.target.kind.name)

    def make(values: Any) -> Any:
        return side.tensor(values, device)

    inputs = opened.inputs
    if packed:  # values matter to no time
        inputs = numerics.make_inputs([t for n, t in enumerate(built.tensors) if n not in built.outputs])
    values = in_order(inputs, [poison(built.tensors[n]) for n in built.outputs], built.outputs)
    arguments = [opened.memory.of(n, value, make) for n, value in enumerate(values)]
    function = built.module[built.name]
    start = time.perf_counter()
    function(*arguments)
    device.sync()
    first_s = time.perf_counter() - start
    if on_cpu:
        pin_calling_thread()
    wrong = "" if packed else _difference(opened, [arguments[n] for n in built.outputs])
    if wrong or not options:
        return {"repeats": [], "pruned": False, "wrong": wrong}

    def evaluate(runs: int, repeat: int) -> Any:
        return built.module.time_evaluator(built.name, device, number=runs, repeat=repeat)(*arguments).results

    nothing = tvm.get_global_func("testing.nop", allow_missing=True)
    weights = built.weights if "footprint_bytes" in options else ()
    kernel = Kernel(function, arguments, device.sync, evaluate, weights, nothing)
    return run_timed(kernel, best, options, opened.rotations, make, first_s)


def _difference(opened: Opened, results: Sequence[Any]) -> str:
    """Return why the first result that is not right is not, or ''."""
    pairs = zip(results, opened.expected, strict=True)
    told = (numerics.difference(result.numpy(), expected, opened.workload.terms) for result, expected in pairs)
    return next(filter(None, told), "")


def poison(tensor: Any) -> np.ndarray:
    """Return the initial value of an output, NaN or 77: elements that a kernel does not write become visible."""
    return poisoned(numerics.shape_of(tensor), str(tensor.dtype))


def poisoned(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return `poison` of a shape and a type."""
    return np.full(shape, math.nan if dtype.startswith(("float", "bfloat")) else 77).astype(dtype)


FUNCTIONS = {
    f.__name__: f
    for f in (
        hello, device_present, open_task, close_task, make_reference, load_reference, build, build_default, build_alone,
        run,
    )
}  # fmt: skip


def main(functions: dict[str, Any] | None = None) -> None:
    """Answer calls until the parent is gone."""
    with worker_side().code():
        serve(functions or FUNCTIONS)


if __name__ == "__main__":
    main()
