#!/usr/bin/env python3
"""Compare Roller's kernels with MetaSchedule's, task by task, with their tuning times. In the Relax line's environment.

    python python/against_metaschedule.py benchmarks/metaschedule_64.jsonl --phase theirs   # once: about an hour
    python python/against_metaschedule.py benchmarks/metaschedule_64.jsonl --output benchmarks/against_metaschedule.txt

Tasks are the PrimFuncs of ResNet-50 and BERT-base as the pipeline "roller" prepares them; `--plain` takes them from
TVM's own passes. MetaSchedule tunes each in a process of its own with 64 trials and its defaults; the best record of
each is kept in the file `log`. Roller tunes the same PrimFuncs (10 plans measured). Both records are replayed and built
as a network uses them (constant weights packed if a record packs them), both answers are checked against the
unscheduled PrimFunc, and both kernels are timed in turns in a fresh process. Each step is kept: an interrupted run
resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from pairs import measure  # noqa: E402

from roller_tvm.compare.keeping import why_wrong  # noqa: E402
from roller_tvm.compare.relax.kernels import build_record, kernel_file, open_timers  # noqa: E402
from roller_tvm.compare.turns import rounds_in_turns, typical  # noqa: E402
from roller_tvm.stats import geomean  # noqa: E402

MODELS = ("resnet50", "bert_base")
TRIALS = 10
#: Builds that MetaSchedule's builder gives up: its processes import half a minute of tensor intrinsics first.
BUILD_S = 120.0
DONE, LEFT = 0, 3


@dataclass(frozen=True)
class NamedTask:
    """A task of a model, with its module as text."""

    model: str
    number: int
    name: str
    weight: int
    key: str
    mod: str
    constants: tuple[int, ...]
    flops: float

    @property
    def title(self) -> str:
        return f"{self.model} {self.number} {self.name}"


@dataclass(frozen=True)
class Tuned:
    """The best record of a task, and the cost of finding it."""

    key: str
    trials: int
    seconds: float
    record: str
    target: str
    reason: str = ""


def kind(name: str) -> str:
    """Return the kind of a task's operator, derived from its name."""
    for part in ("depthwise", "conv", "matmul", "softmax", "pool", "norm", "transpose"):
        if part in name:
            return {"matmul": "matmul", "conv": "convolution"}.get(part, part)
    return "other"


# -- tasks --------------------------------------------------------------------------------------------------------


def load_tasks(models: str, plain: bool, folder: Path, work: Path, target: Any) -> list[NamedTask]:
    """Return the tasks, extracted once and kept in a file."""
    words = f"{models} {plain} {target}"
    kept = work / f"tasks-{hashlib.sha256(words.encode()).hexdigest()[:8]}.json"
    if kept.exists():
        return [NamedTask(**{**d, "constants": tuple(d["constants"])}) for d in json.loads(kept.read_text())]
    tasks = [task for model in models.split(",") for task in extract(model, plain, folder, target)]
    kept.write_text(json.dumps([asdict(task) for task in tasks]))
    return tasks


def extract(model: str, plain: bool, folder: Path, target: Any) -> Iterator[NamedTask]:
    """Yield the tasks of a model with floating-point work, each once."""
    import tvm
    from tvm import relax

    from roller_tvm.compare.whole.networks import bert_base
    from roller_tvm.compare.whole.zoo import light
    from roller_tvm.relax import load_model, prepare
    from roller_tvm.relax.tasks import extract_tasks
    from roller_tvm.tir import read_prim_func

    given = bert_base(folder) if model == "bert_base" else light(model, folder)
    mod = load_model(given.path, given.shapes).mod
    if plain:
        passes = relax.transform
        steps = [passes.LegalizeOps(), passes.AnnotateTIROpPattern(), passes.FoldConstant(), passes.FuseOps(),
                 passes.FuseTIR(), passes.DeadCodeElimination(), passes.AttachAttrLayoutFreeBuffers()]  # fmt: skip
        with target:
            mod = tvm.transform.Sequential(steps)(mod)
    else:
        mod = prepare(mod, target)
    for task in extract_tasks(mod):
        try:
            flops = float(read_prim_func(task.func).expression.flops)
        except Exception as error:  # neither tool can tune it
            print(f"{model} {task.name}: left out, {error}", flush=True)
            continue
        if flops > 0:
            text = str(tvm.ir.save_json(task.workloads[0]))
            yield NamedTask(model, task.id, task.name, task.weight, task.key, text, task.constants, flops)


