"""A worker process that builds, runs and checks candidates; started by ``pool.Worker``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller_tvm.measure import serving
from roller_tvm.measure.cold import Rotation
from roller_tvm.measure.machine import same_machine
from roller_tvm.measure.memory import Memory
from roller_tvm.measure.serving import Failed, last_line
from roller_tvm.measure.session import PACKED, PLAIN
from roller_tvm.measure.timing import Kernel, run_timed
from roller_tvm.relay import reference
from roller_tvm.relay.rewrites import as_tvm, cpu_code
from roller_tvm.tvm_env.pin import pin_calling_thread


@dataclass
class Task:
    dag: Any
    target: Any
    rewrite: bool
    inputs: list[np.ndarray] = field(default_factory=list)
    expected: list[np.ndarray] = field(default_factory=list)
    terms: int = 1
    built: dict[tuple[int, int], Any] = field(default_factory=dict)
    rotations: dict[tuple[int, ...], Rotation] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)


TASKS: dict[str, Task] = {}
SPILLED: list[int] = []  # bytes of local memory, of the kernels compiled last


def hello() -> int:
    """Import the modules for building, so that no candidate's time includes it; return the process id."""
    from roller_tvm.tvm_env import import_relay_tvm

    import_relay_tvm("measuring")
    from tvm import auto_scheduler, relay, te, topi  # noqa: F401

    return os.getpid()


def open_task(key: str, tensors: str, target: str, rewrite: bool) -> None:
    import tvm
    from tvm import auto_scheduler

    TASKS.clear()  # one task at a time: what is built for another is in the way
    if tvm.target.Target(target).kind.name == "cuda":
        _cuda_compiler()
    arrays = tvm.runtime._ffi_node_api.LoadJSON(tensors)
    TASKS[key] = Task(auto_scheduler.ComputeDAG(list(arrays)), tvm.target.Target(target), rewrite)


def _cuda_compiler() -> None:
    """Make TVM compile CUDA with the compiler found here; without one, only generate the source."""
    import tvm

    from roller_tvm.codegen import find_compilers
    from roller_tvm.relay.cuda import use_toolchain

    if find_compilers():
        use_toolchain(lambda kernels: SPILLED.extend(k.local_bytes for k in kernels.values() if k.spills))
    else:
        tvm.register_func("tvm_callback_cuda_compile", lambda code, target=None: "", override=True)


def device_present(kind: str) -> bool:
    """Return whether TVM finds a device for this kind of target here."""
    import tvm

    try:
        return bool(tvm.device(kind, 0).exist)
    except (ValueError, tvm.TVMError):
        return False


def close_task(key: str) -> None:
    TASKS.pop(key, None)


