"""Exploring in runs of the model beside tuning operator by operator: seconds, and the latency that both end with."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from roller_bench.figures import NETWORKS, add_out, append_lines, names, read_lines, tell
from roller_bench.variants import onnx_model
from roller_tvm.planner.explain.words import table

#: Rounds of the final comparison, in turns.
ROUNDS = 15


def explore(parser: argparse.ArgumentParser) -> None:
    """Explore and tune models, then time their runs in turns.

        .venv/relax/bin/python -m roller_bench explore --models direction,squeezenet

    All in one process, with the same inputs: the model as built, explored, tuned. Latencies are medians of runs in
    turns; the load of the machine stands beside them. The same command goes on where it was stopped.
    """
    parser.add_argument("--models", default="direction,squeezenet,mobilenet_v2",
                        help="names from 'roller-tvm compare --list', or files; default %(default)s")
    parser.add_argument("--trials", type=int, default=10, help="plans that tune measures; default %(default)s")
    parser.add_argument("--top", type=int, default=5, help="plans that explore tries; default %(default)s")
    parser.add_argument("--folder", type=Path, default=NETWORKS,
                        help="folder of models and results; default %(default)s")
    add_out(parser)
    parser.set_defaults(run=_run)


def measured(model: Any, trials: int, top: int) -> dict[str, Any]:
    """Return seconds and latencies of a model explored and tuned."""
    import roller_tvm

    shapes = {name: tuple(array.shape) for name, array in model.inputs.items()}
    with tempfile.TemporaryDirectory(prefix="roller-tvm-") as folder:
        start, explored, tuned = (roller_tvm.compile(str(model.path), shapes=shapes) for _ in range(3))
        began = time.perf_counter()
        result = explored.explore(model.inputs, top=top, records=Path(folder, "explored"))
        explore_s = time.perf_counter() - began
        began = time.perf_counter()
        tuned.tune(trials, Path(folder, "tuned"))
        tune_s = time.perf_counter() - began
        taken: dict[str, list[float]] = {"start": [], "explored": [], "tuned": []}
        for _ in range(ROUNDS):
            for name, one in zip(taken, (start, explored, tuned), strict=True):
                taken[name] += one.times(model.inputs, 5, 1)
    return {
        **{name: statistics.median(own) for name, own in taken.items()}, "explore_s": explore_s, "tune_s": tune_s,
        "runs": result.runs, "seconds": dict(result.seconds), "load": os.getloadavg()[0],
        "left_out": len(result.failed),
    }  # fmt: skip


def words(found: dict[str, dict[str, Any]]) -> str:
    """Return the table."""
    rows = [["model", "start ms", "explored ms", "tuned ms", "tuned/explored", "explore s", "tune s", "runs", "load"]]
    for name, one in found.items():
        rows.append([name, *(f"{1e3 * one[k]:.3f}" for k in ("start", "explored", "tuned")),
                     f"{one['tuned'] / one['explored']:.2f}", f"{one['explore_s']:.0f}", f"{one['tune_s']:.0f}",
                     str(one["runs"]), f"{one['load']:.1f}"])  # fmt: skip
    return "\n".join(table(rows, left=1, indent=""))


def _run(args: argparse.Namespace) -> int:
    kept = args.folder / "explore.jsonl"
    args.folder.mkdir(parents=True, exist_ok=True)
    found = {row["model"]: row for row in read_lines(kept)}
    for name in names(args.models):
        if name not in found:
            found[name] = {"model": name, **measured(onnx_model(name, args.folder), args.trials, args.top)}
            list(append_lines(kept, [found[name]]))
            print(json.dumps(found[name]), flush=True)
    tell(words({name: found[name] for name in names(args.models)}), args.out)
    return 0
