"""``roller-tvm plan``: candidates for one operator, or for a list of them. Imports no TVM."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from roller_tvm.cli import schedule
from roller_tvm.cli.line import add_line_argument, models_of, planning_of
from roller_tvm.cli.operators_file import COLUMNS, read_operators
from roller_tvm.device import DeviceSpec, device_for_target, known_devices, load_device
from roller_tvm.errors import RollerError, UsageError
from roller_tvm.ir import TensorExpression
from roller_tvm.ir.operators import lookup, operator, operator_names, parse_operator, parse_params
from roller_tvm.models.line import ModelLine
from roller_tvm.planner import construct
from roller_tvm.planner.construction import Construction
from roller_tvm.planner.explain import explain, explain_steps
from roller_tvm.planner.explain.bound import bound_of
from roller_tvm.planner.explain.resources import ResourcesCompared, resource_lines
from roller_tvm.planner.explain.runners import why_slower
from roller_tvm.planner.explain.words import amount, count, seconds, table
from roller_tvm.roller.alignment import Rejection
from roller_tvm.roller.features import Features

EXAMPLES = """examples:
  roller-tvm plan conv2d_nchw                         which parameters it takes
  roller-tvm plan conv2d_nchw n=1 c=64 h=56 w=56 f=64 kh=3 kw=3 padding=1 --device v100
  roller-tvm plan matmul m=512 n=512 k=512 --target "cuda -arch=sm_80" --explain
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="OPERATOR NAME=VALUE",
        help="an operator and its parameters; the name alone tells which it takes",
    )
    every = f"plan every row of a CSV file with the columns {', '.join(COLUMNS)}"
    parser.add_argument("--operators", type=Path, metavar="FILE.csv", help=every)
    where = parser.add_mutually_exclusive_group()
    devices = f"{', '.join(known_devices())}, cuda:0 (a card here), or a spec file (.toml); default cpu"
    where.add_argument("--device", default="cpu", help=devices)
    where.add_argument("--target", help='take the device from a TVM target, e.g. "cuda -arch=sm_90"')
    parser.add_argument("--top", type=int, default=10, metavar="K", help="how many plans; default 10")
    parser.add_argument("--explain", action="store_true", help="explain why the best plan is the best")
    parser.add_argument("--steps", action="store_true", help="print the schedule steps of the best plan")
    schedule.add_arguments(parser)
    emulated = "execute the best plan's GPU kernels on this CPU, every access checked, and compare what they compute"
    parser.add_argument("--check", action="store_true", help=f"{emulated}; needs a TVM and a C++ compiler, no GPU")
    pocl = "with --check: a second witness, the same schedule in OpenCL, run by PoCL; needs pyopencl and PoCL"
    parser.add_argument("--on-pocl", action="store_true", help=pocl)
    compiled = "compile the best plan's kernels: registers, spills, shared memory, occupancy, beside the model's"
    parser.add_argument("--compile", action="store_true", help=f"{compiled}; needs a TVM and NVRTC or nvcc, no GPU")
    ranks = "rank by the model (default), or by xgboost trained on the results in --measured"
    parser.add_argument("--rank-by", choices=("model", "xgboost"), default="model", help=ranks)
    measured = "with --rank-by xgboost: a folder of results of 'roller-tvm compare'"
    parser.add_argument("--measured", type=Path, metavar="FOLDER", help=measured)
    parser.add_argument("--json", action="store_true", help="print plans and estimates as JSON")
    add_line_argument(parser)
    parser.usage = "%(prog)s OPERATOR NAME=VALUE ... [options]\n       %(prog)s --operators FILE.csv [options]"
    names = textwrap.fill(f"operators: {', '.join(operator_names())}", 80, subsequent_indent="  ")
    parser.epilog = f"{EXAMPLES}\n\n{names}"


