"""``roller-tvm compare``: Roller beside other tuners, on operators of a suite or tasks of a model."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

from roller_tvm.cli.line import add_line_argument, line_of
from roller_tvm.cli.model import LAYOUTS, say
from roller_tvm.errors import UsageError
from roller_tvm.models import parse_shapes

EXAMPLES = """examples:
  roller-tvm compare --suite demo                             small operators: a first look
  roller-tvm compare --suite paper_batch1 --tuners roller:1,roller,ansor:1000 -o comparison
  roller-tvm compare model.onnx --tuners roller,ansor --only conv2d -o comparison
  roller-tvm compare --suite networks --list                  what is in it
  roller-tvm compare --models mobilenet_v2,bert_base,net.onnx -o comparison     whole models, beside onnxruntime
tuners:
  roller        Roller's best plans, measured; roller:1 takes the first plan
  untuned       TVM's schedules without tuning
  dlight        dlight's rules for GPUs
  autotvm       AutoTVM
  ansor         Ansor
  metaschedule  MetaSchedule
  xgboost       Roller's plans, chosen to be measured by a cost model that learns
  ranked        Roller's plans, ranked by xgboost's measurements of other operators
  onnxruntime   whole models only
an interrupted comparison goes on with the same command; the folder holds index.html, results.csv, results.json
"""
LEFT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.epilog = EXAMPLES
    told = "compare on the tasks of this model: a file, or a name as for --models"
    parser.add_argument("FILE", nargs="?", type=Path, help=told)
    parser.add_argument("--suite", metavar="NAME|FILE.csv", help="operators to compare on; --list prints the names")
    told = (
        "whole models end to end: mobilenet_v2, bert_base, detection, a light network of the onnx package "
        "(resnet50, squeezenet, ...), testing:NAME (of relay.testing), or ONNX files; --list tells the names"
    )
    parser.add_argument("--models", metavar="NAME,FILE.onnx", help=told)
    parser.add_argument("--only", default="", metavar="WORDS", help="run only cases with these ids or title words")
    tuners = (
        "tuners to compare, each with optional :TRIALS (listed below); default: all of the line except those with "
        "xgboost, and roller:1; for whole models, those that do not search"
    )
    parser.add_argument("--tuners", metavar="A,B:TRIALS", help=tuners)
    parser.add_argument("--trials", type=int, metavar="N", help="trials of each tuner that searches; default 64")
    parser.add_argument("--target", help="target to compare on; default: this CPU")
    told = "folder of the results; default: comparison; a comparison that is there goes on"
    parser.add_argument("-o", "--output", type=Path, default=Path("comparison"), metavar="FOLDER", help=told)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no new case after this time")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="stop a tuner on a case after this time")
    told = "forget the results of these tuners; 'times' forgets only the times of the final comparison"
    parser.add_argument("--again", default="", metavar="TUNERS", help=told)
    told = "try again the cases that crashed, failed or ran out of time"
    parser.add_argument("--retry", action="store_true", help=told)
    told = "tune and time only when nothing else runs here; wait so long at most, and note it"
    parser.add_argument("--quiet", type=float, default=0.0, metavar="SECONDS", help=told)
    told = "go on in a folder that holds figures of another machine: each case on one machine, and the report tells"
    parser.add_argument("--mix-machines", action="store_true", help=told)
    parser.add_argument("--report", action="store_true", help="run nothing; write the report of existing results")
    parser.add_argument("--list", action="store_true", help="print the suites and models, or the cases, and stop")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--input-shapes", metavar='"NAME:[1,3,224,224] ..."', help="shapes of a model's dynamic inputs")
    parser.add_argument("--desired-layout", choices=LAYOUTS, help="convert a model's convolutions to this layout")
    told = "read a FILE that is a program (.pt2, .json, .relay): it can do whatever you can do"
    parser.add_argument("--trust-model", action="store_true", help=told)
    parser.add_argument("--params", type=Path, metavar="FILE.params", help="weights of a Relay or Relax module")
    add_line_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Compare; 0 when nothing is left to do."""
    if args.list and args.FILE is None and args.models is None:
        return _list(args)
    if sum(given is not None for given in (args.FILE, args.suite, args.models)) != 1:
        raise UsageError("give a model, a suite, or --models", "roller-tvm compare", "for instance --suite demo")
    if args.trials is not None and args.trials < 1:
        raise UsageError(f"--trials must be 1 or more (got {args.trials})", remedy="leave it out")
    if args.report and (args.again or args.retry):
        told = f"--report runs nothing, so there is nothing for {'--again' if args.again else '--retry'} to do"
        raise UsageError(told, "roller-tvm compare", "leave one of them out")
    for name, given, of in (
        ("--params", args.params, "--suite" if args.suite else "--models" if args.models else ""),
        ("--input-shapes", args.input_shapes, "--suite" if args.suite else ""),
        ("--desired-layout", args.desired_layout, "--suite" if args.suite else ""),
    ):
        if given and of:
            raise UsageError(f"{name} says nothing about {of}", name, "leave one of them out")
    request = _request(args)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is to end with it
    try:
        return _compare(args, request)
    finally:
        signal.signal(signal.SIGTERM, before)