# -- tuning -------------------------------------------------------------------------------------------------------


def read_tuned(path: Path) -> dict[str, Tuned]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {found.key: found for found in (Tuned(**json.loads(line)) for line in lines)}


def append(path: Path, tuned: Tuned) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(tuned)) + "\n")


def tune_theirs(task: NamedTask, target: Any, trials: int, work: Path) -> Tuned:
    """Tune one task by MetaSchedule with its defaults, in this process."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from roller_tvm.relax.database import record_text

    mod = tvm.ir.load_json(task.mod)
    folder = work / "metaschedule" / task.key
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    database = ms.tune_tir(
        mod, target, str(folder), trials, builder=ms.builder.LocalBuilder(timeout_sec=BUILD_S),
        num_tuning_cores="logical", seed=1,
    )  # fmt: skip
    spent = time.perf_counter() - start
    best = database.query_tuning_record(mod, target, "main")
    made = len(database)
    if best is None or float(best.run_secs[0]) > 1e8:
        return Tuned(task.key, made, spent, "", str(target), "no trial ran")
    return Tuned(task.key, made, spent, record_text(best), str(target))


def tune_all_theirs(tasks: list[NamedTask], log: Path, args: argparse.Namespace, until: float) -> int:
    """Tune every task missing in the file, each in a process of its own, the most called ones first."""
    known = read_tuned(log)
    for task in sorted(tasks, key=lambda t: -t.weight * t.flops):
        if task.key in known:
            continue
        if time.monotonic() > until:
            return LEFT
        command = [
            sys.executable, __file__, str(log), "--work", str(args.work), "--models", args.models, "--phase", "one",
            "--only", task.key, "--trials", str(args.trials), *(["--plain"] if args.plain else []),
        ]  # fmt: skip
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = read_tuned(log).get(task.key)
        if found is None:
            print(done.stdout[-1000:], done.stderr[-2000:], flush=True)
            raise SystemExit(f"{task.title}: MetaSchedule's process ended with {done.returncode}")
        print(f"{task.title}: {found.trials} trials, {found.seconds:.1f} s ({time.perf_counter() - start:.1f} s with"
              f" imports) {found.reason}", flush=True)  # fmt: skip
    return DONE


def tune_ours(tasks: list[NamedTask], log: Path, target: Any, work: Path) -> None:
    """Tune every task missing in the file with Roller, all of a model in one run, as users do."""
    import tvm

    from roller_tvm.relax.database import record_text
    from roller_tvm.relax.tuning import tune

    known = read_tuned(log)
    missing = [task for task in tasks if task.key not in known]
    for model in dict.fromkeys(task.model for task in missing):
        mine = {f"t{task.number}": task for task in missing if task.model == model}
        mods = {name: tvm.ir.load_json(task.mod)["main"] for name, task in mine.items()}
        mod = tvm.IRModule({name: func.without_attr("global_symbol") for name, func in mods.items()})
        spent, last = {}, time.perf_counter()

        def note(tuned: Any, _count: int, spent: dict[str, float] = spent) -> None:
            nonlocal last
            now = time.perf_counter()
            spent[tuned.task.name], last = now - last, now

        database, result = tune(mod, None, target, max_trials_per_task=TRIALS, database="memory", progress=note)
        print(result, flush=True)
        for tuned in result.tasks:
            task = mine[tuned.task.name]
            best = database.query_tuning_record(tuned.task.workloads[0], target, "main")
            text = record_text(best) if best is not None else ""
            append(log, Tuned(task.key, TRIALS, spent[tuned.task.name], text, str(target), tuned.reason))


# -- building and checking both -------------------------------------------------------------------------------------


def kernel(folder: Path, task: NamedTask, record: str) -> Path:
    """Return the path of a record's kernel."""
    return kernel_file(folder, task.key, record)


