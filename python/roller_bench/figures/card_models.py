"""Whole models on a card beside torch, whose operators are cuDNN's and cuBLAS's."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import LEFT, names
from roller_bench.running import relative_error
from roller_bench.torch_models import made
from roller_tvm.children import environment, python
from roller_tvm.errors import BadInput, last_line
from roller_tvm.stats import geomean

#: Models of a first look: convolutions, depthwise convolutions, attention, one step of a decoder.
FIRST = ("resnet18", "resnet50", "mobilenet_v2", "vit_b_16", "bert_128", "gpt2_128", "llama_128", "llama_decode")
#: Warm-up runs, and samples of a time; each sample is the mean of RUNS runs that wait for nothing.
WARM, SAMPLES, RUNS = 3, 15, 10
#: Line that a child prints when its model is built, and the line that lets it use the card.
BUILT, GO = "built", "go"


def card_models(parser: argparse.ArgumentParser) -> None:
    """Run whole models on a CUDA card: Roller (nothing measured) and torch (eager, as a CUDA graph, compiled).

        python -m roller_bench card-models --models resnet50,vit_b_16 --out card.jsonl

    Needs torch with CUDA, and TVM of the Relax line with its CUDA runtime. No tf32, random weights, inputs on the card.
    Models are built side by side, a process each; then each has the card to itself.
    """
    parser.add_argument("--models", type=names, default=list(FIRST), help="default %(default)s")
    parser.add_argument("--target", default="", help="default: the card's architecture")
    parser.add_argument("--out", type=Path, default=Path("card_models.jsonl"), help="file of results")
    parser.add_argument("--seconds", type=float, default=600.0, help="time for everything; default 600")
    parser.add_argument("--compiled", type=names, default=[], help="models that torch compiles too")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="default %(default)s")
    parser.add_argument("--kernels", action="store_true", help="time single kernels too")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.one:
        return _one(args)
    begun, rows = time.monotonic(), []
    words = python("-m", "roller_bench", "card-models", "--dtype", args.dtype, *["--kernels"] * args.kernels)
    children = {
        name: subprocess.Popen(
            [*words, "--target", args.target, "--compiled", name if name in args.compiled else "", "--one", name],
            env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in args.models
    }  # fmt: skip
    try:
        for name, child in children.items():
            assert child.stdin and child.stdout
            while (line := child.stdout.readline().strip()) and not line.startswith(BUILT):
                print(f"{name}: {line}", flush=True)
            print(f"{name}: {line or 'ended'} ({time.monotonic() - begun:.0f} s)", flush=True)
        with args.out.open("a", encoding="utf-8") as file:
            for child in children.values():
                if time.monotonic() - begun > args.seconds:
                    break
                text, _ = child.communicate(f"{GO}\n", timeout=args.seconds)
                for line in text.splitlines():
                    if line.startswith("{"):
                        rows.append(json.loads(line))
                        file.write(line + "\n")
                        file.flush()
                        print(line[:400], flush=True)
    finally:
        for child in children.values():
            child.kill()
    print(table(rows))
    return 0 if len(rows) == len(args.models) and all("ours" in row for row in rows) else LEFT


def _one(args: argparse.Namespace) -> int:
    """Build a model, wait for the card, time it, print a row."""
    import torch

    name, row = args.one, {"model": args.one, "dtype": args.dtype}
    if not torch.cuda.is_available():
        raise BadInput("torch finds no CUDA card", "card-models", "run it where there is one")
    for place in (torch.backends.cuda.matmul, torch.backends.cudnn):
        place.allow_tf32 = False
    row |= {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    module, inputs = made(name)
    if args.dtype == "float16":
        module, inputs = module.half(), {n: t.half() if t.is_floating_point() else t for n, t in inputs.items()}
    try:
        start = time.perf_counter()
        model = _built(module, inputs, args.target)
        row["build_s"] = round(time.perf_counter() - start, 1)
    except Exception as error:  # any of TVM's: told, and torch is timed all the same
        row["error"], model = last_line(error)[:300], None
    print(BUILT, flush=True)
    if sys.stdin.readline().strip() != GO:
        return LEFT
    with torch.inference_mode():
        module, given = module.cuda(), [t.cuda() for t in inputs.values()]
        exact = [t.float() if t.is_floating_point() else t for t in given]
        due = [t.cpu().numpy() for t in _flat(module.float()(*exact))]  # of the same weights
        module = module.to(getattr(torch, args.dtype))
        if model is not None:
            try:
                row |= _ours(model, inputs, given, due, args.kernels)
            except Exception as error:  # as above
                row["error"] = last_line(error)[:300]
        row["eager"] = _median(lambda: module(*given))
        row["graph"] = _median(_graph(module, given).replay)
        if name in args.compiled:
            row["compiled"] = _median(_graph(torch.compile(module), given).replay)
    print(json.dumps(row), flush=True)
    return 0


def _built(module: Any, inputs: dict[str, Any], target: str) -> Any:
    import torch

    import roller_tvm

    major, minor = torch.cuda.get_device_capability()
    return roller_tvm.compile(module, example_inputs=tuple(inputs.values()),
                              target=target or f"cuda -arch=sm_{major}{minor}")  # fmt: skip


def _ours(
    model: Any, inputs: dict[str, Any], given: list[Any], due: list[np.ndarray], kernels: bool
) -> dict[str, Any]:
    feed = dict(zip(model.inputs, given, strict=True))
    got = [np.asarray(a, np.float32) for a in model.run(feed)]
    error = relative_error(got, due)
    times = model.times(feed, RUNS, SAMPLES)
    found = {"ours": statistics.median(times) * 1e3, "relative_error": error}
    if kernels:
        model.profile(feed, 3)
        found["kernels"] = str(model.report())
    return found


def _flat(value: Any) -> Iterator[Any]:
    for one in value if isinstance(value, (list, tuple)) else [value]:
        yield from [one] if hasattr(one, "cpu") else _flat(one)


def _graph(module: Callable[..., Any], given: list[Any]) -> Any:
    """Return the module's launches as a CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            module(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(*given)
    return graph


def _median(run: Callable[[], Any]) -> float:
    """Return the median milliseconds of a run; runs of a sample follow one another."""
    import torch

    for _ in range(WARM):
        run()
    times = []
    for _ in range(SAMPLES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(RUNS):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / RUNS * 1e3)
    return statistics.median(times)


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a table, with the geometric means of the ratios."""
    peers = ("eager", "graph", "compiled")
    lines = ["| | Roller, ms | torch | torch, CUDA graph | torch.compile, CUDA graph | error |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for row in rows:
        if "ours" not in row:
            lines.append(f"| {row['model']} | {row.get('error', 'failed')} | | | | |")
            continue
        ratios = [f"{row[p] / row['ours']:.2f}" if p in row else "" for p in peers]
        told = f"{row['model']} | {row['ours']:.3f} | {' | '.join(ratios)} | {row['relative_error']:.0e}"
        lines.append(f"| {told} |")
    for peer in peers:
        if ratios_of := [row[peer] / row["ours"] for row in rows if "ours" in row and peer in row]:
            lines.append(f"{peer}: geometric mean {geomean(ratios_of):.2f} of {len(ratios_of)}")
    return "\n".join(lines)
