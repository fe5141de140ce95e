"""Whole models beside onnxruntime, torch.compile and OpenVINO, kept by kind of CPU."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from roller_bench.figures import LEFT, append_lines, names, read_lines
from roller_bench.latency import medians_in_turns
from roller_bench.machine import commit, cpu_kind
from roller_bench.running import TOLERANCE, Runnable, read_inputs, relative_error
from roller_bench.torch_models import MODELS
from roller_tvm.children import environment
from roller_tvm.device import cpu_device, default_cpu_target
from roller_tvm.errors import MeasureError, RollerError
from roller_tvm.models.line import Request, model_line
from roller_tvm.session import Session
from roller_tvm.stats import geomean
from roller_tvm.tvm_env.locate import usable_line
from roller_tvm.tvm_env.threads import set_threads

OURS, ORT = "ours", "onnxruntime"
#: Implementation -> what opens a model in it, as `Runnable` has it.
OPENERS = {
    OURS: "roller_bench.running:open_built", ORT: "roller_bench.peers_graph:open_onnxruntime",
    "inductor": "roller_bench.torch_models:open_inductor", "openvino": "roller_bench.peers_graph:open_openvino",
}  # fmt: skip


def models(parser: argparse.ArgumentParser) -> None:
    """Run whole models of torchvision, timm and transformers: Roller (nothing measured), onnxruntime and others.

        .venv/relax/bin/python -m roller_bench models --export --torch ~/torch/bin/python   # write the ONNX files, once
        .venv/relax/bin/python -m roller_bench models --build                               # build, time nothing
        .venv/relax/bin/python -m roller_bench models --seconds 600                         # time some; it goes on
        ... models --peers onnxruntime,inductor,openvino --torch ... --openvino ...

    Relax line, float32, all cores, random weights. Each implementation runs in a process of its own, in turns, and its
    outputs are compared with onnxruntime's. A peer may have an environment of its own: `--torch` (torch, torchvision,
    timm, transformers, onnxscript), `--openvino`. Results are kept in the folder by kind of CPU; those of one commit
    are put together by their medians (`--again`: the same file may run faster in another process).
    """
    parser.add_argument("--folder", type=Path, default=Path("build/models"), help="default %(default)s")
    parser.add_argument("--models", type=names, default=list(MODELS), help="only these")
    told = "onnxruntime, inductor, openvino, with commas; default onnxruntime"
    parser.add_argument("--peers", type=names, default=[ORT], help=told)
    parser.add_argument("--torch", default=sys.executable, help="Python with torch; default this one")
    parser.add_argument("--openvino", default=sys.executable, help="Python with OpenVINO; default this one")
    parser.add_argument("--export", action="store_true", help="only write the ONNX files")
    parser.add_argument("--build", action="store_true", help="only build")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no model after this time")
    parser.add_argument("--time", type=float, default=3.0, help="seconds of timing a model; default 3")
    parser.add_argument("--again", action="store_true", help="time these models again, in other processes")
    told = "build without a matrix unit, as a CPU that has none; kept as a kind of its own (another --folder)"
    parser.add_argument("--vectors", action="store_true", help=told)
    parser.add_argument("--note", default="", help="kept with the results ('loaded', say)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    begun = time.monotonic()
    args.folder.mkdir(parents=True, exist_ok=True)

    def in_time() -> bool:
        return time.monotonic() - begun < args.seconds

    if args.export:
        for name in args.models:
            if in_time() and not _file(args, name, "onnx").is_file():
                command = [args.torch, "-m", "roller_bench.torch_models", name, str(args.folder)]
                done = subprocess.run(command, env=environment(), check=False, capture_output=True, text=True)
                if done.returncode:
                    print(f"{name}: not exported: {(done.stderr.strip().splitlines() or ['?'])[-1]}", flush=True)
        return 0
    threads, kind = cpu_device().units, cpu_kind(cpu_device()) + (", vectors alone" if args.vectors else "")
    set_threads(threads)
    file = args.folder / "times.jsonl"
    rows = [r for r in read_lines(file) if r["cpu"] == kind]
    timed_before = {row["model"] for row in rows}
    ready = [name for name in args.models if _file(args, name, "onnx").is_file()]
    for name in ready:
        if in_time() and not _file(args, name, "so").is_file():
            with contextlib.suppress(RollerError) if len(ready) > 1 else contextlib.nullcontext():
                _build(args, name, threads)
    if args.build:
        return LEFT if any(not _file(args, name, "so").is_file() for name in ready) else 0
    left = [n for n in ready if _file(args, n, "so").is_file() and (args.again or n not in timed_before)]

    def timed() -> Iterator[dict[str, Any]]:
        for name in left:
            if in_time():
                about = {"model": name, "cpu": kind, "date": str(datetime.date.today()), "note": args.note}
                yield {**about, "commit": commit(), **_times(args, name, threads)}

    rows += append_lines(file, timed())
    known = {row["model"]: row for row in together(rows)}
    print(table([known[n] for n in args.models if n in known]))
    return LEFT if any(n not in known for n in args.models) else 0


def _file(args: argparse.Namespace, name: str, suffix: str) -> Path:
    return Path(args.folder, f"{name}.{suffix}")


def _build(args: argparse.Namespace, name: str, threads: int) -> None:
    """Build a model as its user does, by prediction alone."""
    start = time.perf_counter()
    shapes = {n: tuple(a.shape) for n, a in read_inputs(_file(args, name, "npz")).items()}
    target = default_cpu_target(threads=threads) if args.vectors else None
    request = Request(target=target, shapes=shapes, threads=threads)
    session = Session(model_line(usable_line("building a model")), request)
    part = session.read(str(_file(args, name, "onnx"))).save(_file(args, name, "part.so"))
    part.replace(_file(args, name, "so"))
    print(f"{name}: built in {time.perf_counter() - start:.1f} s", flush=True)


def _times(args: argparse.Namespace, name: str, threads: int) -> dict[str, Any]:
    """Return the median seconds of each implementation, and the largest error beside onnxruntime."""
    pythons = {"inductor": args.torch, "openvino": args.openvino}
    made = partial(Runnable, inputs=str(_file(args, name, "npz").resolve()), threads=threads)
    asked = {
        peer: made(OPENERS[peer], str(_file(args, name, "so" if peer == OURS else "onnx").resolve()),
                   python=pythons.get(peer, "")) for peer in dict.fromkeys((OURS, ORT, *args.peers))
    }  # fmt: skip
    failed: dict[str, str] = {}
    for peer in [p for p in asked if p in pythons]:  # a peer may refuse a model
        try:
            medians_in_turns({peer: asked[peer]}, 0.0)
        except MeasureError as error:
            failed[peer] = error.what
            del asked[peer]
    seconds, outputs = medians_in_turns(asked, args.time)
    errors = {peer: relative_error(found, outputs[ORT]) for peer, found in outputs.items()}
    if not errors[OURS] <= TOLERANCE:
        failed[OURS] = f"differs from onnxruntime by {errors[OURS]:.2g}"
    return {"seconds": seconds, "errors": errors, "failed": failed}


def together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row a model: medians of its rows of the last commit. The same file runs faster in some processes.

    Examples
    --------
    >>> rows = [{"model": "net", "commit": "1", "seconds": {"ours": s}} for s in (3.0, 1.0, 2.0)]
    >>> together(rows)
    [{'model': 'net', 'commit': '1', 'seconds': {'ours': 2.0}}]
    """
    last = {row["model"]: row for row in rows}
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["commit"] == last[row["model"]]["commit"]:
            for peer, seconds in row["seconds"].items():
                found.setdefault(row["model"], {}).setdefault(peer, []).append(seconds)
    medians = {name: {peer: statistics.median(s) for peer, s in own.items()} for name, own in found.items()}
    return [{**row, "seconds": medians[name]} for name, row in last.items()]


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line a model, and the geometric mean and the least of each ratio.

    Examples
    --------
    >>> row = {"model": "net", "seconds": {"ours": 0.5, "onnxruntime": 1.0}, "errors": {"ours": 1e-6}, "cpu": "a CPU"}
    >>> print(table([row]).splitlines()[-1])
    onnxruntime  1 models: geometric mean 2.00, least 2.00 (net)
    """
    lines: list[str] = []
    ratios: dict[str, dict[str, float]] = {}
    for row in rows:
        ours = row["seconds"][OURS]
        own = {peer: s / ours for peer, s in row["seconds"].items() if peer != OURS}
        for peer, ratio in own.items():
            ratios.setdefault(peer, {})[row["model"]] = ratio
        if len(own) > 1:
            ratios.setdefault("best", {})[row["model"]] = min(own.values())
        told = "  ".join(f"{peer} {ratio:5.2f}" for peer, ratio in own.items())
        why = "".join(f"  {peer}: {reason}" for peer, reason in row.get("failed", {}).items())
        note = f"  {row['note']}" if row.get("note") else ""
        lines.append(f"{row['model']:<20} {ours * 1e3:9.2f} ms  {told}  error {row['errors'][OURS]:.0e}{why}  "
                     f"{row['cpu']}{note}")  # fmt: skip
    for peer, found in ratios.items():
        worst = min(found, key=found.__getitem__)
        mean = f"geometric mean {geomean(found.values()):.2f}, least {found[worst]:.2f} ({worst})"
        lines.append(f"{peer:<12} {len(found)} models: {mean}")
    return "\n".join(lines)
