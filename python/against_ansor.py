#!/usr/bin/env python3
"""Compare Roller's kernels with Ansor's, task by task, with their tuning times.

    python python/ansor_tasks.py benchmarks/ansor_64.json                                # Ansor's records, once: hours
    python python/against_ansor.py benchmarks/ansor_64.json --output benchmarks/against_ansor.txt

Every task in Ansor's record file is tuned with Roller (10 plans measured). Both records are built as ``relay.build``
would build them (constant weights packed if it packs them), both answers are checked against TVM's default schedule,
and both kernels are timed in one process, in turns. Each step is kept in ``--work``: an interrupted run resumes, and
only changed steps are repeated. ``--forget`` tunes Roller's kernels anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import ansor_tasks  # noqa: E402
from ansor_tasks import NamedTask  # noqa: E402
from pairs import measure  # noqa: E402

from roller_tvm.compare.relay.kernels import kernel_file as kernel  # noqa: E402
from roller_tvm.compare.turns import rounds_in_turns, typical  # noqa: E402
from roller_tvm.stats import geomean  # noqa: E402

TRIALS = 10


def records(path: Path) -> dict[str, str]:
    """Return the line of the fastest record of each workload."""
    best: dict[str, tuple[float, str]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("{"):
            record = json.loads(line)
            key, (costs, error) = record["i"][0][0], record["r"][:2]
            cost = sum(costs) / len(costs)
            if error == 0 and cost < best.get(key, (math.inf, ""))[0]:
                best[key] = (cost, line)
    return {key: line for key, (_, line) in best.items()}


def kind(task: Any) -> str:
    """Return the kind of a task's operator, derived from its computations."""
    ops = {str(op.name): op for op in task.compute_dag.ops}
    names = " ".join(ops).lower()
    if "winograd" in names:
        return "Winograd"
    if "depthwise" in names:
        return "depthwise"
    for name, op in ops.items():
        if name.startswith("conv2d"):
            window = [int(a.dom.extent) for a in op.reduce_axis]
            return "conv 1x1" if window[0] == window[1] == 1 else "conv KxK"
    for part, label in (("batch_matmul", "batch_matmul"), ("matmul", "dense")):
        if part in names:
            return label
    return "other"


def load_tasks(models: str, folder: Path, work: Path, target: Any) -> list[NamedTask]:
    """Return the tasks, extracted once and kept in a file."""
    kept = work / f"tasks-{hashlib.sha256(f'{models} {target}'.encode()).hexdigest()[:8]}.pkl"
    if kept.exists():
        return [NamedTask(*parts) for parts in pickle.loads(kept.read_bytes())]
    tasks = ansor_tasks.extract(models.split(","), target, folder)
    kept.write_bytes(pickle.dumps([(t.model, t.number, t.weight, t.task) for t in tasks]))
    return tasks


def rewritten(named: NamedTask) -> Any:
    """Return the task as ``extract_tasks`` gives it, with the layout rewriting that ``relay.build`` applies."""
    from tvm import auto_scheduler

    option = auto_scheduler.LayoutRewriteOption.get_target_default(named.task.target, True)
    return auto_scheduler.SearchTask(
        workload_key=named.key, target=named.task.target, desc=named.task.desc, layout_rewrite_option=option
    )


# -- tuning ours ----------------------------------------------------------------------------------------------


def tune(tasks: list[NamedTask], log: Path, trials: int, device: Any, until: float) -> bool:
    """Tune every task missing in the log with Roller; return False if time was up before the end."""
    from roller_tvm.relay.line import LINE
    from roller_tvm.relay.tasks import Task
    from roller_tvm.tuning.results import TuneResult
    from roller_tvm.tuning.session import Measurer
    from roller_tvm.tuning.supervise import Pool
    from roller_tvm.tuning.tune import Options, Tuner

    have = records(log)
    seconds = log.with_suffix(".seconds.json")
    spent = json.loads(seconds.read_text()) if seconds.exists() else {}
    missing = [(n, named) for n, named in enumerate(tasks) if named.key not in have and named.key not in spent]
    if not missing:
        return True
    target = missing[0][1].task.target
    result = TuneResult([], device, str(target), str(log), trials, device.units)
    with Pool(device.units, device.units) as pool:
        measurer = Measurer(pool, seconds=result.seconds)
        tuner = Tuner(LINE, measurer, device, LINE.records(log, target), Options(trials, top=trials), result)
        for done, (number, named) in enumerate(missing):
            if time.monotonic() > until:
                print(f"{len(missing) - done} tasks are left to tune", flush=True)
                return False
            start = time.perf_counter()
            flops = named.task.compute_dag.flop_ct
            tuned = tuner.tune(Task(number, named.name, named.weight, rewritten(named), flops), trials)
            spent[named.key] = time.perf_counter() - start
            seconds.write_text(json.dumps(spent, indent=0))
            print(f"{number} {named.model} {named.name}: {tuned.status} {tuned.seconds * 1e6:.1f} us, predicted"
                  f" {tuned.predicted_s * 1e6:.1f}, {spent[named.key]:.1f} s {tuned.reason}", flush=True)  # fmt: skip
    return True


