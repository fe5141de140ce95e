"""A whole model in one implementation: described by a file, opened, run, and compared with a reference."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.errors import MeasureError
from roller_tvm.folders import beside
from roller_tvm.models.line import Request, model_line
from roller_tvm.session import Session
from roller_tvm.tvm_env import set_threads
from roller_tvm.tvm_env.locate import usable_line
from roller_tvm.tvm_env.pin import pin_calling_thread

#: Largest error allowed, relative to the largest magnitude of the reference's output.
TOLERANCE = 1e-3
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Runnable:
    """A model that can be run.

    Parameters
    ----------
    opener : str
        Function of (file, inputs, threads) that returns a `Running`, as "module:name".
    file : str
        File to open.
    inputs : str
        File written by `keep_inputs`.
    threads : int
    python : str
        Interpreter to run it by, with an environment of its own; by default this one's.
    """

    opener: str
    file: str
    inputs: str
    threads: int
    python: str = ""

    def write(self, path: Path) -> Path:
        """Write the description to a file, and return its path."""
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> Runnable:
        return cls(**json.loads(path.read_text()))

    def open(self) -> Running:
        """Open the model in this process, ready to run."""
        module, _, name = self.opener.partition(":")
        opened = getattr(importlib.import_module(module), name)
        running: Running = opened(Path(self.file), read_inputs(Path(self.inputs)), self.threads)
        return running


@dataclass(frozen=True)
class Running:
    """An open model.

    Parameters
    ----------
    run : function
        Runs the model once; this is timed.
    outputs : function
        Runs the model and returns its outputs as arrays.
    """

    run: Callable[[], object]
    outputs: Callable[[], Sequence[np.ndarray]]


def open_built(file: Path, inputs: Arrays, threads: int) -> Running:
    """Open a model built for the TVM that is here; its inputs are set once, and the calling thread is pinned."""
    set_threads(threads)
    model: Any = model_line(usable_line("running a built model")).open(file)
    if hasattr(model, "module"):  # the graph executor of the Relay line
        run: Callable[[], object] = model.module.run
        model.run(inputs)
    else:
        run = partial(model.machine.invoke_stateful, "main")
        model.machine.set_input("main", *model.arguments(inputs))
        run()
    pin_calling_thread()  # now that the pool exists
    return Running(run, lambda: model.run(inputs))


def relative_error(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Return the largest difference over the largest magnitude, of the worst output; integers must be equal.

    Examples
    --------
    >>> relative_error([np.array([1.0, 2.0])], [np.array([1.0, 4.0])])
    0.5
    >>> relative_error([np.array([999])], [np.array([1000])])
    inf
    """
    if len(outputs) != len(expected) or any(g.shape != e.shape for g, e in zip(outputs, expected, strict=True)):
        return float("inf")
    worst, least = 0.0, float(np.finfo(np.float32).tiny)
    for got, right in zip(outputs, expected, strict=True):
        if not np.issubdtype(right.dtype, np.inexact):
            worst = worst if np.array_equal(got, right) else float("inf")
            continue
        apart = got != right  # what is equal may be infinite
        if not apart.any():
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            error = float(np.abs(got[apart].astype(np.float64) - right[apart]).max())
        error /= max(float(np.abs(right[np.isfinite(right)]).max(initial=0.0)), least)
        worst = max(worst, error) if error == error else float("inf")
    return worst


def keep_inputs(inputs: Arrays, path: Path) -> None:
    """Write a model's inputs to an archive; an input may have any name, even an argument of numpy's ('file')."""
    np.savez(path, *inputs.values(), names=np.array(list(inputs), dtype=str))


def read_inputs(path: Path) -> dict[str, np.ndarray]:
    """Read the inputs that `keep_inputs` wrote, or a user's own archive of arrays by name.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "inputs.npz")
    >>> keep_inputs({"file": np.arange(2)}, path)
    >>> read_inputs(path)
    {'file': array([0, 1])}
    """
    with np.load(path) as arrays:
        if "names" not in arrays.files:
            return dict(arrays)
        return {str(name): arrays[f"arr_{n}"] for n, name in enumerate(arrays["names"])}


def keep_reference(outputs: Sequence[np.ndarray], path: Path) -> None:
    """Write the reference that other outputs are compared with.

    Raises
    ------
    MeasureError
        An output has no finite number, so that a model that computes nothing would agree with it.
    """
    for number, output in enumerate(outputs):
        if output.size and np.issubdtype(output.dtype, np.floating) and not np.isfinite(output).any():
            remedy = "give inputs on which the model computes numbers"
            raise MeasureError(f"output {number} has no finite number, so nothing can be compared", path.name, remedy)
    with beside(path) as part:
        np.savez(part, *outputs)


def checked(runnable: Runnable, reference: Path) -> tuple[float, str]:
    """Return the error of a model's outputs and the reason that they are wrong, or ''.

    Without a reference, the first outputs become it.
    """
    outputs = [np.asarray(a) for a in runnable.open().outputs()]
    if not reference.exists():
        keep_reference(outputs, reference)
        return 0.0, ""
    with np.load(reference) as arrays:
        expected = [arrays[name] for name in arrays.files]
    error = relative_error(outputs, expected)
    told = f"error {error:.2g} of the largest output (allowed {TOLERANCE:g})"
    return error, "" if error <= TOLERANCE else told


def found(runnable: Runnable, path: Path, folder: Path, reference: Path, **told: Any) -> dict[str, Any]:
    """Run and check a built model; return the fields of ``results.Tuned``."""
    runnable.write(path)
    error, wrong = checked(runnable, reference)
    reason = told.pop("reason", "")
    return {
        "status": "wrong answer" if wrong else "ok", "reason": wrong or reason, "error": error,
        "kernel": path.relative_to(folder).as_posix(), **told,
    }  # fmt: skip


def by_roller(title: str, model: Any, output: Path, trials: int, target: str, work: Path) -> dict[str, Any]:
    """Build an imported model with the plans that measuring chose, with the first ones if `trials` is 1.

    Return the fields of ``results.Tuned``.
    """
    line = model_line(usable_line("building a model"))
    session = Session(line, Request(target)).take(title, model)
    found: dict[str, Any] = {"seconds": 0.0, "schedule": "planned while it is built"}
    if trials > 1:
        records = work / f"records.{trials}.{line.place}"
        shutil.rmtree(records, ignore_errors=True) if records.is_dir() else records.unlink(missing_ok=True)
        begun = time.perf_counter()
        result = session.tune(trials, records)
        spent = time.perf_counter() - begun
        tasks = [t for t in result.tasks if t.task.weight]
        lost = sum(t.status == "fallback" for t in tasks)
        found = {"seconds": spent, "trials": sum(bool(o.repeats) for t in tasks for o in t.outcomes),
                 "schedule": f"{len(tasks)} operators",
                 "reason": f"TVM's own kernel for {lost} of {len(tasks)} operators" if lost else ""}  # fmt: skip
    begun = time.perf_counter()
    return {**found, "file": str(session.save(output)), "build_s": time.perf_counter() - begun}
