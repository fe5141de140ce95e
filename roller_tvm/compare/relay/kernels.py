"""Kernels of the Relay line as files: built from a record or a schedule, checked, and opened again for timing."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roller_tvm.compare.keeping import keep_folder, keep_kernel, why_not_run, why_wrong_now
from roller_tvm.compare.turns import Timer, random_arguments
from roller_tvm.tuning.timing import Memory


def kernel_file(folder: Path, text: str) -> Path:
    """Return the path of a record's kernel; Roller's build and TVM's build of one record have different paths."""
    from roller_tvm.relay.rewrites import EdgeVectors, PrefetchPanels, StackTiles, WideIndices

    ways = {"64": WideIndices, "stack": StackTiles, "ahead": PrefetchPanels, "edge": EdgeVectors}
    built = text + "".join(word for word, way in ways.items() if way.active())
    return folder / f"{hashlib.sha256(built.encode()).hexdigest()[:16]}.so"


def build_record(key: str, dag: Any, target: Any, packs: bool, line: str, folder: Path, name: str = "") -> Path:
    """Build and check a record's kernel; return its path. Beside it go its arguments' shapes and its fault, if any.

    Parameters
    ----------
    key : str
        Key of the workload.
    dag : ComputeDAG
    packs : bool
        True if ``relay.build`` would repack a weight for the kernel, which then takes it packed.
    line : str
        Record of the schedule.
    folder : Path
        Folder of the kernels and references.
    name : str
        Text that the file's name is a digest of. Default: the record.
    """
    from roller_tvm.tuning import session, worker

    path = kernel_file(folder, name or line)
    if path.exists():
        return path
    _open(key, dag, target, folder)
    check, kept = (session.CHECK, session.PACKED) if packs else (session.PLAIN, session.PLAIN)
    seconds = worker.build(key, 0, line, check)  # what its user waits for: a second one finds TVM warm
    wrong = why_wrong_now(worker, key, check)
    worker.build(key, 1, line, kept)
    return _export(key, 1, kept, path, wrong, seconds)


def build_default(key: str, dag: Any, target: Any, lowered: str, folder: Path) -> Path:
    """Build and check TVM's own kernel, given as lowered TIR; return its path."""
    from roller_tvm.tuning import worker
    from roller_tvm.tuning.session import PLAIN

    path = kernel_file(folder, key + lowered)
    _open(key, dag, target, folder)
    seconds = worker.build_default(key, 0, lowered, PLAIN)
    wrong = why_wrong_now(worker, key, PLAIN)
    return _export(key, 0, PLAIN, path, wrong, seconds)


def build_schedule(key: str, schedule: Any, args: Sequence[Any], target: Any, name: str, folder: Path) -> Path:
    """Build a ``te.Schedule`` of `args`, checked against TVM's default schedule of the same; return its path."""
    import tvm
    from tvm import auto_scheduler, te

    from roller_tvm.tuning import worker
    from roller_tvm.tuning.line import Built
    from roller_tvm.tuning.session import PLAIN

    path = kernel_file(folder, name)
    _open(key, auto_scheduler.ComputeDAG(list(args)), target, folder)
    start = time.perf_counter()
    with target, tvm.transform.PassContext(opt_level=3):
        module = tvm.build(schedule, list(args), target)
    seconds = time.perf_counter() - start
    outputs = tuple(n for n, t in enumerate(args) if not isinstance(t.op, te.PlaceholderOp))
    worker.TASKS[key].built[0, PLAIN] = Built(module, module.entry_name, list(args), outputs)
    wrong = why_wrong_now(worker, key, PLAIN)
    return _export(key, 0, PLAIN, path, wrong, seconds)


def _open(key: str, dag: Any, target: Any, folder: Path) -> None:
    from tvm.runtime._ffi_node_api import SaveJSON

    from roller_tvm.tuning import worker

    if key in worker.TASKS:
        return
    reference = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
    worker.open_task(key, str(SaveJSON(dag.tensors)), str(target))
    keep_folder(reference, lambda part: worker.make_reference(key, part))
    worker.load_reference(key, str(reference))


def _export(key: str, number: int, mode: int, path: Path, wrong: str, build_s: float) -> Path:
    from roller_tvm.tuning import worker

    built = worker.TASKS[key].built[number, mode]
    shapes = [([int(e) for e in t.shape], str(t.dtype)) for t in built.tensors]
    told = {"wrong": wrong, "build_s": build_s, "args": shapes, "unrun": why_not_run(worker, key)}
    return keep_kernel(path, built.module.export_library, told)


def open_timers(paths: Sequence[Path], target: str = "llvm") -> list[Timer]:
    """Open kernels that compute the same as timers, on random arguments."""
    import tvm

    device = tvm.device(tvm.target.Target(target).kind.name, 0)
    memory = Memory()
    return [_timer(path, device, memory) for path in paths]


def _timer(path: Path, device: Any, memory: Memory) -> Timer:
    import tvm

    module = tvm.runtime.load_module(str(path))
    shapes = json.loads(path.with_suffix(".json").read_text())["args"]
    args = random_arguments(shapes, memory, lambda values: tvm.nd.array(values, device))
    function = module[module.entry_name]

    def once() -> None:
        function(*args)
        device.sync()

    def evaluate(number: int, times: int) -> Sequence[float]:
        return list(module.time_evaluator(module.entry_name, device, number=number, repeat=times)(*args).results)

    return Timer(once, evaluate)
