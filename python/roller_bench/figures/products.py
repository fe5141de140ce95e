"""Single operators beside onnxruntime's and torch's, and beside the FMA peak or the memory's rate."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from roller_bench.figures import LEFT, append_lines, names, read_lines
from roller_bench.latency import medians_in_turns
from roller_bench.machine import commit, cpu_kind
from roller_bench.running import Runnable, keep_inputs, relative_error
from roller_bench.singles import INPUT, MEMORY_BOUND, PRODUCTS, Single, matmul, shape_of
from roller_tvm.device import DeviceSpec, cpu_device
from roller_tvm.errors import UsageError, WrongAnswer
from roller_tvm.stats import geomean

#: Seconds in which the implementations of an operator take turns.
SECONDS = 1.0
OURS = "ours"
#: Implementation -> what opens it, as `Runnable` has it, and the kind of file.
OPENERS = {
    OURS: ("roller_bench.running:open_built", "so"), "onnxruntime": ("roller_bench.singles:open_onnxruntime", "onnx"),
    "torch": ("roller_bench.singles:open_torch", "onnx"),
}  # fmt: skip
#: Of the reference's largest magnitude: sums of thousands of products in float32.
TOLERANCE = 1e-4


def products(parser: argparse.ArgumentParser) -> None:
    """Time products of 60 shapes by a constant: as Roller builds them, onnxruntime and torch.

        .venv/relax/bin/python -m roller_bench products --build            # compile the products, time nothing
        .venv/relax/bin/python -m roller_bench products --seconds 20       # time some; the same command goes on
        ... products --shapes 197x768x3072,197x3072x768 --again
        ... products --peers onnxruntime,torch --torch ~/torch/bin/python

    Relax line. Shapes are rows x K x N. Each is an ONNX model of one product, built with nothing measured. Each
    implementation runs in a process of its own, in turns; medians of the rounds. A share of 1 is the FMA peak, or the
    rate of the nearest memory that holds the operands, whichever binds. Answers are compared with numpy's. Prints each
    shape, with the kind of CPU, then geometric means and extremes.
    """
    parser.add_argument("--folder", type=Path, default=Path("build/products"), help="default %(default)s")
    parser.add_argument("--shapes", type=names, help="only these, as ROWSxKxN with commas")
    _add_options(parser)
    parser.set_defaults(run=lambda args: _run(args, _of_shapes(args.shapes)))


def memory_bound(parser: argparse.ArgumentParser) -> None:
    """Time depthwise convolutions, poolings, softmax and normalisations: Roller, onnxruntime and torch.

        .venv/relax/bin/python -m roller_bench memory-bound --kinds softmax,depthwise
        ... memory-bound --peers onnxruntime,torch --torch ~/torch/bin/python

    As `products`, with which it shares everything but the operators. The arithmetic of a roof is that of additions and
    multiplications; exponentials, roots, comparisons and the start of threads are not in it.
    """
    parser.add_argument("--folder", type=Path, default=Path("build/memory-bound"), help="default %(default)s")
    parser.add_argument("--kinds", type=names, help="only operators whose names start with one of these")
    _add_options(parser)

    def run(args: argparse.Namespace) -> int:
        asked = tuple(args.kinds or [""])
        if not (singles := [s for s in MEMORY_BOUND if s.name.startswith(asked)]):
            known = ", ".join(sorted({s.name.split(" ")[0] for s in MEMORY_BOUND}))
            raise UsageError(f"no operator starts with {' or '.join(asked)}", "--kinds", f"known are {known}")
        return _run(args, singles)

    parser.set_defaults(run=run)


def _of_shapes(texts: Sequence[str] | None) -> Sequence[Single]:
    return [matmul(shape_of(text)) for text in texts] if texts else PRODUCTS


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--build", action="store_true", help="only build")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no new operator after this time")
    parser.add_argument("--again", action="store_true", help="forget earlier times of these operators")
    told = "onnxruntime and torch, with commas; default those that are installed"
    parser.add_argument("--peers", type=names, help=told)
    parser.add_argument("--torch", default=sys.executable, help="Python with torch; default this one")


def _run(args: argparse.Namespace, singles: Sequence[Single]) -> int:
    begun, device = time.monotonic(), cpu_device()
    peers = args.peers or [name for name in OPENERS if name != OURS and importlib.util.find_spec(name)]
    args.folder.mkdir(parents=True, exist_ok=True)
    file, kind = args.folder / "times.jsonl", cpu_kind(device)
    for single in singles:
        if not _file(args, single, "json").is_file():
            _build(args, single, device.units)
    if args.build:
        return 0
    known = {r["name"]: r for r in read_lines(file) if r["cpu"] == kind}
    left = [s for s in singles if args.again or s.name not in known]

    def timed() -> Iterator[dict[str, Any]]:
        for single in left:
            if time.monotonic() - begun < args.seconds:
                about = {"name": single.name, "cpu": kind, "date": str(datetime.date.today()), "commit": commit()}
                yield {**about, **_times(args, single, peers, device)}

    for row in append_lines(file, timed()):
        known[row["name"]] = row
    print(_table([known[s.name] for s in singles if s.name in known]))
    return LEFT if any(s.name not in known for s in singles) else 0


def _file(args: argparse.Namespace, single: Single, suffix: str) -> Path:
    return Path(args.folder, f"{single.name}.{suffix}")


def _build(args: argparse.Namespace, single: Single, threads: int) -> None:
    """Write the model of an operator and its input; build it as its user does, and note what is predicted."""
    import onnx

    import roller_tvm

    onnx.save(single.model(), str(_file(args, single, "onnx")))
    keep_inputs({INPUT: single.values()[0]}, _file(args, single, "npz"))
    built = roller_tvm.compile(str(_file(args, single, "onnx")), threads=threads)
    built.save(_file(args, single, "so"))
    plans = built.report().plans
    told = {"predicted": sum(p.calls * (p.predicted_s or 0.0) for p in plans), "plans": [p.plan for p in plans]}
    _file(args, single, "json").write_text(json.dumps(told, indent=1))


def _times(args: argparse.Namespace, single: Single, peers: Sequence[str], device: DeviceSpec) -> dict[str, Any]:
    """Return the median seconds of everything that computes an operator, and what was predicted."""
    made = partial(Runnable, inputs=str(_file(args, single, "npz").resolve()), threads=device.units)
    asked = {}
    for name in (OURS, *peers):
        opener, suffix = OPENERS[name]
        asked[name] = made(opener, str(_file(args, single, suffix).resolve()), python=args.torch * (name == "torch"))
    taken, outputs = medians_in_turns(asked, SECONDS)
    expected = [single.answer()]
    for name, found in outputs.items():
        if not (error := relative_error(found, expected)) <= TOLERANCE:
            raise WrongAnswer(f"{name} is wrong by {error:.1e} of the largest element", single.name)
    told = json.loads(_file(args, single, "json").read_text())
    return {"seconds": taken, "roof": single.roof(device), "flops": single.flops, **told}


def _table(rows: list[dict[str, Any]]) -> str:
    """Return a line an operator, and geometric means with the extremes of each column."""
    lines: list[str] = []
    columns: dict[str, list[float]] = {}
    for row in rows:
        seconds = row["seconds"]
        ours = seconds[OURS]
        ratios = {"of the roof": row["roof"] / ours, "predicted/measured": row["predicted"] / ours}
        ratios |= {f"against {name}": s / ours for name, s in seconds.items() if name != OURS}
        for name, ratio in ratios.items():
            columns.setdefault(name, []).append(ratio)
        told = "  ".join(f"{name} {ratio:5.2f}" for name, ratio in ratios.items())
        rate = f"{ours * 1e6:10.1f} us {1e-9 * row['flops'] / ours:7.1f} GFLOP/s"
        lines.append(f"{row['name']:<16} {rate}  {told}  {row['cpu']}")
    for name, found in columns.items():
        mean = f"geometric mean {geomean(found):.2f}, least {min(found):.2f}, most {max(found):.2f}"
        lines.append(f"{name:<20} {len(found)} operators: {mean}")
    return "\n".join(lines)