def make_reference(key: str, folder: str) -> float:
    """Compute the reference into the folder, from which all workers read it. Returns the seconds it took."""
    import tvm
    from tvm import te

    task, start = TASKS[key], time.perf_counter()
    tensors = list(task.dag.tensors)
    ins = [t for t in tensors if isinstance(t.op, te.PlaceholderOp)]
    outs = [t for t in tensors if not isinstance(t.op, te.PlaceholderOp)]
    host = task.target if task.target.kind.name == "llvm" else tvm.target.Target("llvm")
    with as_tvm():  # independent of what it is to judge
        module = tvm.build(reference.reference_schedule(outs), tensors, host)

    def compute(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        results = [tvm.nd.empty(reference.shape_of(t), t.dtype) for t in outs]
        module(*_arguments(tensors, [tvm.nd.array(a) for a in inputs], results))
        return [r.numpy() for r in results]

    inputs, expected = reference.reference_on(ins, compute)
    if any(e.size and np.issubdtype(e.dtype, np.floating) and np.isnan(e).all() for e in expected):
        raise Failed("run error", "a result is NaN everywhere on random inputs: a kernel that writes nothing agrees")
    for kind, arrays in (("in", inputs), ("out", expected)):
        for number, array in enumerate(arrays):
            np.save(os.path.join(folder, f"{kind}{number}.npy"), array)
    return time.perf_counter() - start


def load_reference(key: str, folder: str) -> None:
    task = TASKS[key]
    for kind, into in (("in", task.inputs), ("out", task.expected)):
        del into[:]
        while os.path.exists(path := os.path.join(folder, f"{kind}{len(into)}.npy")):
            into.append(np.load(path, mmap_mode="r"))
    task.terms = reference.reduction_terms(task.dag.ops)


def build(key: str, number: int, line: str, mode: int) -> float:
    """Build candidate `number` from its record line, as ``relay.build`` does. Returns the seconds it took."""
    import tvm
    from tvm.auto_scheduler.measure_record import load_record_from_string

    task, start = TASKS[key], time.perf_counter()
    try:
        state = load_record_from_string(line)[0].state
        if mode != PLAIN:
            _check_packing(task.dag, state)
        schedule, args = task.dag.apply_steps_from_state(state, layout_rewrite=mode)
    except Failed:
        raise
    except Exception as error:
        raise Failed("layout error" if mode else "schedule error", last_line(error)) from error
    try:
        with tvm.transform.PassContext(opt_level=3):
            module = tvm.build(schedule, list(args), task.target)
            if same_machine(task.target):
                module[module.entry_name]  # the code of an llvm module is generated at the first look-up
            else:
                module.get_source("asm")
    except Exception as error:
        raise Failed("build error", last_line(error)) from error
    task.built[number, mode] = (module, list(args))
    return time.perf_counter() - start


def build_alone(key: str, tensors: str, target: str, line: str) -> float:
    """Build a candidate of a task that is not open, and keep nothing. Returns the seconds it took.

    If there is a CUDA compiler, a kernel that spills registers to local memory fails too.
    """
    open_task(key, tensors, target, False)
    SPILLED.clear()
    try:
        seconds = build(key, 0, line, PLAIN)
    finally:
        close_task(key)
    if SPILLED:
        raise Failed("register spills", f"{max(SPILLED)} B of local memory a thread")
    return seconds


def build_default(key: str, number: int, text: str, mode: int) -> float:
    """Build TVM's own kernel of the task from lowered TIR. Returns the seconds it took."""
    import tvm
    from tvm import te

    task, start = TASKS[key], time.perf_counter()
    lowered = tvm.ir.load_json(text)
    (function,) = lowered.functions.values()
    inputs = {t.op.name: t for t in task.dag.tensors if isinstance(t.op, te.PlaceholderOp)}
    outputs = iter([t for t in task.dag.tensors if not isinstance(t.op, te.PlaceholderOp)])
    try:
        names = [function.buffer_map[p].name for p in function.params]
        args = [inputs[name] if name in inputs else next(outputs) for name in names]
        with tvm.transform.PassContext(opt_level=3):
            module = tvm.build(lowered, target=task.target)
            module[module.entry_name]
    except Exception as error:
        raise Failed("build error", last_line(error)) from error
    task.built[number, mode] = (module, args)
    return time.perf_counter() - start


def _check_packing(dag: Any, state: Any) -> None:
    """Fail if ``relay.build`` would repack a constant weight to another number of elements."""
    new = dag.rewrite_layout_from_state(state)
    for before, after in zip(dag.tensors, new.tensors, strict=True):
        old, packed = np.prod(reference.shape_of(before)), np.prod(reference.shape_of(after))
        if old != packed:
            raise Failed("layout error", f"'{before.op.name}' of {old} elements would become {packed}")


def run(key: str, number: int, mode: int, best: float, options: dict[str, Any]) -> dict[str, Any]:
    """Run a built candidate: check its result (unless its operands are packed), then time it.

    The weights named in `options` come from another copy in each run (see ``cold``) if reading them counts.

    Returns
    -------
    dict
        'repeats': seconds of each repeat; 'pruned'; 'wrong': why the result is not right, or ''.
    """
    import tvm
    from tvm import te

    task = TASKS[key]
    module, args = task.built[number, mode]
    device = tvm.device(task.target.kind.name, 0)
    ins = [t for t in args if isinstance(t.op, te.PlaceholderOp)]
    outs = [t for t in args if not isinstance(t.op, te.PlaceholderOp)]
    values = reference.make_inputs(ins) if mode == PACKED else task.inputs
    arguments = [
        task.memory.of(n, value, lambda kept: tvm.nd.array(kept, device))
        for n, value in enumerate(_arguments(args, values, [_poison(t) for t in outs]))
    ]
    results = [a for a, t in zip(arguments, args, strict=True) if not isinstance(t.op, te.PlaceholderOp)]
    function = module[module.entry_name]
    try:
        function(*arguments)
        device.sync()
        if device.device_type == tvm.cpu().device_type:
            pin_calling_thread()
        wrong = ""
        if mode != PACKED:
            for result, expected in zip(results, task.expected, strict=True):
                wrong = wrong or reference.difference(result.numpy(), expected, task.terms)
        if wrong or not options:
            return {"repeats": [], "pruned": False, "wrong": wrong}
        where = tuple(n for n, t in enumerate(args) if t.op.name in options.get("weights", ()))
        nothing = tvm.get_global_func("testing.nop", allow_missing=True)

        def evaluate(number: int, repeat: int) -> Any:
            return module.time_evaluator(module.entry_name, device, number=number, repeat=repeat)(*arguments).results

        kernel = Kernel(function, arguments, device.sync, evaluate, where, nothing)
        return run_timed(kernel, best, options, task.rotations, tvm.nd.array)
    except tvm.TVMError as error:
        raise Failed("run error", last_line(error)) from error


def _poison(tensor: Any) -> np.ndarray:
    """Return the initial value of an output, NaN or 77: elements that a kernel does not write become visible."""
    shape, dtype = reference.shape_of(tensor), str(tensor.dtype)
    return np.full(shape, np.nan if dtype.startswith(("float", "bfloat")) else 77).astype(dtype)


def _arguments(tensors: list[Any], inputs: list[Any], outputs: list[Any]) -> list[Any]:
    from tvm import te

    ins, outs = iter(inputs), iter(outputs)
    return [next(ins) if isinstance(t.op, te.PlaceholderOp) else next(outs) for t in tensors]


FUNCTIONS = {
    f.__name__: f
    for f in (
        hello,
        device_present,
        open_task,
        close_task,
        make_reference,
        load_reference,
        build,
        build_default,
        build_alone,
        run,
    )
}


def main(functions: dict[str, Any] | None = None) -> None:
    with cpu_code():  # as ``build`` and our ApplyHistoryBest
        serving.main(functions or FUNCTIONS)


if __name__ == "__main__":
    main()