def _compare(args: argparse.Namespace, request: Any) -> int:
    from roller_bench.cases import choose, load_suite
    from roller_bench.comparison import make_report, to_json
    from roller_bench.page import write
    from roller_bench.pictures import pictures
    from roller_bench.run import Comparison
    from roller_bench.tables import progress_line, text

    begun = time.monotonic()
    cases = choose(load_suite(args.suite), args.only) if args.suite else ()
    with Comparison(request) as comparison:
        comparison.open(args.report)
        if args.models:
            cases = choose(comparison.whole_models(_names(args.models), _shapes(args), args.desired_layout), args.only)
        elif not args.suite:
            cases = choose(comparison.model(_model(args)), args.only)
        if args.list:
            print("\n".join(f"{c.id:<24} {c.group:<16} {c.title}" for c in cases))
            return 0
        comparison.forget(args.again, cases)
        if args.retry:
            comparison.retry()
        done = True
        if not args.report:
            comparison.prepare(cases)

            def progress(case: Any, tuner: Any, tuned: Any) -> None:
                say(progress_line(case, tuner, tuned.status, tuned.reason, tuned.seconds, tuned.claimed_s))

            done = comparison.run(cases, progress, begun + args.seconds)
        if args.report:  # of a comparison that goes on elsewhere, what there is
            known = {digest for digest, _ in comparison.results.tuned}
            cases = tuple(c for c in cases if c.digest in known) or cases
        report = make_report(comparison.results, cases, request.tuners, comparison.environment)
    command = shlex.join(["roller-tvm", *sys.argv[1:]])
    try:
        drawings = pictures(report)
    except UsageError as error:  # no matplotlib
        drawings = {}
        say(f"no pictures: {error.one_line()}")
    page = write(report, args.output, drawings, command)
    print(json.dumps(to_json(report), indent=1) if args.json else text(report), end="" if not args.json else "\n")
    say(f"page: {page}")
    if not done:
        say("time was up before the end: the same command goes on")
    return 0 if done else LEFT


def _request(args: argparse.Namespace) -> Any:
    from roller_bench.run import Request
    from roller_bench.tuners import default_tuners, parse_tuners
    from roller_tvm.device import cpu_device, default_cpu_target, device_for_target

    line = str(line_of(args, "comparing tuners").value)
    target = args.target or default_cpu_target(cpu_device().units)
    device = device_for_target(target)
    of = "model" if args.models else "operator"
    if args.models and device.kind != "cpu":
        told = "whole models are compared on this machine's CPU alone"
        raise UsageError(told, f"--target {target}", "leave --target out, or compare a model's operators: compare FILE")
    tuners = parse_tuners(args.tuners or default_tuners(line, device.kind, of), args.trials)
    threads = device.units if device.kind == "cpu" else 1
    edge = f"roller_bench.{line}"
    return Request(edge, line, target, device, tuners, args.output, threads, args.timeout,
                   quiet_s=args.quiet, mixed=args.mix_machines)  # fmt: skip


def _model(args: argparse.Namespace) -> dict[str, Any]:
    from roller_bench.zoo import find_model, known_models

    file, known = args.FILE, {name for names in known_models().values() for name in names}
    if not file.exists() and str(file) in known:  # a model by its name, written to a file
        file = find_model(str(file), args.output / "models").path
    return {
        "file": str(file), "shapes": _shapes(args),
        "layout": args.desired_layout, "params": str(args.params) if args.params else None,
        "trusted": args.trust_model,
    }  # fmt: skip


def _names(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _shapes(args: argparse.Namespace) -> dict[str, list[int]] | None:
    shapes = parse_shapes(args.input_shapes) if args.input_shapes else None
    return {n: list(s) for n, s in shapes.items()} if shapes else None


def _list(args: argparse.Namespace) -> int:
    from roller_bench.cases import choose, load_suite, suites

    if args.suite:
        print("\n".join(f"{c.id:<18} {c.group:<14} {c.title}" for c in choose(load_suite(args.suite), args.only)))
        return 0
    for name in suites():
        cases = load_suite(name)
        print(f"{name:<16} {len(cases):>4} operators: {', '.join(dict.fromkeys(c.group for c in cases))}")
    from roller_bench.zoo import known_models

    print("\n--models:")
    for source, names in known_models().items():
        print(f"{source}: {', '.join(names) or 'pip install onnx'}")
    return 0
