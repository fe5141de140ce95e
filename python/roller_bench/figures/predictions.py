"""Predicted beside measured times of the distinct operators of whole models, on this CPU."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import LEFT, append_lines, names, read_lines
from roller_bench.machine import commit, cpu_kind
from roller_bench.running import read_inputs
from roller_tvm.device import cpu_device
from roller_tvm.errors import RollerError
from roller_tvm.stats import quantile, spearman
from roller_tvm.tvm_env.threads import set_threads

#: Seconds of a round, rounds, and which of the rounds counts: other programs only make kernels slower.
ROUND_S, ROUNDS, COUNTS = 0.002, 40, 0.1
#: Fewest plans whose ranks are compared, and the shortest kernel that is timed.
RANKED, SHORTEST_S = 5, 3e-6


def predictions(parser: argparse.ArgumentParser) -> None:
    """Compare predicted with measured times of models' operators: the best plan of each, and the ranks of the best ten.

        .venv/relax/bin/python -m roller_bench predictions --folder build/models --models regnet_y_400mf --seconds 300
        .venv/relax/bin/python -m roller_bench predictions --folder build/models --threads 1    # CPU time: loaded too

    Relax line, AVX-512 or AVX2 vectors as detected, without a matrix unit. The folder is that of the sub-command
    `models`. Each operator that no earlier model had is planned, built with random operands and timed, its plans in
    turns. Results are kept in the folder, by kind of CPU and number of threads; the same command goes on.
    """
    parser.add_argument("--folder", type=Path, default=Path("build/models"), help="default %(default)s")
    parser.add_argument("--models", type=names, help="only these; default: all ONNX files of the folder")
    parser.add_argument("--threads", type=int, help="default: all cores; 1 measures CPU time")
    parser.add_argument("--plans", type=int, default=10, help="plans of an operator; default %(default)s")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no operator after this time")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from roller_tvm.device import default_cpu_target
    from roller_tvm.relax.devices import device_of
    from roller_tvm.relax.targets import make_target

    begun, threads = time.monotonic(), args.threads or cpu_device().units
    set_threads(threads)
    target = make_target(default_cpu_target(threads=threads))
    device = device_of(None, target)
    kind = cpu_kind(device, threads)
    file = args.folder / "predictions.jsonl"
    known = {r["key"]: r for r in read_lines(file) if r["cpu"] == kind}
    stems, finished = args.models or sorted(f.stem for f in args.folder.glob("*.onnx")), True

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal finished
        for stem in stems:
            if time.monotonic() - begun > args.seconds:
                finished = False
                return
            for task in _tasks(args.folder, stem, target):
                if task.key in known:
                    continue
                if time.monotonic() - begun > args.seconds:
                    finished = False
                    return
                about = {"model": stem, "key": task.key, "name": task.name, "cpu": kind, "commit": commit()}
                yield {**about, **_times(task, device, target, args.plans, threads)}

    for row in append_lines(file, rows()):
        known[row["key"]] = row
    print(table([r for r in known.values() if r["model"] in stems]))
    return 0 if finished else LEFT


def _tasks(folder: Path, stem: str, target: Any) -> Any:
    """Return the distinct operators of a model, as they are scheduled."""
    from roller_tvm.relax import load_model, prepare
    from roller_tvm.relax.merged import MergeAxes
    from roller_tvm.relax.tasks import extract_tasks

    shapes = {n: list(a.shape) for n, a in read_inputs(folder / f"{stem}.npz").items()}
    mod = prepare(load_model(str(folder / f"{stem}.onnx"), shapes, None).mod, target)
    return extract_tasks(MergeAxes(target)(mod))


def _times(task: Any, device: Any, target: Any, plans: int, threads: int) -> dict[str, Any]:
    """Return what was predicted of each plan, and its seconds."""
    from roller_tvm.relax.candidates import make_candidates

    try:
        found = make_candidates(task.func, device, plans, task.constants, task.name)
        runs, predicted, told = [], [], []
        for candidate, schedule in found.schedules():
            runs.append(_opened(task.func, schedule.mod["main"], target))
            predicted.append(candidate.ranked.seconds)
            told.append(" ".join(str(candidate.ranked.plan.programs[-1]).split()))
        if not runs:
            return {"reason": found.why_none()}
    except (RollerError, ValueError, RuntimeError) as error:  # TVM's own are of the last two
        return {"reason": str(error).splitlines()[0][:200]}
    clock = time.process_time if threads == 1 else time.perf_counter
    numbers = [max(1, round(ROUND_S / _taken(run, 3, clock))) for run in runs]
    rounds = [[_taken(run, n, clock) for run, n in zip(runs, numbers, strict=True)] for _ in range(ROUNDS)]
    seconds = [quantile(column, COUNTS) for column in map(list, zip(*rounds, strict=True))]
    return {"predicted": predicted, "seconds": seconds, "plans": told}


def _opened(func: Any, scheduled: Any, target: Any) -> Callable[[], object]:
    """Return what runs a kernel on random operands, its constants packed."""
    import tvm

    from roller_tvm.relax.kernels import split_packing
    from roller_tvm.relax.rewrites import cpu_code
    from roller_tvm.tir.nodes import parameters

    rng = np.random.default_rng(0)
    arrays = [_array(rng, [int(e) for e in p.shape], str(p.dtype)) for p in parameters(func)]
    kernel, packed = split_packing(scheduled, dict(enumerate(arrays[:-1])), target)
    built = tvm.compile(cpu_code()(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})), target)
    operands = [packed[n] for n in range(len(arrays) - 1)]
    call, held = built["main"], [*map(tvm.runtime.tensor, (*operands, arrays[-1]))]
    call(*held)
    return lambda: call(*held)


def _array(rng: np.random.Generator, shape: list[int], dtype: str) -> np.ndarray:
    return (rng.standard_normal(shape) if "float" in dtype else np.zeros(shape)).astype(dtype)


def _taken(run: Callable[[], object], number: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(number):
        run()
    return max((clock() - start) / number, 1e-9)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line an operator, the most wrongly predicted first, and what holds of all.

    Examples
    --------
    >>> row = {"model": "net", "name": "dense", "predicted": [9e-5, 1e-4], "seconds": [1e-4, 2e-4], "plans": ["", ""]}
    >>> print(table([row]).splitlines()[-2])
    predicted over measured: 0.90 at the median (quarter 0.90, three quarters 0.90); off by 10% at the median
    """
    timed = [r for r in rows if r.get("seconds") and r["seconds"][0] >= SHORTEST_S]
    ratio = {id(r): r["predicted"][0] / r["seconds"][0] for r in timed}
    ranks = {id(r): spearman(r["predicted"], r["seconds"]) if len(r["seconds"]) >= RANKED else nan for r in timed}
    lost = {id(r): r["seconds"][0] / min(r["seconds"]) for r in timed}
    lines = [
        f"{r['model']:<16} {r['seconds'][0] * 1e6:9.1f} us  predicted/measured {ratio[id(r)]:5.2f}  "
        f"ranks {ranks[id(r)]:5.2f}  best of {len(r['seconds']):>2} {lost[id(r)]:4.2f} times as fast  {r['name']}  "
        f"{r['plans'][0][:90]}"
        for r in sorted(timed, key=lambda r: abs(ratio[id(r)] - 1), reverse=True)
    ]  # fmt: skip
    if not timed:
        return "no operator was timed"
    every = list(ratio.values())
    off = statistics.median(abs(value - 1) for value in every)
    known = [value for value in ranks.values() if value == value]
    lines.append(
        f"predicted over measured: {statistics.median(every):.2f} at the median (quarter {quantile(every, 0.25):.2f}, "
        f"three quarters {quantile(every, 0.75):.2f}); off by {off:.0%} at the median"
    )
    rank = f"{statistics.median(known):.2f} at the median of {len(known)}" if known else "none"
    best = statistics.median(lost.values())
    lines.append(f"{len(timed)} operators; rank correlation {rank}; the first plan takes {best:.2f} of the best's time")
    return "\n".join(lines)
