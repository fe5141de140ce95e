"""The table of families: models of torchvision, timm and transformers through torch.export and through ONNX."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roller_bench.families import FAMILIES, Family, find
from roller_bench.family_jobs import EAGER, EXPORT, INDUCTOR, ONNX, ONNXRUNTIME, PATHS, runnable
from roller_bench.figures import add_out, append_lines, names, read_lines, tell
from roller_bench.jobs import run_job
from roller_bench.latency import blocks_in_turns, opened_if_possible
from roller_bench.machine import commit, cpu_id
from roller_bench.quiet import REST, wait
from roller_tvm.device import cpu_device
from roller_tvm.errors import MeasureError
from roller_tvm.folders import work_folder
from roller_tvm.stats import geomean

#: Runtimes that are timed.
RUNTIMES = (*PATHS, ONNXRUNTIME, EAGER, INDUCTOR)
LEFT = 1
#: Most seconds to wait for a machine at rest before a family is timed.
REST_S = 20.0
#: Names of families, each with its jobs.
Jobs = Sequence[tuple[str, Sequence[str]]]
Rows = Mapping[tuple[str, str], Mapping[str, Any]]


def families(parser: argparse.ArgumentParser) -> None:
    """Build families of torch models through torch.export and ONNX, compare with torch, time beside three runtimes.

        .venv/torch/bin/python -m roller_bench families                      # build and compare what is left
        .venv/torch/bin/python -m roller_bench families --time 2             # then time
        .venv/torch/bin/python -m roller_bench families --families ResNet,Llama --again

    Relax line; needs `pip install torchvision timm transformers onnxscript` beside requirements/torch.txt. Models are
    built from their configs with random weights, nothing is downloaded. Each job is a process with a limit of time
    and memory; a failure is noted and the next job begins. The same command goes on where it was stopped. Results
    are lines of JSON, those of each kind of CPU apart. Runtimes of a family are timed in turns, each in a process of
    its own that is stopped meanwhile: all are opened first, compiled by torch too, which takes most of the time.
    """
    parser.add_argument("--families", type=names, help=f"only these: {', '.join(f.name for f in FAMILIES)}")
    parser.add_argument("--paths", type=names, default=list(PATHS), help="default export,onnx")
    parser.add_argument("--folder", type=Path, default=Path("build/families"), help="built models; default %(default)s")
    parser.add_argument("--results", type=Path, help="results; default results.jsonl in the folder")
    parser.add_argument("--time", type=float, metavar="S", help="time for S seconds a family what is built and right")
    parser.add_argument("--runtimes", type=names, default=list(RUNTIMES), help=f"default {','.join(RUNTIMES)}")
    parser.add_argument("--together", type=int, default=1, help="families opened before one is timed; default 1")
    told = "command that keeps other work off meanwhile: prints a line once it does so, ends with its input"
    parser.add_argument("--hold", default="", metavar="CMD", help=told)
    parser.add_argument("--threads", type=int, help="for builds and timed runs; default all cores")
    parser.add_argument("--limit", type=float, default=600, help="seconds of a job; default 600")
    parser.add_argument("--memory", type=int, default=12, help="GiB of a job; default 12")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no new job after this time")
    parser.add_argument("--again", action="store_true", help="forget earlier results of these families and jobs")
    parser.add_argument("--table", action="store_true", help="only print the table")
    add_out(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    chosen, begun = find(args.families), time.monotonic()
    args.threads = args.threads or cpu_device().units
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results = args.results or folder / "results.jsonl"
    kind = cpu_id()
    known = {(r["family"], r["job"]): r for r in read_lines(results) if r["cpu"] == kind}

    def left(family: Family) -> list[str]:
        """Return the jobs of a family that are to be done: of timings all, as they are timed in turns."""
        if args.time is None:
            return [path for path in args.paths if args.again or (family.name, path) not in known]
        jobs = [timing(r, args.threads) for r in RUNTIMES if r in args.runtimes]
        jobs = [job for job in jobs if built(known, family.name, job)]
        return jobs if args.again or any((family.name, job) not in known for job in jobs) else []

    def done() -> Iterator[dict[str, Any]]:
        todo = [] if args.table else [(family.name, jobs) for family in chosen if (jobs := left(family))]
        size = 1 if args.time is None else args.together
        for first in range(0, len(todo), size):
            if time.monotonic() - begun <= args.seconds:
                rows = _built if args.time is None else _timed
                yield from ({"cpu": kind, **row} for row in rows(todo[first : first + size], args, folder))

    for row in append_lines(results, done()):
        known[row["family"], row["job"]] = row
        print(f"{row['family']:<14} {row['job']:<22} {words(row)}", flush=True)
    tell(report(chosen, known, args.threads), args.out)
    return LEFT if any((f.name, path) not in known for f in chosen for path in args.paths) else 0


def timing(runtime: str, threads: int) -> str:
    """Return the name of the job that times a runtime."""
    return f"time {runtime} {threads}"


def built(known: Rows, family: str, job: str) -> bool:
    """Return True if what a timing needs is there: the model built through a path, the ONNX file, or either."""
    runtime = job.split()[1]
    needed = {ONNXRUNTIME: (ONNX,), EXPORT: (EXPORT,), ONNX: (ONNX,)}.get(runtime, PATHS)
    return any(known.get((family, path), {}).get("status") == "ok" for path in needed)


def _built(asked: Jobs, args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Build and compare families through paths, each family in a process of its own; yield a row for each path."""
    log, edge = folder / "log", "roller_bench.family_jobs"
    asked = list(asked)
    while asked:
        family, paths = asked.pop(0)
        told = {"name": family, "paths": paths, "folder": str(folder), "memory_gib": args.memory}
        done = run_job(edge, "check", told, args.limit * len(paths), args.threads, log)
        if done.status != "ok" and len(paths) > 1:  # which of them it was
            asked = [(family, [path]) for path in paths] + asked
            continue
        for path in paths:
            result = done.value[path] if done.status == "ok" else {"status": done.status, "reason": done.reason}
            yield {"family": family, "job": path, **result}


