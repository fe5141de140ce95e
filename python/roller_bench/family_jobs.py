"""One family of models in a process of its own: built through each path and compared, or opened in a runtime."""

from __future__ import annotations

import copy
import re
import resource
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench import peers_graph
from roller_bench.families import find
from roller_bench.peers_graph import session_of
from roller_bench.running import Arrays, Runnable, Running, keep_inputs, open_built
from roller_bench.torch_running import arrays_of, opened_module
from roller_tvm.errors import MeasureError, RollerError, UnsupportedOperator, last_line

EXPORT, ONNX = "export", "onnx"
#: From a torch module to a built model.
PATHS = (EXPORT, ONNX)
EAGER, INDUCTOR, ONNXRUNTIME = "torch", "torch.compile", "onnxruntime"
#: Largest difference from torch's answer, over how far torch's answers to two inputs are apart.
TOLERANCE = 1e-3
#: Largest difference from torch's answer in float64, over that of torch's own answer in float32, where it is larger.
ROUNDING = 2.0


def stem(name: str) -> str:
    """Return a family's name as that of a file."""
    return name.replace(" ", "_").replace("/", "_")


def check(name: str, paths: Sequence[str], folder: str, memory_gib: int) -> dict[str, dict[str, Any]]:
    """Build a family through each path, keep the models, compare two answers with torch's; return path -> outcome."""
    import torch

    resource.setrlimit(resource.RLIMIT_DATA, (memory_gib << 30, memory_gib << 30))
    module, samples = find([name])[0].make()
    with torch.no_grad():
        wanted = [arrays_of(module(*sample)) for sample in samples]
    place, found = Path(folder, stem(name)), {}
    keep_inputs({str(n): one.numpy() for n, one in enumerate(samples[0])}, place.with_suffix(".inputs.npz"))
    for path in paths:
        try:
            found[path] = {"status": "ok", "reason": "", **_built(path, module, samples, wanted, place)}
        except UnsupportedOperator as error:
            found[path] = {"status": "unsupported", "reason": error.what}
        except RollerError as error:
            found[path] = {"status": "failed", "reason": str(error)}
        except Exception as error:  # the model's own, of torch, TVM or us: the table tells it
            traceback.print_exc()
            found[path] = {"status": "failed", "reason": f"{type(error).__name__}: {last_line(error)}"}
    return found


def _built(
    path: str, module: Any, samples: list[tuple[Any, ...]], wanted: list[list[np.ndarray]], place: Path
) -> dict[str, Any]:
    """Build a module through a path and compare it."""
    import roller_tvm

    start, used = time.perf_counter(), time.process_time()
    if path == EXPORT:
        model = roller_tvm.compile(module, example_inputs=samples[0])
    else:
        model = roller_tvm.compile(_onnx(module, samples[0], place.with_suffix(".onnx")))
    told: dict[str, Any] = {"build_s": time.perf_counter() - start, "build_cpu_s": time.process_time() - used}
    answers = [model.run(_named(model, sample)) for sample in samples]
    error = largest(answers, wanted)
    if not error <= TOLERANCE:
        what = f"error {error:.2g} of how far two answers are apart (allowed {TOLERANCE:g})"
        if not np.isfinite(error):
            raise MeasureError(what, place.name)
        exact = in_float64(module, samples)
        ours, theirs = (largest(wide(found), exact) for found in (answers, wanted))
        if not rounded(ours, theirs):
            raise MeasureError(f"{what}; from float64 {ours:.2g}, torch in float32 {theirs:.2g}", place.name)
        told["from_float64"] = {"ours": ours, "torch": theirs}
    model.save(place.with_suffix(f".{path}.so"))
    plans = model.report().plans
    left = sorted({f"{plan.kernel}: {plan.reason}" for plan in plans if plan.how == "tvm"})
    return {"error": error, **told, "kernels": dict(Counter(p.how for p in plans)), "left": left,
            "notes": list(model.notes)}  # fmt: skip


def runnable(name: str, runtime: str, folder: Path, threads: int) -> Runnable:
    """Return what runs a family once in a runtime, after `check` kept its models."""
    place = Path(folder, stem(name))
    file = {EAGER: name, INDUCTOR: name, ONNXRUNTIME: str(place.with_suffix(".onnx"))}.get(runtime, "")
    opener = f"{__name__}:{OPENERS.get(runtime, 'open_ours')}"
    return Runnable(opener, file or f"{place}.{runtime}.so", str(place.with_suffix(".inputs.npz")), threads)


