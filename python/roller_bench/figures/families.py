"""The table of families: models of torchvision, timm and transformers through torch.export and through ONNX."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roller_bench.families import FAMILIES, Family, find
from roller_bench.family_jobs import EAGER, EXPORT, INDUCTOR, ONNX, ONNXRUNTIME, PATHS
from roller_bench.figures import add_out, append_lines, names, read_lines, tell
from roller_bench.jobs import run_job
from roller_bench.machine import cpu_id
from roller_tvm.stats import geomean

#: Runtimes that are timed, those of one process together.
PROCESSES = (PATHS, (ONNXRUNTIME,), (EAGER, INDUCTOR))
RUNTIMES = tuple(runtime for group in PROCESSES for runtime in group)
LEFT = 1
Rows = Mapping[tuple[str, str], Mapping[str, Any]]


def families(parser: argparse.ArgumentParser) -> None:
    """Build families of torch models through torch.export and ONNX, compare with torch, time beside three runtimes.

        .venv/torch/bin/python -m roller_bench families                      # build and compare what is left
        .venv/torch/bin/python -m roller_bench families --time 2             # then time
        .venv/torch/bin/python -m roller_bench families --families ResNet,Llama --again

    Relax line; needs `pip install torchvision timm transformers onnxscript` beside requirements/torch.txt. Models are
    built from their configs with random weights, nothing is downloaded. Each job is a process with a limit of time
    and memory; a failure is noted and the next job begins. The same command goes on where it was stopped. Results
    are lines of JSON, those of each kind of CPU apart.
    """
    parser.add_argument("--families", type=names, help=f"only these: {', '.join(f.name for f in FAMILIES)}")
    parser.add_argument("--paths", type=names, default=list(PATHS), help="default export,onnx")
    parser.add_argument("--folder", type=Path, default=Path("build/families"), help="built models; default %(default)s")
    parser.add_argument("--results", type=Path, help="results; default results.jsonl in the folder")
    parser.add_argument("--time", type=float, metavar="S", help="time for S seconds each what is built and right")
    parser.add_argument("--runtimes", type=names, default=list(RUNTIMES), help=f"default {','.join(RUNTIMES)}")
    parser.add_argument("--threads", type=int, default=1, help="threads of the timed runs; default 1")
    parser.add_argument("--limit", type=float, default=600, help="seconds of a job; default 600")
    parser.add_argument("--memory", type=int, default=12, help="GiB of a job; default 12")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no new job after this time")
    parser.add_argument("--again", action="store_true", help="forget earlier results of these families and paths")
    parser.add_argument("--table", action="store_true", help="only print the table")
    add_out(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    chosen, begun = find(args.families), time.monotonic()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results = args.results or folder / "results.jsonl"
    kind = cpu_id()
    known = {(r["family"], r["job"]): r for r in read_lines(results) if r["cpu"] == kind}
    fresh: set[tuple[str, str]] = set()

    def left() -> tuple[Family, list[str]] | None:
        """Return the next family and its jobs."""
        if args.table or time.monotonic() - begun > args.seconds:
            return None
        for family in chosen:
            for group in [args.paths] if args.time is None else PROCESSES:
                jobs = group if args.time is None else [timing(r, args.threads) for r in group if r in args.runtimes]
                keys = [(family.name, job) for job in jobs]
                todo = [key for key in keys if key not in fresh and (args.again or key not in known)]
                if todo := [key for key in todo if args.time is None or built(known, *key)]:
                    return family, [job for _, job in todo]
        return None

    def done() -> Iterator[dict[str, Any]]:
        while (job := left()) is not None:
            for row in _results(*job, args, folder):
                yield {"cpu": kind, **row}

    for row in append_lines(results, done()):
        key = row["family"], row["job"]
        known[key] = row
        fresh.add(key)
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


def _results(family: Family, jobs: list[str], args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Run the jobs of a family in a process of its own; yield a row each."""
    log, edge = folder / "log", "roller_bench.family_jobs"
    asked = {"name": family.name, "folder": str(folder)}
    asked |= {"memory_gib": args.memory} if args.time is None else {"threads": args.threads, "seconds": args.time}
    function, keyword = ("check", "paths") if args.time is None else ("timed", "runtimes")
    groups = [jobs]
    while groups:
        own = groups.pop(0)
        names = own if args.time is None else [job.split()[1] for job in own]
        done = run_job(edge, function, {**asked, keyword: names}, args.limit * len(own), args.threads, log)
        if done.status != "ok" and len(own) > 1:  # which of them it was
            groups += [[job] for job in own]
            continue
        for job, name in zip(own, names, strict=True):
            told = done.value[name] if done.status == "ok" else {"status": done.status, "reason": done.reason}
            yield {"family": family.name, "job": job, **told}


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
        return f"{row['wall_ms']:.2f} ms wall, {row['cpu_ms']:.2f} ms CPU{', loaded' if row['loaded'] else ''}"
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
        ours = next((times[p]["cpu_ms"] for p in PATHS if "cpu_ms" in times[p]), None)
        cells.append(f"{ours:.2f}" if ours else "")
        for runtime, found in ratios.items():
            other = times[runtime].get("cpu_ms")
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
        rows.append(f"CPU time, {threads} thread, {state}; geometric means of the speed: {', '.join(means)}.")
    if waiting:
        rows.append(f"Not built yet: {', '.join(waiting)}.")
    return "\n".join(rows)


def _outcome(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else "ok" if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
