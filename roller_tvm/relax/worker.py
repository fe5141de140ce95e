"""A worker process of the Relax line: builds candidates from their traces, runs them, compares them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.measure import numerics, serving
from roller_tvm.measure.cold import Rotation
from roller_tvm.measure.memory import Memory
from roller_tvm.measure.serving import Failed, last_line
from roller_tvm.measure.session import PACKED
from roller_tvm.measure.timing import Kernel, run_timed
from roller_tvm.tir.nodes import parameters
from roller_tvm.tvm_env.pin import pin_calling_thread


@dataclass
class Task:
    mod: Any
    target: Any
    outputs: tuple[int, ...]
    terms: int
    weights: tuple[int, ...]
    inputs: list[np.ndarray] = field(default_factory=list)
    expected: list[np.ndarray] = field(default_factory=list)
    built: dict[tuple[int, int], Any] = field(default_factory=dict)
    rotations: dict[tuple[int, ...], Rotation] = field(default_factory=dict)
    #: Candidate -> its parameters where constants come packed.
    packed: dict[int, list[Any]] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    @property
    def buffers(self) -> list[Any]:
        return parameters(self.mod["main"])


TASKS: dict[str, Task] = {}


def hello() -> int:
    """Import what building needs; the time is not counted as a candidate's."""
    from roller_tvm.tvm_env import import_relax_tvm

    import_relax_tvm("measuring")
    from tvm import s_tir  # noqa: F401
    from tvm.s_tir import meta_schedule  # noqa: F401

    return os.getpid()


def device_present(kind: str) -> bool:
    """Return whether TVM finds a device for this kind of target here."""
    try:
        return bool(_device(kind).exist)
    except Exception:
        return False


def open_task(key: str, mod: str, target: str, constants: Sequence[int]) -> None:
    import tvm

    from roller_tvm.relax.tasks import output_positions, reduction_terms

    TASKS.clear()  # one task at a time: what is built for another is in the way
    module = tvm.ir.load_json(mod)
    func = module["main"]
    TASKS[key] = Task(
        module, _target(target), output_positions(func), reduction_terms(func), tuple(int(n) for n in constants)
    )


def _target(text: str) -> Any:
    import tvm

    return tvm.target.Target(json.loads(text) if text.lstrip().startswith("{") else text)


def _device(kind: str) -> Any:
    import tvm

    return tvm.device("cpu" if kind in ("llvm", "c") else kind, 0)


def close_task(key: str) -> None:
    TASKS.pop(key, None)


def make_reference(key: str, folder: str) -> float:
    """Compute the reference once; all workers read it from the folder. Returns the seconds it took."""
    import tvm

    from roller_tvm.relax.reference import reference_module

    task, start = TASKS[key], time.perf_counter()
    host = task.target if task.target.kind.name == "llvm" else tvm.target.Target("llvm")
    function = tvm.compile(reference_module(task.mod), host)["main"]
    buffers = task.buffers
    inputs_at = [n for n in range(len(buffers)) if n not in task.outputs]

    def compute(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        results = [np.zeros(numerics.shape_of(buffers[n]), str(buffers[n].dtype)) for n in task.outputs]
        arguments = _arguments(task, [tvm.runtime.tensor(a) for a in inputs], [tvm.runtime.tensor(a) for a in results])
        function(*arguments)
        return [arguments[n].numpy() for n in task.outputs]

    inputs, expected = numerics.reference_on([buffers[n] for n in inputs_at], compute)
    if any(e.size and np.issubdtype(e.dtype, np.floating) and np.isnan(e).all() for e in expected):
        raise Failed("run error", "a result is NaN everywhere on random inputs: a kernel that writes nothing agrees")
    for kind, arrays in (("in", inputs), ("out", expected)):
        for number, array in enumerate(arrays):
            np.save(Path(folder, f"{kind}{number}.npy"), array)
    return time.perf_counter() - start


def load_reference(key: str, folder: str) -> None:
    task = TASKS[key]
    types = [str(buffer.dtype) for buffer in task.buffers]
    given = [t for n, t in enumerate(types) if n not in task.outputs]
    for kind, into, dtypes in (("in", task.inputs, given), ("out", task.expected, [types[n] for n in task.outputs])):
        into[:] = [numerics.load(Path(folder, f"{kind}{n}.npy"), dtype) for n, dtype in enumerate(dtypes)]


def build(key: str, number: int, line: str, mode: int, ours: bool = True) -> float:
    """Build candidate `number` from its record, as our pipeline will (or TVM's own). Returns the seconds it took."""
    task, start = TASKS[key], time.perf_counter()
    module = replayed(task.mod, line)
    if mode == PACKED:
        from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

        module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=False)(module)
        task.packed[number] = parameters(module["main"])
    task.built[number, mode] = _built(module, task.target, line, ours)
    return time.perf_counter() - start


