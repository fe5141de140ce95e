"""Run one model in several implementations: build, compare with onnxruntime, time in turns, print one table."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.latency import in_turns
from roller_bench.running import TOLERANCE, Runnable, keep_inputs, relative_error
from roller_bench.task import timed as timed
from roller_bench.zoo import Prepared, find_model
from roller_tvm.errors import BadInput, WrongAnswer
from roller_tvm.folders import work_folder
from roller_tvm.models.importing import Model
from roller_tvm.models.line import Request, model_line
from roller_tvm.session import Session
from roller_tvm.tvm_env.locate import usable_line


@dataclass
class Variant:
    """One way to run a model, and the cost of preparing it."""

    name: str
    run: Callable[[], list[np.ndarray]]
    library: Path | None = None
    tune_s: float | None = None
    build_s: float | None = None
    times: list[float] = field(default_factory=list)
    error: float = 0.0

    @property
    def latency(self) -> float:
        return statistics.median(self.times)


def onnx_model(name: str, folder: Path) -> Prepared:
    """Return a model that onnxruntime runs too."""
    model = find_model(name, folder)
    if model.path.suffix != ".onnx":
        raise BadInput("is no ONNX model", name, "see 'roller-tvm compare --list', or give a file")
    return model


def onnxruntime_variant(model: Prepared, threads: int) -> Variant:
    """Return onnxruntime's session, also the reference; to be made before any thread is pinned."""
    import onnxruntime

    from roller_bench.peers_graph import open_onnxruntime

    run = open_onnxruntime(model.path, model.inputs, threads).outputs
    return Variant(f"onnxruntime {onnxruntime.__version__}", lambda: list(run()))


def tvm_variant(
    name: str, library: Path, model: Prepared, tune_s: float | None = None, build_s: float | None = None
) -> Variant:
    """Return a model built for the installed TVM, loaded from its file as a deployment does."""
    loaded = model_line(usable_line("running a model")).open(library)
    return Variant(name, lambda: list(loaded.run(model.inputs)), library, tune_s, build_s)


def by_roller(title: str, model: Model, output: Path, trials: int, target: str, work: Path) -> dict[str, Any]:
    """Build an imported model with the plans that measuring chose, with the first ones if `trials` is 1.

    Return the fields of ``results.Tuned``.
    """
    line = model_line(usable_line("building a model"))
    session = Session(line, Request(target)).take(title, model)
    found: dict[str, Any] = {"seconds": 0.0, "schedule": "planned while it is built"}
    if trials > 1:
        records = work / f"records.{trials}.{line.place}"
        shutil.rmtree(records, ignore_errors=True) if records.is_dir() else records.unlink(missing_ok=True)
        result, spent = timed(lambda: session.tune(trials, records))
        tasks = [t for t in result.tasks if t.task.weight]
        lost = sum(t.status == "fallback" for t in tasks)
        found = {"seconds": spent, "trials": sum(bool(o.repeats) for t in tasks for o in t.outcomes),
                 "schedule": f"{len(tasks)} operators",
                 "reason": f"TVM's own kernel for {lost} of {len(tasks)} operators" if lost else ""}  # fmt: skip
    file, build_s = timed(lambda: session.save(output))
    return {**found, "file": str(file), "build_s": build_s}


def compare(model: Prepared, variants: Sequence[Variant], expected: Sequence[np.ndarray]) -> None:
    """Compare every output with onnxruntime's; stop at the first wrong one.

    Raises
    ------
    WrongAnswer
    """
    for variant in variants:
        variant.error = relative_error(variant.run(), expected)
        if not variant.error <= TOLERANCE:
            what = f"{variant.name} differs from onnxruntime by {variant.error:.3g} (allowed {TOLERANCE:g})"
            raise WrongAnswer(what, model.title, "report it with the record file")


def measure(model: Prepared, variants: Sequence[Variant], threads: int, folder: Path, seconds: float) -> None:
    """Measure latencies, taken in turns by processes of their own (see ``latency``)."""
    inputs = folder / f"{model.path.stem}.inputs.npz"
    keep_inputs(model.inputs, inputs)
    own = [v for v in variants if v.library]
    reference, *times = latencies(model.path, [v.library for v in own if v.library], inputs, threads, seconds)
    for variant, taken in zip(own, times, strict=True):
        variant.times = taken
    for variant in variants:
        if not variant.library:
            variant.times = reference


def runnable(path: Path, inputs: Path, threads: int) -> Runnable:
    """Return an ONNX file to run by onnxruntime, or a library to run by the installed TVM."""
    opener = "running:open_built" if path.suffix == ".so" else "peers_graph:open_onnxruntime"
    return Runnable(f"roller_bench.{opener}", str(path), str(inputs), threads)


def latencies(model: Path, libraries: Sequence[Path], inputs: Path, threads: int, seconds: float) -> list[list[float]]:
    """Return the seconds of every run of onnxruntime and of each library, at least two blocks each."""
    with work_folder() as folder:
        files = [
            runnable(path, inputs, threads).write(Path(folder, f"{number}.json"))
            for number, path in enumerate((model, *libraries))
        ]
        return [[s for block in blocks for s in block] for blocks in in_turns(files, seconds)]


def table(results: Sequence[tuple[Prepared, Sequence[Variant]]], threads: int) -> str:
    """Return one table of everything; for each model, untuned TVM is first and onnxruntime last."""
    head = (f"{'model':<18} {'implementation':<20} {'tune s':>7} {'build s':>8} {'latency ms':>11} "
            f"{'untuned/this':>13} {'ort/this':>9} {'max error':>10}")  # fmt: skip
    told = (f"latency: median of runs in turns, {threads} threads each; ratios above 1 are faster; "
            "error relative to onnxruntime's largest output")  # fmt: skip
    lines = [told, "", head, "-" * len(head)]
    for model, variants in results:
        untuned, reference = variants[0].latency, variants[-1].latency
        for v in variants:
            tune_s = "-" if v.tune_s is None else f"{v.tune_s:.1f}"
            build_s = "-" if v.build_s is None else f"{v.build_s:.1f}"
            error = "-" if v is variants[-1] else f"{v.error:.1e}"
            lines.append(f"{model.title:<18} {v.name:<20} {tune_s:>7} {build_s:>8} {v.latency * 1e3:>11.2f} "
                         f"{untuned / v.latency:>12.2f}x {reference / v.latency:>8.2f}x {error:>10}")  # fmt: skip
        lines.append("")
    return "\n".join(lines)
