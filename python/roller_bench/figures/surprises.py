"""Random operators of odd sizes: those that take much longer than predicted."""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roller_bench.cases import Case
from roller_bench.figures import LEFT, append_lines, read_lines
from roller_bench.machine import commit, cpu_kind
from roller_tvm.device import cpu_device, default_cpu_target
from roller_tvm.errors import RollerError
from roller_tvm.tvm_env import set_threads
from roller_tvm.tvm_env.locate import usable_line

#: Times the predicted time from which on a plan is a surprise, and microseconds more: what a call takes.
TIMES, CALL_US = 2.5, 10.0
#: Rounds in which a kernel is timed.
ROUNDS = 3


def surprises(parser: argparse.ArgumentParser) -> None:
    """Build the first plan of random operators, check its answers, time it, and tell which take far longer than told.

        .venv/relax/bin/python -m roller_bench surprises --count 200 --seed 1     # or .venv/relay/bin/python
        .venv/relax/bin/python -m roller_bench surprises --count 200 --seed 2 --folder build/surprises

    Products, convolutions, depthwise convolutions and poolings, most of sizes that no tile divides. Plans rely on
    mechanisms: whole vectors over an edge, padding read in place. Without them a kernel takes ten times as long as
    predicted. Exit code 1 if one does, or if an answer is wrong. Results are kept in the folder, by line, kind of CPU
    and commit; the same command goes on.
    """
    parser.add_argument("--count", type=int, default=200, help="operators; default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other operators; default %(default)s")
    parser.add_argument("--folder", type=Path, default=Path("build/surprises"), help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no operator after this time")
    parser.set_defaults(run=_run)


def random_cases(count: int, seed: int) -> list[Case]:
    """Return random operators, the same ones for a seed.

    Examples
    --------
    >>> random_cases(2, seed=0) == random_cases(2, seed=0)
    True
    """
    chosen, made = random.Random(seed), list[Case]()
    kinds = ("matmul", "dense", "conv2d_nchw", "conv2d_nhwc", "depthwise_conv2d_nchw", "max_pool2d_nchw")
    for number in range(count):
        kind = chosen.choice(kinds)
        if kind in ("matmul", "dense"):
            sizes = {
                "m": chosen.randrange(5, 700), "n": chosen.choice([chosen.randrange(30, 600), 384, 1000]),
                "k": chosen.choice([64, 96, 130, 256, 509, 768]),
            }  # fmt: skip
        else:
            size, window = chosen.randrange(9, 70), chosen.choice([1, 3, 3, 5] if kind.startswith("conv") else [3, 5])
            sizes = {
                "n": 1, "c": chosen.choice([3, 16, 24, 33, 64]), "h": size, "w": size, "k": window,
                "stride": chosen.choice([1, 1, 2]), "padding": chosen.choice([0, window // 2]),
            }  # fmt: skip
            sizes |= {"f": chosen.choice([8, 16, 20, 32, 48, 65])} if kind.startswith("conv") else {}
        made.append(Case(f"{seed}.{number}", kind, " ".join(f"{name}={value}" for name, value in sizes.items())))
    return made


def _run(args: argparse.Namespace) -> int:
    device, line = cpu_device(), usable_line("timing operators")
    set_threads(device.units)
    edge, target = importlib.import_module(f"roller_bench.{line.value}"), default_cpu_target(threads=device.units)
    about = {"line": line.value, "cpu": cpu_kind(device, device.units), "commit": commit()}
    args.folder.mkdir(parents=True, exist_ok=True)
    file = args.folder / "surprises.jsonl"
    known = {r["case"]: r for r in read_lines(file) if all(r[name] == value for name, value in about.items())}
    cases, begun = random_cases(args.count, args.seed), time.monotonic()

    def rows() -> Iterator[dict[str, Any]]:
        for case in cases:
            if case.title not in known and time.monotonic() - begun < args.seconds:
                yield {**about, "case": case.title, **_times(edge, case, str(target), args.folder)}

    for row in append_lines(file, rows()):
        known[row["case"]] = row
    done = [known[case.title] for case in cases if case.title in known]
    print(table(done))
    return LEFT if len(done) < len(cases) or any(row.get("reason") or surprising(row) for row in done) else 0


def _times(edge: Any, case: Case, target: str, folder: Path) -> dict[str, Any]:
    """Return the predicted and the measured time of a case's first plan, or the reason that there is none."""
    try:
        (prepared,) = edge.prepare([case.to_json()], target, str(folder))
        if prepared["reason"]:
            return {"reason": prepared["reason"]}
        found = edge.tune(str(folder / prepared["file"]), asdict(case), "roller", 1, target, str(folder))
        if found["status"] != "ok":
            return {"reason": found["reason"]}
        (rounds,) = edge.time([str(folder / found["kernel"])], target, ROUNDS)
    except RollerError as error:
        return {"reason": error.what}
    return {"seconds": statistics.median(rounds), "predicted": found["predicted_s"], "plan": found["tiles"]}


def surprising(row: dict[str, Any]) -> bool:
    """Return whether a plan takes far longer than predicted."""
    return "seconds" in row and row["seconds"] > TIMES * row["predicted"] + CALL_US * 1e-6


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the surprises, what failed, and how far off all predictions are.

    Examples
    --------
    >>> print(table([{"case": "matmul m=7 n=9 k=5", "seconds": 4e-4, "predicted": 2e-5, "plan": "cpu.tiled"}]))
    matmul m=7 n=9 k=5: 400 us for 20, 20 times as predicted: cpu.tiled
    1 operators: 1 surprises, 0 without an answer; measured over predicted 20.00 at the median
    """
    lines = [f"{row['case']}: {row['reason']}" for row in rows if row.get("reason")]
    timed = [row for row in rows if "seconds" in row]
    for row in sorted(timed, key=lambda row: -row["seconds"] / row["predicted"]):
        if surprising(row):
            took, told = row["seconds"] * 1e6, row["predicted"] * 1e6
            slow = f"{took:.0f} us for {told:.0f}, {took / told:.0f} times as predicted"
            lines.append(f"{row['case']}: {slow}: {row['plan']}")
    off = statistics.median(row["seconds"] / row["predicted"] for row in timed) if timed else 0.0
    found, failed = sum(map(surprising, timed)), len(rows) - len(timed)
    total = f"{len(rows)} operators: {found} surprises, {failed} without an answer"
    return "\n".join([*lines, f"{total}; measured over predicted {off:.2f} at the median"])