def replayed(mod: Any, line: str) -> Any:
    """The module with a record's trace applied."""
    from roller_tvm.relax.database import replay

    try:
        return replay(mod, line).mod
    except Exception as error:
        raise Failed("schedule error", last_line(error)) from error


def build_default(key: str, number: int, line: str, mode: int, ours: bool = True) -> float:
    """Build TVM's own kernel of the task, which comes as a module. Returns the seconds it took."""
    import tvm

    task, start = TASKS[key], time.perf_counter()
    task.built[number, mode] = _built(tvm.ir.load_json(line), task.target, "", ours)
    return time.perf_counter() - start


def _compiled(module: Any, target: Any, line: str, ours: bool) -> Any:
    import tvm

    from roller_tvm.relax.database import copies_ahead
    from roller_tvm.relax.rewrites import cpu_code

    if ours and target.kind.name == "llvm":
        module = cpu_code()(module)

    with tvm.transform.PassContext(config={"tirx.use_async_copy": True} if copies_ahead(line) else {}):
        return tvm.compile(module, target)


def _built(module: Any, target: Any, line: str, ours: bool) -> Any:
    try:
        library = _compiled(module, target, line, ours).jit()
        library["main"]  # the code of an llvm module is generated at the first look-up
        return library
    except Exception as error:
        raise Failed("build error", last_line(error)) from error


def build_alone(mod: str, target: str, line: str) -> float:
    """Build a candidate of a task that is not open, and keep nothing. Returns the seconds it took.

    Where a CUDA compiler is here, a kernel that spills registers to local memory is a failure too.
    """
    import tvm

    from roller_tvm.relax.resources import spilled_bytes

    start = time.perf_counter()
    made = _target(target)
    module = replayed(tvm.ir.load_json(mod), line)
    try:
        library = _compiled(module, made, line, ours=True)
        spilled = spilled_bytes(library.mod, made) if made.kind.name == "cuda" else 0
    except Exception as error:
        raise Failed("build error", last_line(error)) from error
    if spilled:
        raise Failed("register spills", f"{spilled} B of local memory a thread")
    return time.perf_counter() - start


def run(key: str, number: int, mode: int, best: float, options: dict[str, Any]) -> dict[str, Any]:
    """Run a built candidate: compare its result if it takes the inputs as they are, then time it.

    Returns
    -------
    dict
        'repeats': seconds of each repeat; 'pruned'; 'wrong': why the result is not right, or ''.
    """
    import tvm

    task = TASKS[key]
    library = task.built[number, mode]
    function = library["main"]
    device = _device(task.target.kind.name)

    def make(values: Any) -> Any:
        return tvm.runtime.tensor(np.asarray(values, order="C"), device)

    buffers = task.packed[number] if mode == PACKED else task.buffers
    inputs = task.inputs
    if mode == PACKED:  # values matter to no time
        inputs = numerics.make_inputs([b for n, b in enumerate(buffers) if n not in task.outputs])
    values = _arguments(task, inputs, [_poison(buffers[n]) for n in task.outputs])
    arguments = [task.memory.of(n, value, make) for n, value in enumerate(values)]
    try:
        start = time.perf_counter()
        function(*arguments)
        device.sync()
        first_s = time.perf_counter() - start
        if task.target.kind.name == "llvm":
            pin_calling_thread()
        wrong = ""
        if mode != PACKED:
            for position, expected in zip(task.outputs, task.expected, strict=True):
                wrong = wrong or numerics.difference(arguments[position].numpy(), expected, task.terms)
        if wrong or not options:
            return {"repeats": [], "pruned": False, "wrong": wrong}

        def evaluate(runs: int, repeat: int) -> Any:
            return library.time_evaluator("main", device, number=runs, repeat=repeat)(*arguments).results

        nothing = tvm.get_global_func("testing.nop", allow_missing=True)
        weights = task.weights if "footprint_bytes" in options else ()
        kernel = Kernel(function, arguments, device.sync, evaluate, weights, nothing)
        return run_timed(kernel, best, options, task.rotations, make, first_s)
    except Exception as error:
        raise Failed("run error", last_line(error)) from error


def _poison(buffer: Any) -> np.ndarray:
    """Return the initial value of an output, NaN or 77: elements that a kernel does not write become visible."""
    shape, dtype = numerics.shape_of(buffer), str(buffer.dtype)
    return np.full(shape, np.nan if dtype.startswith(("float", "bfloat")) else 77).astype(dtype)


def _arguments(task: Task, inputs: list[Any], outputs: list[Any]) -> list[Any]:
    ins, outs = iter(inputs), iter(outputs)
    return [next(outs) if n in task.outputs else next(ins) for n in range(len(inputs) + len(outputs))]


FUNCTIONS = {
    f.__name__: f
    for f in (
        hello, device_present, open_task, close_task, make_reference, load_reference, build,
        build_default, build_alone, run,
    )
}  # fmt: skip


def main(functions: dict[str, Any] | None = None) -> None:
    serving.main(functions or FUNCTIONS)


if __name__ == "__main__":
    main()