def _timed(asked: Jobs, args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Open families in their runtimes side by side, then time each family's in turns; yield a row for each runtime."""
    with contextlib.ExitStack() as stack, work_folder() as files:
        every = [(family, job) for family, jobs in asked for job in jobs]
        own = [runnable(family, job.split()[1], folder, args.threads).write(Path(files, f"{n}.json"))
               for n, (family, job) in enumerate(every)]  # fmt: skip
        kept = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}  # what torch compiled is there the next time
        processes = stack.enter_context(opened_if_possible(own, args.limit, kept))
        ready = {one: process for one, process in zip(every, processes, strict=True) if process is not None}
        for family, job in every:
            if (family, job) not in ready:
                yield {"family": family, "job": job, "status": "failed", "reason": "cannot be run: see above"}
        with held(args.hold):
            for family, jobs in asked:
                others, jobs = wait(REST_S), [job for job in jobs if (family, job) in ready]
                taken = blocks_in_turns([ready[family, job] for job in jobs], args.time) if jobs else []
                for job, blocks in zip(jobs, taken, strict=True):
                    runs = [seconds for block in blocks for seconds in block]
                    yield {"family": family, "job": job, "status": "ok", "reason": "", "commit": commit(),
                           "wall_ms": statistics.median(runs) * 1e3, "runs": len(runs),
                           "loaded": not others <= REST}  # fmt: skip


@contextlib.contextmanager
def held(command: str) -> Iterator[None]:
    """Keep other work off the machine by a command that prints a line once it does so, until its input ends.

    Examples
    --------
    >>> with held("sh -c 'echo ready; cat'"):
    ...     pass
    """
    if not command:
        yield
        return
    with subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdout is None or not process.stdout.readline():
            raise MeasureError(f"the command that holds the machine ended: {command}", "families", "mend --hold")
        yield


def words(row: Mapping[str, Any]) -> str:
    """Return what became of a job in a line.

    Examples
    --------
    >>> words({"job": "onnx", "status": "unsupported", "reason": "unsupported operators: eigh"})
    'unsupported: unsupported operators: eigh'
    """
    if row["status"] != "ok":
        return f"{row['status']}: {row['reason']}"
    if "wall_ms" in row:
        return f"{row['wall_ms']:.2f} ms{', loaded' if row['loaded'] else ''}"
    kernels = ", ".join(f"{count} {how}" for how, count in row["kernels"].items())
    return f"ok, error {row['error']:.1e}, built in {row['build_s']:.0f} s, kernels: {kernels}"


def report(chosen: Sequence[Family], known: Rows, threads: int) -> str:
    """Return the table in Markdown, and what it comes to."""
    rows = ["| family | size | torch.export | ONNX | ours, ms | of torch | of torch.compile | of onnxruntime |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    ratios: dict[str, list[float]] = {EAGER: [], INDUCTOR: [], ONNXRUNTIME: []}
    loaded = False
    waiting = [family.name for family in chosen if not any((family.name, path) in known for path in PATHS)]
    chosen = [family for family in chosen if family.name not in waiting]
    for family in chosen:
        cells = [family.name, f"{family.library}{f', {family.size}' if family.size else ''}"]
        cells += [_outcome(known.get((family.name, path))) for path in PATHS]
        times = {r: known.get((family.name, timing(r, threads)), {}) for r in RUNTIMES}
        loaded = loaded or any(row.get("loaded") for row in times.values())
        ours = next((times[p]["wall_ms"] for p in PATHS if "wall_ms" in times[p]), None)
        cells.append(f"{ours:.2f}" if ours else "")
        for runtime, found in ratios.items():
            other = times[runtime].get("wall_ms")
            if ours and other:
                found.append(other / ours)
            cells.append(f"{other / ours:.2f}" if ours and other else "")
        rows.append(f"| {' | '.join(cells)} |")
    right = {p: sum(known.get((f.name, p), {}).get("status") == "ok" for f in chosen) for p in PATHS}
    both = sum(all(known.get((f.name, p), {}).get("status") == "ok" for p in PATHS) for f in chosen)
    counts = ", ".join(f"{count} through {path}" for path, count in right.items())
    rows.append(f"\n{len(chosen)} families: {both} right through both paths ({counts}).")
    if means := [f"{geomean(found):.2f} of {name} ({len(found)})" for name, found in ratios.items() if found]:
        state = "beside other work" if loaded else "on a quiet machine"
        rows.append(f"{threads} threads, {state}; geometric means of the speed: {', '.join(means)}.")
    if waiting:
        rows.append(f"Not built yet: {', '.join(waiting)}.")
    return "\n".join(rows)


def _outcome(row: Mapping[str, Any] | None) -> str:
    """Return what became of a path in a few words, with the errors where float32 itself is far off."""
    if row is None or row["status"] != "ok":
        return "" if row is None else f"{row['status']}: {row['reason']}"
    if (exact := row.get("from_float64")) is None:
        return "ok"
    return f"ok; from float64 {exact['ours']:.1e}, torch in float32 {exact['torch']:.1e}"
