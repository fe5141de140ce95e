"""LSTM, GRU and RNN of whole models beside onnxruntime's and torch's, on both lines at once."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import LEFT, append_lines, names, read_lines
from roller_bench.latency import medians_in_turns
from roller_bench.machine import cpu_kind
from roller_bench.running import Arrays, Runnable, Running, keep_inputs, relative_error
from roller_bench.torch_running import opened_module
from roller_tvm.device import cpu_device
from roller_tvm.errors import UnsupportedOperator, WrongAnswer
from roller_tvm.stats import geomean

#: Seconds in which the implementations of a shape take turns.
SECONDS = 2.0
#: Files of a shape's folder beside its models.
MODEL, INPUTS, WEIGHTS, KNOWN = "model.onnx", "inputs.npz", "weights.npz", ".runnable.json"
#: Of the reference's largest magnitude.
TOLERANCE = 1e-4
#: Place among ONNX's gates of each of torch's.
ORDER = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}


@dataclass(frozen=True)
class Shape:
    """Layers of a kind one on the other; the first one reads as many features as a layer has units."""

    kind: str
    layers: int
    batch: int
    hidden: int
    steps: int
    ways: int = 1

    def __str__(self) -> str:
        both = " both ways" if self.ways == 2 else ""
        return f"{self.kind} {self.layers}x{self.hidden}{both}, batch {self.batch}, {self.steps} steps"

    @property
    def folder(self) -> str:
        return "-".join(str(value).lower() for value in asdict(self).values())


SHAPES = (
    Shape("LSTM", 1, 1, 128, 100), Shape("LSTM", 2, 1, 256, 100, ways=2), Shape("LSTM", 1, 1, 1024, 10),
    Shape("LSTM", 4, 8, 512, 20), Shape("LSTM", 2, 8, 1024, 10), Shape("LSTM", 1, 8, 128, 500),
    Shape("GRU", 4, 1, 128, 500), Shape("GRU", 2, 8, 256, 100, ways=2), Shape("GRU", 1, 1, 512, 50),
    Shape("RNN", 2, 8, 512, 100),
)  # fmt: skip


def recurrences(parser: argparse.ArgumentParser) -> None:
    """Time ten recurrent networks: ours on each line, onnxruntime, and torch where it is installed.

        .venv/relax/bin/python -m roller_bench recurrences --build         # ours, onnxruntime
        .venv/relay/bin/python -m roller_bench recurrences --build         # ours
        .venv/torch/bin/python -m roller_bench recurrences --build         # torch
        .venv/relax/bin/python -m roller_bench recurrences --seconds 100   # time them all; again: goes on

    Each implementation runs in a process of its own, by the interpreter that built it, in turns; medians of the rounds.
    Answers are compared with onnxruntime's. Prints each shape, with the kind of CPU, then geometric means and extremes.
    """
    parser.add_argument("--folder", type=Path, default=Path("build/recurrences"), help="folder; default %(default)s")
    parser.add_argument("--shapes", type=names, help="only these, by number from 1, with commas")
    parser.add_argument("--build", action="store_true", help="build what this environment has, time nothing")
    parser.add_argument("--rebuild", action="store_true", help="build it anew")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no new shape after this time")
    parser.add_argument("--again", action="store_true", help="forget earlier times of these shapes")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    begun = time.monotonic()
    shapes = [SHAPES[int(number) - 1] for number in args.shapes] if args.shapes else list(SHAPES)
    if args.build or args.rebuild:
        for shape in shapes:
            build(shape, args.folder / shape.folder, args.rebuild)
        return 0
    device, file = cpu_device(), args.folder / "times.jsonl"
    kind = cpu_kind(device)
    known = {Shape(**row["shape"]): row for row in read_lines(file) if row["cpu"] == kind}
    left = [shape for shape in shapes if args.again or shape not in known]

    def timed() -> Iterator[dict[str, Any]]:
        for shape in left:
            if time.monotonic() - begun < args.seconds:
                yield {"shape": asdict(shape), "cpu": kind, "seconds": _times(args.folder / shape.folder, device.units)}

    for row in append_lines(file, timed()):
        known[Shape(**row["shape"])] = row
    print(table({shape: known[shape]["seconds"] for shape in shapes if shape in known}))
    print(kind)
    return LEFT if any(shape not in known for shape in shapes) else 0


def build(shape: Shape, folder: Path, anew: bool) -> None:
    """Write a shape's model, and build it by what is installed here."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / INPUTS).is_file():
        _write_model(shape, folder)
    for name, make in _makers().items():
        known = folder / f"{name}{KNOWN}"
        if anew or not known.is_file():
            runnable = make(shape, folder)
            replace(runnable, python=sys.executable).write(known)


def _write_model(shape: Shape, folder: Path) -> None:
    import onnx
    from onnx import numpy_helper

    from roller_bench.recurrent_models import recurrent_model

    more: dict[str, Any] = {"linear_before_reset": 1} if shape.kind == "GRU" else {}  # as torch has it
    way = "bidirectional" if shape.ways == 2 else "forward"
    model, inputs = recurrent_model(shape.kind, shape.steps, shape.batch, shape.hidden, shape.hidden, way,
                                    shape.layers, **more)  # fmt: skip
    onnx.save(model, str(folder / MODEL))
    np.savez(folder / WEIGHTS, **{tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer})
    keep_inputs(inputs, folder / INPUTS)


