"""One family of models in a process of its own: built through each path and compared, or opened in a runtime."""

from __future__ import annotations

import os
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
from roller_tvm.errors import MeasureError, RollerError, UnsupportedOperator, last_line

EXPORT, ONNX = "export", "onnx"
#: From a torch module to a built model.
PATHS = (EXPORT, ONNX)
EAGER, INDUCTOR, ONNXRUNTIME = "torch", "torch.compile", "onnxruntime"
#: Largest difference from torch's answer, over how far torch's answers to two inputs are apart.
TOLERANCE = 1e-3


def stem(name: str) -> str:
    """Return a family's name as that of a file."""
    return name.replace(" ", "_").replace("/", "_")


def check(name: str, paths: Sequence[str], folder: str, memory_gib: int) -> dict[str, dict[str, Any]]:
    """Build a family through each path, keep the models, compare two answers with torch's; return path -> outcome."""
    import torch

    resource.setrlimit(resource.RLIMIT_DATA, (memory_gib << 30, memory_gib << 30))
    module, samples = find([name])[0].make()
    with torch.no_grad():
        wanted = [_arrays(module(*sample)) for sample in samples]
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
    told = {"build_s": time.perf_counter() - start, "build_cpu_s": time.process_time() - used}
    answers = [model.run(_named(model, sample)) for sample in samples]
    error = max(difference(got, right, wanted) for got, right in zip(answers, wanted, strict=True))
    if not error <= TOLERANCE:
        raise MeasureError(f"error {error:.2g} of how far two answers are apart (allowed {TOLERANCE:g})", place.name)
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
    os.environ.setdefault("OMP_PROC_BIND", "true")  # read when torch is loaded
    import torch

    torch.set_num_threads(threads)
    module, samples = find([str(family)])[0].make()
    if compiled:
        module = torch.compile(module)

    def run() -> Any:
        with torch.no_grad():
            return module(*samples[0])

    return Running(run, lambda: _arrays(run()))


def open_inductor(family: Path, inputs: Arrays, threads: int) -> Running:
    """Open a family's module compiled by torch, its weights frozen."""
    import torch._inductor.config

    torch._inductor.config.freezing = True
    return open_torch(family, inputs, threads, compiled=True)


OPENERS = {EAGER: "open_torch", INDUCTOR: "open_inductor", ONNXRUNTIME: "open_onnxruntime"}


def _onnx(module: Any, sample: tuple[Any, ...], path: Path) -> Path:
    """Export a module to a file by torch's exporter."""
    import torch

    try:
        with torch.no_grad():
            torch.onnx.export(module, sample, dynamo=True, verbose=False).save(str(path))
    except Exception as error:  # the exporter raises whatever it meets
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnsupportedOperator(f"torch.onnx.export cannot take it: {told}", path.name) from error
    return path


def _named(model: Any, sample: Sequence[Any]) -> dict[str, Any]:
    arrays = [one if isinstance(one, np.ndarray) else one.numpy() for one in sample]
    return dict(zip(model.inputs, arrays, strict=True))


def _arrays(result: Any) -> list[np.ndarray]:
    return [one.numpy() for one in (result if isinstance(result, tuple) else (result,))]


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
