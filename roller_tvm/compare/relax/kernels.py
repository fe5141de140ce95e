"""Kernels of the Relax line as files: replayed from a record, checked, and opened again for timing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roller_tvm.compare.keeping import keep_folder, keep_kernel, why_not_run, why_wrong_now
from roller_tvm.compare.turns import Timer, random_arguments
from roller_tvm.tuning.timing import Memory


def kernel_file(folder: Path, key: str, record: str, ours: bool = False) -> Path:
    """Return the path of a record's kernel; Roller's build and TVM's build of one record have different paths."""
    built = key + record + "stack, ahead" * ours
    return folder / f"{hashlib.sha256(built.encode()).hexdigest()[:16]}.so"


def build_record(
    key: str, mod: str, target: Any, constants: Sequence[int], record: str, folder: Path, ours: bool
) -> Path:
    """Build and check a record's kernel; return its path. Beside it go its arguments' shapes and its fault, if any.

    Parameters
    ----------
    key : str
        Key of the task.
    mod : str
        Module of the task as JSON.
    constants : sequence of int
        Positions of parameters that are passed packed if the record packs them.
    record : str
        Record of the schedule; '' for the module as it is.
    folder : Path
        Folder of the kernels and references.
    ours : bool
        True to build as Roller's pipeline does, False as TVM's does (see ``relax.rewrites``).
    """
    from roller_tvm.tuning import worker
    from roller_tvm.tuning.session import PACKED, PLAIN

    path = kernel_file(folder, key, record, ours)
    if path.exists():
        return path
    open_reference(key, mod, target, constants, folder)
    if not record:  # TVM's own kernel
        return build_module(key, mod, path, ours)
    workload: Any = worker.TASKS[key].workload
    workload.ours = ours
    seconds = worker.build(key, 0, record, PLAIN)  # what its user waits for: a second one finds TVM warm
    wrong = why_wrong_now(worker, key, PLAIN)
    worker.build(key, 1, record, PACKED)
    return _export(key, 1, PACKED, path, wrong, seconds)


def build_module(key: str, mod: str, path: Path, ours: bool = False) -> Path:
    """Build and check a module as it is, whose reference is open; return the kernel's path."""
    from roller_tvm.tuning import worker
    from roller_tvm.tuning.session import PLAIN

    workload: Any = worker.TASKS[key].workload
    workload.ours = ours
    seconds = worker.build_default(key, 0, mod, PLAIN)
    return _export(key, 0, PLAIN, path, why_wrong_now(worker, key, PLAIN), seconds)


def open_reference(key: str, mod: str, target: Any, constants: Sequence[int], folder: Path) -> None:
    """Open a task in this process with its reference answers."""
    from roller_tvm.tuning import worker

    if key in worker.TASKS:
        return
    make_reference(key, mod, target, constants, folder / key)
    worker.load_reference(key, str(folder / key))


def make_reference(key: str, mod: str, target: Any, constants: Sequence[int], reference: Path) -> None:
    """Open a task in this process, and fill a folder with its reference answers unless it exists."""
    from roller_tvm.tuning import worker

    worker.open_task(key, mod, str(target), constants)
    keep_folder(reference, lambda part: worker.make_reference(key, part))


def _export(key: str, number: int, mode: int, path: Path, wrong: str, build_s: float) -> Path:
    from roller_tvm.tuning import worker

    built = worker.TASKS[key].built[number, mode]
    shapes = [([int(e) for e in b.shape], str(b.dtype)) for b in built.tensors]
    told = {"wrong": wrong, "build_s": build_s, "args": shapes, "unrun": why_not_run(worker, key)}
    return keep_kernel(path, built.module.export_library, told)


def open_timers(paths: Sequence[Path], target: str = "llvm") -> list[Timer]:
    """Open kernels that compute the same as timers, on random arguments."""
    import tvm

    kind = target.split()[0] if not target.lstrip().startswith("{") else json.loads(target)["kind"]
    device = tvm.device("cpu" if kind in ("llvm", "c") else kind, 0)
    memory = Memory()
    return [_timer(path, device, memory) for path in paths]


def _timer(path: Path, device: Any, memory: Memory) -> Timer:
    import tvm

    module = tvm.runtime.load_module(str(path))
    shapes = json.loads(path.with_suffix(".json").read_text())["args"]
    args = random_arguments(shapes, memory, lambda values: tvm.runtime.tensor(values, device))
    function = module["main"]

    def once() -> None:
        function(*args)
        device.sync()

    def evaluate(number: int, times: int) -> Sequence[float]:
        return [float(s) for s in module.time_evaluator("main", device, number=number, repeat=times)(*args).results]

    return Timer(once, evaluate)