def open_ours(file: Path, inputs: Arrays, threads: int) -> Running:
    """Open a model built through either path."""
    import roller_tvm

    return open_built(file, _named(roller_tvm.load(file, threads=threads), list(inputs.values())), threads)


def open_onnxruntime(file: Path, inputs: Arrays, threads: int) -> Running:
    names = [value.name for value in session_of(file, threads).get_inputs()]
    return peers_graph.open_onnxruntime(file, dict(zip(names, inputs.values(), strict=True)), threads)


def open_torch(family: Path, _inputs: Arrays, threads: int, compiled: bool = False) -> Running:
    """Make a family's module again, by which its models were built, and run it as it is."""

    def made() -> tuple[Any, tuple[Any, ...]]:
        module, samples = find([str(family)])[0].make()
        return module, samples[0]

    return opened_module(made, threads, compiled)


def open_inductor(family: Path, inputs: Arrays, threads: int) -> Running:
    """Open a family's module compiled by torch, its weights frozen."""
    return open_torch(family, inputs, threads, compiled=True)


OPENERS = {EAGER: "open_torch", INDUCTOR: "open_inductor", ONNXRUNTIME: "open_onnxruntime"}


def _onnx(module: Any, sample: tuple[Any, ...], path: Path) -> Path:
    """Export a module to a file by torch's exporter."""
    import torch

    try:
        with torch.no_grad():
            torch.onnx.export(module, sample, dynamo=True, verbose=False).save(str(path))
    except Exception as error:  # the exporter raises whatever it meets
        words = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()  # the exporter writes in colours
        told = (words or type(error).__name__).splitlines()[0]
        raise UnsupportedOperator(f"torch.onnx.export cannot take it: {told}", path.name) from error
    return path


def _named(model: Any, sample: Sequence[Any]) -> dict[str, Any]:
    arrays = [one if isinstance(one, np.ndarray) else one.numpy() for one in sample]
    return dict(zip(model.inputs, arrays, strict=True))


def in_float64(module: Any, samples: Sequence[tuple[Any, ...]]) -> list[list[np.ndarray]]:
    """Return the answers of a module computed in float64."""
    import torch

    exact = copy.deepcopy(module).double()
    with torch.no_grad():
        return [arrays_of(exact(*(one.double() if one.is_floating_point() else one for one in s))) for s in samples]


def wide(answers: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """Return answers with numbers in float64."""
    return [[np.asarray(a, np.float64 if np.issubdtype(np.asarray(a).dtype, np.inexact) else None) for a in answer]
            for answer in answers]  # fmt: skip


def rounded(ours: float, theirs: float) -> bool:
    """Return True if an answer differs from torch's in float64 no more than rounding explains.

    Parameters
    ----------
    ours, theirs : float
        Differences (see `difference`) of our answer and of torch's in float32.

    Examples
    --------
    >>> rounded(0.0009, 1e-6), rounded(0.0023, 0.0014), rounded(0.0023, 0.0011)
    (True, True, False)
    """
    return ours <= max(TOLERANCE, ROUNDING * theirs if np.isfinite(theirs) else 0.0)


def largest(answers: Sequence[Sequence[Any]], right: Sequence[Sequence[np.ndarray]]) -> float:
    """Return the largest difference of the answers to two inputs."""
    return max(difference(got, one, right) for got, one in zip(answers, right, strict=True))


def difference(got: Sequence[Any], right: Sequence[np.ndarray], both: Sequence[Sequence[np.ndarray]]) -> float:
    """Return the largest difference of an answer, over how far the answers to two inputs are apart.

    A random network may answer nearly the same to any input: what an early layer got wrong is small beside its answer.

    Parameters
    ----------
    got, right : sequence of array
    both : two sequences of array
        The right answers to two inputs.

    Examples
    --------
    >>> zero, half, one = ([np.array([value])] for value in (0.0, 0.5, 1.0))
    >>> difference(half, one, [zero, one])
    0.5
    """
    if [(np.shape(a), str(a.dtype)) for a in got] != [(a.shape, str(a.dtype)) for a in right]:
        return float("inf")
    worst = 0.0
    for one, other, first, second in zip(got, right, *both, strict=True):
        if not np.issubdtype(other.dtype, np.inexact):
            worst = max(worst, 0.0 if np.array_equal(one, other) else float("inf"))
            continue
        apart = float(np.abs(first.astype(np.float64) - second).max(initial=0.0))
        error = float(np.abs(np.asarray(one, np.float64) - other).max(initial=0.0))
        if not (apart > 0 and np.isfinite(error)):
            return float("inf")
        worst = max(worst, error / apart)
    return worst