def run(args: argparse.Namespace) -> int:
    """Plan and print; 0 if everything got a plan."""
    if args.top < 1:
        raise UsageError(f"--top must be 1 or more (got {args.top})", remedy="leave it out for 10")
    if bool(args.words) == bool(args.operators):
        raise UsageError(
            "give one operator, or --operators FILE.csv", remedy=f"operators: {', '.join(operator_names())}"
        )
    device = device_for_target(args.target) if args.target else load_device(args.device)
    device, features = planning_of(args, device)
    if (args.rank_by == "xgboost") != (args.measured is not None):
        raise UsageError("--rank-by xgboost goes with --measured FOLDER", remedy="give both, or neither")
    schedule.check(args, device)
    if args.rank_by == "xgboost" and (args.operators or device.kind != "cpu"):
        raise UsageError("--rank-by xgboost ranks one operator's plans for a CPU", remedy="leave it out")
    if args.on_pocl and not args.check:
        raise UsageError("--on-pocl goes with --check", remedy="give both")
    for flag, does in (("check", "executes"), ("compile", "compiles")):
        if getattr(args, flag) and (args.operators or not device.arch.startswith("sm_")):
            what = f"--{flag} {does} one operator's kernels for an NVIDIA GPU"
            raise UsageError(what, remedy="name one by --device")
    if args.operators:
        return _plan_file(args, device, features)
    if len(args.words) == 1 and (missing := lookup(args.words[0]).usage).count("=..."):
        raise UsageError("parameters are missing", args.words[0], f"roller-tvm plan {missing}")
    expression = parse_operator(args.words)
    if args.schedule or args.schedule_from is not None:
        done = schedule.run(args, expression, device, features)
        if args.levels:
            schedule.levels(args, device, features)
        return max(done, schedule.prove(args, device, features)) if args.prove else done
    construction, milliseconds = _timed(expression, device, features, args.top)
    if args.measured is not None:
        construction = import_module("roller_bench.learned").rank_construction(
            construction, device, args.measured, " ".join(args.words))
    resources = _resources(args, device, features) if args.compile else None
    printed = _print(args, expression, construction, device, milliseconds, resources)
    if args.check:
        line, tensors, best = _of_line(args, "execute a plan's kernels", device, features)
        for checked in line.check_plan(best.plan, tensors, device.arch, args.on_pocl):
            print(f"\n#1 {checked}", file=sys.stderr if args.json else sys.stdout)
    if args.levels:
        print()
        schedule.levels(args, device, features)
    if args.prove:
        print()
        return max(printed, schedule.prove(args, device, features))
    return printed


def _print(
    args: argparse.Namespace, expression: TensorExpression, construction: Construction, device: DeviceSpec,
    milliseconds: float, resources: Resources | None,
) -> int:  # fmt: skip
    if args.json:
        data = _json(construction, device, milliseconds)
        print(json.dumps(data | (resources.to_json() if resources else {}), indent=1))
        return 0
    if args.explain:
        print(explain(construction, device, runners_up=min(args.top, 10) - 1, steps=args.steps), end="")
    else:
        print(_text(expression, construction, device, milliseconds))
        if args.steps:
            print(f"\nschedule steps of #1\n{explain_steps(construction.best)}")
    if resources:
        print(f"\n#1 {resources}")
    return 0


@dataclass(frozen=True)
class Resources:
    """Resources of a plan's kernels, or why they were not accepted."""

    arch: str
    variant: str
    kernels: tuple[ResourcesCompared, ...]
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return f"compiled for {self.arch}: {self.refused}"
        changed = f", in a variant that does not spill ({self.variant})" if self.variant else ""
        return "\n".join(resource_lines(self.kernels, f"compiled for {self.arch}{changed}"))

    def to_json(self) -> dict[str, Any]:
        kernels = [kernel.to_json() for kernel in self.kernels]
        return {"compiled": {"arch": self.arch, "variant": self.variant, "refused": self.refused, "kernels": kernels}}


def _of_line(
    args: argparse.Namespace, what_for: str, device: DeviceSpec, features: Features
) -> tuple[ModelLine, list[Any], Any]:
    """Return the line of a TVM, the operator as its tensors, and the best of its plans."""
    line = models_of(args, what_for)
    from roller_tvm.te import te_operator

    tensors = list(te_operator(args.words[0], **parse_params(" ".join(args.words[1:]))))
    return line, tensors, construct(line.read(tensors), device, args.top, features).best


def _resources(args: argparse.Namespace, device: DeviceSpec, features: Features) -> Resources:
    line, tensors, ranked = _of_line(args, "compiling a plan's kernels", device, features)
    found = line.resources(ranked, tensors, device)
    if isinstance(found, Rejection):
        return Resources(device.arch, "", (), str(found))
    pairs = zip(ranked.estimate.programs, found.kernels(device.arch), strict=True)
    compared = tuple(ResourcesCompared.of(estimate, kernel, device) for estimate, kernel in pairs)
    return Resources(device.arch, found.variant, compared)


def _timed(
    expression: TensorExpression, device: DeviceSpec, features: Features, top: int
) -> tuple[Construction, float]:
    start = time.perf_counter()
    construction = construct(expression, device, top, features)
    return construction, (time.perf_counter() - start) * 1e3