def build(task: NamedTask, record: str, target: Any, folder: Path) -> str:
    """Build a record's kernel (TVM's own without a record); return the reason that its answer is wrong, or ''."""
    return why_wrong(build_record(task.key, task.mod, target, task.constants, record, folder))


def side_by_side(paths: list[Path]) -> list[float]:
    """Return typical seconds of kernels that compute the same, timed in turns."""
    return [typical(rounds) for rounds in rounds_in_turns(open_timers(paths))]


# -- the table --------------------------------------------------------------------------------------------------------


def report(rows: list[dict[str, Any]], peak: float, tasks: int, trials: int, device: str) -> str:
    """Return the comparison as text, the task with the largest loss first."""
    lines = [
        f"Roller ({TRIALS} plans measured) beside MetaSchedule ({trials} trials), {device}",
        f"{len(rows)} of {tasks} tasks; FMA peak {peak:.0f} GFLOP/s", "",
        f"{'model':<10} {'#':>3} {'weight':>6} {'task':<46} {'MS us':>9} {'ours us':>9} {'ratio':>6}"
        f" {'MS':>6} {'ours':>6} {'of peak':>7} {'MS s':>8} {'ours s':>7}",
    ]  # fmt: skip
    for row in sorted(rows, key=lambda r: float(r["ratio"])):
        rates = [row["flops"] / row[who] / 1e9 for who in ("theirs", "ours")]
        lines.append(
            f"{row['model']:<10} {row['number']:>3} {row['weight']:>6} {row['name'][:46]:<46}"
            f" {row['theirs'] * 1e6:9.1f} {row['ours'] * 1e6:9.1f} {row['ratio']:6.2f}"
            f" {rates[0]:6.0f} {rates[1]:6.0f} {rates[1] / peak:7.0%}"
            f" {row['theirs_s']:8.1f} {row['ours_s']:7.1f}{row['wrong']}"
        )
    lines += ["", "Geometric means of MetaSchedule's time over ours"]
    groups = {"all": rows}
    for field in ("model", "kind"):
        for value in sorted({str(r[field]) for r in rows}):
            groups[value] = [r for r in rows if r[field] == value]
    for name, group in groups.items():
        ratios = [float(r["ratio"]) for r in group]
        lines.append(f"  {name:<14} {geomean(ratios):5.2f}   least {min(ratios):5.2f}   {len(ratios)} tasks")
    for model in sorted({str(r["model"]) for r in rows}):
        mine = [r for r in rows if r["model"] == model]
        theirs, ours = (sum(r[who] * r["weight"] for r in mine) * 1e3 for who in ("theirs", "ours"))
        lines.append(f"A run of {model} in these kernels: MetaSchedule {theirs:.2f} ms, Roller {ours:.2f} ms")
        spent, own = (sum(r[who] for r in mine) for who in ("theirs_s", "ours_s"))
        lines.append(f"Tuning {len(mine)} tasks of it: MetaSchedule {spent:.0f} s, Roller {own:.0f} s,"
                     f" {spent / own:.0f} times less")  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="file of MetaSchedule's best records")
    parser.add_argument("--models", default=",".join(MODELS), help="names, with commas; default %(default)s")
    parser.add_argument("--plain", action="store_true", help="take the tasks from TVM's own passes")
    parser.add_argument("--folder", type=Path, default=Path("demo-out/models"),
                        help="folder of the models; default %(default)s")
    parser.add_argument("--work", type=Path, default=Path("demo-out/against_metaschedule"),
                        help="folder of all results")
    parser.add_argument("--trials", type=int, default=64, help="MetaSchedule's trials per task; default 64")
    parser.add_argument("--only", default="", help="choose tasks with this text in their name or key")
    parser.add_argument("--phase", choices=("list", "theirs", "one", "ours", "measure", "table", "all"), default="all",
                        help="run one step; 'table' covers the tasks that MetaSchedule has finished; default all")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no task after this many seconds")
    parser.add_argument("--forget", action="store_true", help="tune the chosen tasks with Roller again")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    until = time.monotonic() + args.seconds

    from roller_tvm.device import cpu_device
    from roller_tvm.tvm_env import import_relax_tvm, set_threads

    device = cpu_device()
    threads = set_threads(device.units)
    import_relax_tvm("comparing with MetaSchedule")
    args.work.mkdir(parents=True, exist_ok=True)
    log, results, libraries = args.work / "ours.jsonl", args.work / "times.jsonl", args.work / "kernels"
    libraries.mkdir(exist_ok=True)
    jobs_file = args.work / "jobs.json"
    if args.phase == "measure":  # a process of its own, in which nothing was tuned or built
        return DONE if measure(json.loads(jobs_file.read_text()), results, until, side_by_side) else LEFT

    from roller_tvm.relax.targets import make_target

    target = make_target("llvm", device)
    every = load_tasks(args.models, args.plain, args.folder, args.work, target)
    chosen = [task for task in every if args.only in f"{task.name} {task.key}"]
    if args.phase == "list":
        for task in chosen:
            print(f"{task.title}: {task.flops / 1e6:.1f} MFLOP, {task.weight} times, {task.key}")
        return DONE
    if args.phase == "one":
        append(args.log, tune_theirs(chosen[0], target, args.trials, args.work))
        return DONE
    if args.phase in ("theirs", "all") and tune_all_theirs(chosen, args.log, args, until):
        print("tasks are left to tune with MetaSchedule")
        return LEFT
    if args.phase == "theirs":
        return DONE
    if args.phase == "table":
        chosen = [task for task in chosen if task.key in read_tuned(args.log)]
    if args.forget and log.exists():
        keys = {task.key for task in chosen}
        kept = [tuned for tuned in read_tuned(log).values() if tuned.key not in keys]
        log.write_text("".join(json.dumps(asdict(tuned)) + "\n" for tuned in kept))
    tune_ours(chosen, log, target, args.work)
    if args.phase == "ours":
        return DONE
    theirs, ours = read_tuned(args.log), read_tuned(log)
    pairs = [t for t in chosen if t.key in ours and t.key in theirs and theirs[t.key].record]
    wrong: dict[str, str] = {}
    for task in pairs:
        for who, record in (("MetaSchedule", theirs[task.key].record), ("ours", ours[task.key].record)):
            if message := build(task, record, target, libraries):
                wrong[task.key] = f"{wrong.get(task.key, '')}  {who} WRONG: {message}"
    jobs = [[str(kernel(libraries, t, f[t.key].record)) for f in (theirs, ours)] for t in pairs]
    jobs_file.write_text(json.dumps(jobs))
    left = [] if math.isinf(args.seconds) else ["--seconds", str(max(1.0, until - time.monotonic()))]
    command = [sys.executable, __file__, str(args.log), "--work", str(args.work), "--phase", "measure", *left]
    if hasattr(os, "sched_setaffinity"):  # checking kernels bound this thread to a CPU, which a child inherits
        os.sched_setaffinity(0, cpus)
    code = subprocess.run(command, check=False).returncode
    times = {(a, b): (s, t) for a, b, s, t in map(json.loads, results.read_text().splitlines())}
    rows = []
    for task, (a, b) in zip(pairs, jobs, strict=True):
        if (measured := times.get((a, b))) is None:
            continue
        rows.append({
            "model": task.model, "number": task.number, "weight": task.weight, "kind": kind(task.name),
            "name": task.name, "theirs": measured[0], "ours": measured[1], "ratio": measured[0] / measured[1],
            "flops": task.flops, "wrong": wrong.get(task.key, ""), "theirs_s": theirs[task.key].seconds,
            "ours_s": ours[task.key].seconds,
        })  # fmt: skip
    if not rows:
        raise SystemExit("nothing to compare: no task has a record in both files")
    text = report(rows, device.peak("float32"), len(every), args.trials, f"{device.name}, {threads} threads")
    failed = [t for t in chosen if t.key in theirs and not theirs[t.key].record]
    text += "".join(f"MetaSchedule has no record: {t.title}\n" for t in failed)
    kept = [t for t in pairs if not ours[t.key].record]
    text += "".join(f"TVM's own kernel stays: {t.title}: {ours[t.key].reason}\n" for t in kept)
    print(text, end="")
    if args.output is not None:
        args.output.write_text(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