# -- building and checking both ---------------------------------------------------------------------------------


def build(named: NamedTask, task: Any, line: str, folder: Path) -> str:
    """Build a record's kernel; return the reason that its answer is wrong, or ''."""
    from roller_tvm.compare.keeping import why_wrong
    from roller_tvm.compare.relay.kernels import build_record
    from roller_tvm.relay.worker_side import packs_weights

    return why_wrong(build_record(named.key, task.compute_dag, task.target, packs_weights(task), line, folder))


def side_by_side(paths: list[Path]) -> list[float]:
    """Return typical seconds of kernels that compute the same, timed in turns."""
    from roller_tvm.compare.relay.kernels import open_timers

    return [typical(rounds) for rounds in rounds_in_turns(open_timers(paths))]


# -- the table ----------------------------------------------------------------------------------------------------


def report(rows: list[dict[str, Any]], peak: float, tasks: int, device: str) -> str:
    """Return the comparison as text, the task with the largest loss first."""
    lines = [
        f"Roller ({TRIALS} plans measured) beside Ansor (64 trials), {device}; FMA peak {peak:.0f} GFLOP/s",
        f"Ansor's search of {len(rows)} of {tasks} tasks has ended", "",
        f"{'model':<13} {'#':>3} {'kind':<12} {'task':<46} {'Ansor us':>9} {'ours us':>9} {'ratio':>6}"
        f" {'Ansor':>6} {'ours':>6} {'of peak':>7} {'Ansor s':>8} {'ours s':>7}",
    ]  # fmt: skip
    for row in sorted(rows, key=lambda r: float(r["ratio"])):
        rates = [row["flops"] / row[who] / 1e9 if row["flops"] > 0 else math.nan for who in ("theirs", "ours")]
        lines.append(
            f"{row['model']:<13} {row['number']:>3} {row['kind']:<12} {row['name'][:46]:<46}"
            f" {row['theirs'] * 1e6:9.1f} {row['ours'] * 1e6:9.1f} {row['ratio']:6.2f} {rates[0]:6.0f} {rates[1]:6.0f}"
            f" {rates[1] / peak:7.0%} {row['theirs_s']:8.1f} {row['ours_s']:7.1f}{row['wrong']}"
        )
    lines += ["", "Geometric means of Ansor's time over ours"]
    groups = {"all": rows}
    for field in ("model", "kind"):
        for value in sorted({str(r[field]) for r in rows}):
            groups[value] = [r for r in rows if r[field] == value]
    for name, group in groups.items():
        ratios = [float(r["ratio"]) for r in group]
        lines.append(f"  {name:<14} {geomean(ratios):5.2f}   least {min(ratios):5.2f}   {len(ratios)} tasks")
    products = [r["flops"] / r["ours"] / 1e9 / peak for r in rows if r["kind"] == "conv KxK"]
    lines += ["", f"Share of the FMA peak of direct convolutions with a window: {geomean(products):.0%}"]
    both = [(r["theirs_s"], r["ours_s"]) for r in rows if r["theirs_s"] > 0 and r["ours_s"] > 0]
    theirs, ours = (sum(column) for column in zip(*both, strict=True)) if both else (math.nan, math.nan)
    lines.append(f"Tuning {len(both)} tasks: Ansor {theirs:.0f} s, Roller {ours:.0f} s, {theirs / ours:.0f} times less")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="file of Ansor's records")
    parser.add_argument("--models", default=",".join(ansor_tasks.MODELS),
                        help="names, with commas; default %(default)s")
    parser.add_argument("--folder", type=Path, default=Path("demo-out/models"),
                        help="folder of the models; default %(default)s")
    parser.add_argument("--work", type=Path, default=Path("demo-out/against_ansor"),
                        help="folder of all steps' results")
    parser.add_argument("--trials", type=int, default=64, help="leave out tasks with fewer trials of Ansor; default 64")
    parser.add_argument("--only", default="", help="choose tasks by kind or name, or by numbers with commas")
    parser.add_argument("--phase", choices=("tune", "build", "measure", "all"), default="all",
                        help="run one step; default all")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no task after this many seconds")
    parser.add_argument("--forget", action="store_true", help="tune the chosen tasks again with Roller")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    until = time.monotonic() + args.seconds

    from roller_tvm.device import cpu_device, default_cpu_target
    from roller_tvm.tvm_env import import_relay_tvm, set_threads

    device = cpu_device()
    threads = set_threads(device.units)
    import_relay_tvm("comparing with Ansor")
    from roller_tvm.relay.tasks import make_target

    args.work.mkdir(parents=True, exist_ok=True)
    log, results, libraries = args.work / "ours.json", args.work / "times.jsonl", args.work / "kernels"
    libraries.mkdir(exist_ok=True)
    jobs_file = args.work / "jobs.json"
    if args.phase == "measure":  # a process of its own, in which nothing was tuned or built
        return 0 if measure(json.loads(jobs_file.read_text()), results, until, side_by_side) else 3
    every = load_tasks(args.models, args.folder, args.work, make_target(default_cpu_target(threads=threads)))
    trials, ended = ansor_tasks.done(args.log), ansor_tasks.ended(args.log)
    theirs = {k: line for k, line in records(args.log).items() if trials[k] >= args.trials or k in ended}
    numbers = {int(n) for n in args.only.split(",")} if args.only.replace(",", "").isdigit() else set()
    chosen = [
        named for n, named in enumerate(every)
        if named.key in theirs and (n in numbers or (not numbers and args.only in f"{kind(named.task)} {named.name}"))
    ]  # fmt: skip
    if args.forget:
        forget(log, {named.key for named in chosen})
    if args.phase in ("tune", "all") and not tune(chosen, log, TRIALS, device, until):
        return 3
    if args.phase == "tune":
        return 0
    ours, wrong = records(log), {}
    pairs = [named for named in chosen if named.key in ours]
    for named in pairs:
        if time.monotonic() > until:
            return 3
        for who, task, line in (
            ("Ansor", named.task, theirs[named.key]), ("ours", rewritten(named), ours[named.key])
        ):  # fmt: skip
            if message := build(named, task, line, libraries):
                wrong[named.key] = f"{wrong.get(named.key, '')}  {who} WRONG: {message}"
    jobs = [[str(kernel(libraries, theirs[n.key])), str(kernel(libraries, ours[n.key]))] for n in pairs]
    jobs_file.write_text(json.dumps(jobs))
    if args.phase == "build":
        return 0
    left = [] if math.isinf(args.seconds) else ["--seconds", str(max(1.0, until - time.monotonic()))]
    command = [sys.executable, __file__, str(args.log), "--work", str(args.work), "--phase", "measure", *left]
    if hasattr(os, "sched_setaffinity"):  # checking kernels bound this thread to a CPU, which a child inherits
        os.sched_setaffinity(0, cpus)
    code = subprocess.run(command, check=False).returncode
    times = {(a, b): (s, t) for a, b, s, t in map(json.loads, results.read_text().splitlines())}
    spent = [json.loads(p.with_suffix(".seconds.json").read_text()) for p in (args.log, log)]
    rows = []
    for named, pair in zip(pairs, jobs, strict=True):
        if (measured := times.get((pair[0], pair[1]))) is None:
            continue
        rows.append({
            "model": named.model, "number": every.index(named), "kind": kind(named.task), "name": named.name,
            "theirs": measured[0], "ours": measured[1], "ratio": measured[0] / measured[1],
            "flops": float(named.task.compute_dag.flop_ct), "wrong": wrong.get(named.key, ""),
            "theirs_s": spent[0].get(named.key, 0.0), "ours_s": spent[1].get(named.key, 0.0),
        })  # fmt: skip
    if not rows:
        raise SystemExit("nothing to compare: no task has a record in both files")
    text = report(rows, device.peak("float32"), len(every), f"{device.name}, {threads} threads")
    without = [n for n in chosen if n.key not in ours]
    text += "".join(f"No record of ours: {n.model} {n.name}\n" for n in without)
    print(text, end="")
    if args.output is not None:
        args.output.write_text(text)
    return code


def forget(log: Path, keys: set[str]) -> None:
    """Remove the records and seconds of these workloads from the log."""
    if log.exists():
        lines = log.read_text().splitlines(keepends=True)
        kept = [i for i, line in enumerate(lines) if line.startswith("{") and json.loads(line)["i"][0][0] not in keys]
        # The comment before a record belongs to it.
        log.write_text("".join(lines[n] for i in kept for n in (i - 1, i) if n == i or lines[n][:1] == "#"))
    seconds = log.with_suffix(".seconds.json")
    if seconds.exists():
        spent = json.loads(seconds.read_text())
        seconds.write_text(json.dumps({k: s for k, s in spent.items() if k not in keys}, indent=0))


if __name__ == "__main__":
    sys.exit(main())