def _makers() -> dict[str, Any]:
    """Return what this environment can build with: name -> function of a shape and its folder."""
    from roller_tvm.tvm_env import line

    made: dict[str, Any] = {}
    if importlib.util.find_spec("onnxruntime"):
        made["onnxruntime"] = _onnxruntime
    if importlib.util.find_spec("torch"):
        made["torch"] = _torch
    elif (here := line()) is not None:  # the environment with torch has a TVM too
        made[f"ours ({here})"] = _ours
    return made


def _ours(_shape: Shape, folder: Path) -> Runnable:
    import roller_tvm
    from roller_tvm.tvm_env import line

    path = folder / ("relay.tar" if line() == "relay" else "relax.so")
    roller_tvm.compile(folder / MODEL).save(path)
    return _runnable("roller_bench.running:open_built", path)


def _onnxruntime(_shape: Shape, folder: Path) -> Runnable:
    return _runnable("roller_bench.peers_graph:open_onnxruntime", folder / MODEL)


def _torch(shape: Shape, folder: Path) -> Runnable:
    (folder / "shape.json").write_text(json.dumps(asdict(shape)))
    return _runnable(f"{__name__}:open_torch", folder / "shape.json")


def _runnable(opener: str, file: Path) -> Runnable:
    return Runnable(opener, str(file.resolve()), str((file.parent / INPUTS).resolve()), cpu_device().units)


def open_torch(file: Path, inputs: Arrays, threads: int) -> Running:
    """Open torch's module of a shape, with the model's weights; its outputs are in ONNX's order."""
    shape = Shape(**json.loads(file.read_text()))

    def made() -> tuple[Any, list[Any]]:
        import torch

        module = getattr(torch.nn, shape.kind)(shape.hidden, shape.hidden, shape.layers, bidirectional=shape.ways == 2)
        with np.load(file.with_name(WEIGHTS)) as weights:
            module.load_state_dict({name: torch.from_numpy(array) for name, array in _of_torch(shape, weights)})
        return module.eval(), [torch.from_numpy(inputs["X"])]

    def arrays(result: Any) -> list[np.ndarray]:
        y, states = result
        last = states if isinstance(states, tuple) else (states,)
        y = y.reshape(shape.steps, shape.batch, shape.ways, shape.hidden).transpose(1, 2)
        return [one.numpy() for one in (y, *(state[-shape.ways :] for state in last))]

    return opened_module(made, threads, arrays=arrays)


def _of_torch(shape: Shape, weights: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield torch's parameters, given ONNX's."""
    order = ORDER[shape.kind]

    def ordered(array: np.ndarray) -> np.ndarray:
        parts = np.split(array, len(order))
        return np.concatenate([parts[at] for at in order])

    for layer in range(shape.layers):
        for way in range(shape.ways):
            place = f"l{layer}{'_reverse' * way}"
            inputs, states = np.split(weights[f"B{layer}"][way], 2)
            yield f"weight_ih_{place}", ordered(weights[f"W{layer}"][way])
            yield f"weight_hh_{place}", ordered(weights[f"R{layer}"][way])
            yield f"bias_ih_{place}", ordered(inputs)
            yield f"bias_hh_{place}", ordered(states)


def _times(folder: Path, threads: int) -> dict[str, float]:
    """Return the median seconds of every implementation of a shape."""
    asked = {path.name.removesuffix(KNOWN): replace(Runnable.read(path), threads=threads)
             for path in sorted(folder.glob(f"*{KNOWN}"))}  # fmt: skip
    if "onnxruntime" not in asked or len(asked) < 2:
        raise UnsupportedOperator("there is nothing to compare", str(folder), "run it with --build first")
    taken, outputs = medians_in_turns(asked, SECONDS)
    for name, found in outputs.items():
        if not (error := relative_error(found, outputs["onnxruntime"])) <= TOLERANCE:
            raise WrongAnswer(f"{name} is wrong by {error:.1e} of the largest element", str(folder))
    return taken


def table(rows: Mapping[Shape, Mapping[str, float]]) -> str:
    """Return a line a shape, and geometric means with the extremes of each pair.

    Examples
    --------
    >>> print(table({Shape("GRU", 1, 8, 128, 10): {"ours (relax)": 1e-3, "onnxruntime": 2e-3}}))
    GRU 1x128, batch 8, 10 steps: ours (relax) 1.000 ms, of onnxruntime 2.00
    ours (relax) of onnxruntime: 1 shapes, geometric mean 2.00, least 2.00
    """
    lines: list[str] = []
    pairs: dict[str, list[float]] = {}
    for shape, seconds in rows.items():
        told = []
        for ours in (name for name in seconds if name.startswith("ours")):
            told.append(f"{ours} {seconds[ours] * 1e3:.3f} ms")
            for peer in (name for name in seconds if not name.startswith("ours")):
                ratio = seconds[peer] / seconds[ours]
                told.append(f"of {peer} {ratio:.2f}")
                pairs.setdefault(f"{ours} of {peer}", []).append(ratio)
        lines.append(f"{shape}: {', '.join(told)}")
    for name, found in pairs.items():
        lines.append(f"{name}: {len(found)} shapes, geometric mean {geomean(found):.2f}, least {min(found):.2f}")
    return "\n".join(lines)