def _json(construction: Construction, device: DeviceSpec, milliseconds: float) -> dict[str, Any]:
    return {
        "operator": construction.best.plan.expression.name,
        "device": device.name,
        "plan_ms": round(milliseconds, 3),
        "considered": construction.considered,
        "eps": construction.eps,
        "rejected": dict(Counter(r.rule for r in construction.rejections).most_common()),
        "plans": [p.to_json() for p in construction.plans],
    }


def _tiles(construction: Construction, rank: int) -> str:
    """Tiles of the slowest program, axes with one iteration left out."""
    ranked = construction.plans[rank]
    pairs = zip(ranked.plan.programs, ranked.estimate.programs, strict=True)
    program, _ = max(pairs, key=lambda p: p[1].seconds)
    tiles = (f"{t.level}({' '.join(f'{a}={e}' for a, e in t.extents if e > 1) or '1'})" for t in program.tiles)
    split = [str(s) for s in ranked.plan.split_reductions]
    return " ".join([program.recipe, *tiles, *split])


def _text(expression: TensorExpression, construction: Construction, device: DeviceSpec, milliseconds: float) -> str:
    rejected = len(construction.rejections)
    lines = [
        f"{expression.name} on {device}",
        f"{count(len(construction.plans), 'plan')} of {construction.considered} candidates in {milliseconds:.0f} ms, "
        f"{rejected} times a rule was broken" + (f", eps {construction.eps:g}" if construction.eps else ""),
    ]
    rows = [["rank", "predicted", "FLOP/s", "bound", "", "plan"]]
    best = construction.best
    for rank, ranked in enumerate(construction.plans):
        more = f"{100 * (ranked.seconds / best.seconds - 1):+.1f}%" if rank else ""
        rate = amount(ranked.estimate.gflops * 1e9, "") if ranked.estimate.flops else "-"
        bound, tiles = bound_of(ranked.estimate, device), _tiles(construction, rank)
        rows.append([f"#{rank + 1}", seconds(ranked.seconds), rate.strip(), bound, more, tiles])
    lines += _aligned(rows)
    last = construction.plans[-1]
    if len(construction.plans) > 1 and last.seconds > best.seconds:
        lines.append(f"#{len(construction.plans)} is slower: {why_slower(best, last, device)}")
    return "\n".join([*lines, "--explain tells why; --steps prints the schedule"])


def _aligned(rows: list[list[str]]) -> list[str]:
    """Like ``table``, the last column to the left."""
    front = table([row[:-1] for row in rows], indent="  ")
    width = max(map(len, front))
    return [f"{line:<{width}}  {row[-1]}".rstrip() for line, row in zip(front, rows, strict=True)]


def _plan_file(args: argparse.Namespace, device: DeviceSpec, features: Features) -> int:
    rows = read_operators(args.operators)
    results: list[dict[str, Any]] = []
    failed = 0
    heading = ["id", "operator", "plan ms", "predicted", "FLOP/s", "bound", "plan"]
    if not args.json:
        print(f"{args.operators} on {device}\n{_line(heading)}")
    for number, row in enumerate(rows, 1):
        if sys.stderr.isatty():
            print(f"\r{number}/{len(rows)} {row['id']} ", end="\r", file=sys.stderr, flush=True)
        try:
            expression = operator(row["operator"], **parse_params(row["params"] or ""))
            construction, milliseconds = _timed(expression, device, features, args.top)
        except RollerError as error:
            failed += 1
            results.append({"id": row["id"], "error": str(error)})
            if not args.json:
                print(f"{row['id']:<8}  no plan: {error}")
            continue
        best = construction.best
        results.append({"id": row["id"]} | _json(construction, device, milliseconds))
        if not args.json:
            rate = amount(best.estimate.gflops * 1e9, "") if best.estimate.flops else "-"
            told = [f"{milliseconds:.0f}", seconds(best.seconds), rate.strip(), best.estimate.bound]
            print(_line([row["id"], expression.name, *told, _tiles(construction, 0)]))
    if args.json:
        print(json.dumps(results, indent=1))
    else:
        times = sorted(r["plan_ms"] for r in results if "plan_ms" in r)
        print(f"{len(rows) - failed} of {len(rows)} operators planned")
        if times:
            print(f"planning one: median {times[len(times) // 2]:.0f} ms, at most {times[-1]:.0f} ms")
    return 1 if failed else 0


def _line(cells: list[str]) -> str:
    identity, name, plan_ms, predicted, rate, bound, plan = cells
    return f"{identity:<8}  {name:<22}  {plan_ms:>8}  {predicted:>10}  {rate:>8}  {bound:<8}  {plan}"
