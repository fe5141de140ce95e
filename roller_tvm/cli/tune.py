"""``roller-tvm tune``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from roller_tvm.cli.line import (
    add_buckets_argument,
    add_fusion_arguments,
    add_tracker_arguments,
    add_winograd_argument,
    check_fusion_arguments,
)
from roller_tvm.cli.model import add_model_arguments, model_words, open_session, read_model, say
from roller_tvm.errors import UsageError
from roller_tvm.session import Session
from roller_tvm.tuning.remote import Tracker

INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    add_model_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="RECORDS",
        help="record file, in auto_scheduler's format; on the Relax line a folder, with MetaSchedule's files; "
        "tasks that it has are not tuned again",
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=10,
        metavar="N",
        help="measure the N best plans of each task; 0 plans without measuring; default 10",
    )
    parser.add_argument(
        "--tasks", default="all", help="list (print them and stop), all, or numbers and ranges: 0,2,3-5; default all"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="give up a candidate that takes longer to build, or to run"
    )
    add_tracker_arguments(parser, "measure on the servers of TVM's RPC tracker there, instead of here")
    add_buckets_argument(parser)
    add_winograd_argument(parser)
    add_fusion_arguments(parser)
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the convergence")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Tune; 0 if every task got a plan or a correct fallback."""
    if args.trials < 0:
        raise UsageError(f"--trials must be 0 or more (got {args.trials})", remedy="0 plans without measuring")
    if args.timeout is not None and args.timeout <= 0:
        raise UsageError(f"--timeout must be above 0 (got {args.timeout:g})", remedy="leave it out")
    check_fusion_arguments(args)
    Tracker.of(args.rpc_tracker, args.rpc_key)
    if args.tasks != "list":
        if args.output is None:
            remedy = "give a file for the records: --output records.json (Relax line: a folder)"
            raise UsageError("--output is missing", remedy=remedy)
        _check_tasks(args.tasks)
    start = time.perf_counter()
    session = open_session(args, "tuning a model", tell=True)
    if args.tasks != "list":
        session.line.check_place(args.output, session.aim)
    read_model(args, session)
    return _list(args, session.tasks()) if args.tasks == "list" else _tune(args, session, start)


def _check_tasks(text: str) -> None:
    from roller_tvm.tuning.selection import select

    numbers = [int(n) for n in "".join(c if c.isdigit() else " " for c in text).split()]
    select(text, max(numbers, default=0) + 1)


def _list(args: argparse.Namespace, tasks: list[Any]) -> int:
    from roller_tvm.tuning.results import si

    if args.json:
        fields = ("id", "name", "flops", "weight", "key")
        print(json.dumps([{f: getattr(t, f) for f in fields} for t in tasks], indent=1))
        return 0
    print(f"{'ID':>3}  {'FLOP':>9}  {'Weight':>6}  Name")
    for task in tasks:
        print(f"{task.id:>3}  {si(task.flops):>9}  {task.weight:>6}  {task.name}")
    print(f"{len(tasks)} tasks, {si(sum(t.flops * t.weight for t in tasks), 'FLOP')} a run")
    return 0


def _tune(args: argparse.Namespace, session: Session, start: float) -> int:
    from roller_tvm.cli.live import redrawn, write_picture
    from roller_tvm.explore.result import convergence, live_table
    from roller_tvm.tuning.results import header, history, live_rows, row, summary, table, to_json
    from roller_tvm.tuning.session import Limits

    limits = Limits(build_s=args.timeout, run_s=args.timeout) if args.timeout else Limits()
    rows = sys.stderr if args.json else sys.stdout
    live, lines = sys.stdout.isatty() and sys.stderr.isatty() and not args.json, 0
    known: list[Any] = []

    def progress(tuned: Any, count: int) -> None:
        nonlocal lines
        known.append(tuned)
        if live:  # it grows in its place
            lines = redrawn(live_table(live_rows(known), {}), lines)
        else:
            print("" if known[1:] else f"{header()}\n", row(tuned), sep="", file=rows, flush=True)

    try:
        result = session.tune(args.trials, args.output, args.tasks, progress=progress, limits=limits,
                              tracker=args.rpc_tracker, key=args.rpc_key)  # fmt: skip
    except KeyboardInterrupt:
        kept = f"the records in {args.output} are intact" if known else "no task was done yet"
        say(f"\nroller-tvm: interrupted after {len(known)} tasks; {kept}")
        say("  remedy: run the same command again: it resumes with the tasks that are left")
        return INTERRUPTED
    result.seconds["with import"] = time.perf_counter() - start
    if args.picture is not None:
        write_picture(args.picture, convergence(history(known), "operators tuned"))
    if args.json:
        print(json.dumps(to_json(result), indent=1))
    else:
        print(summary(result).removeprefix("" if live else table(result)).strip())
        say(f"next: {next_command(args, session, bool(result.tasks))}")
    return 0


def next_command(args: argparse.Namespace, session: Session, tuned: bool) -> str:
    """Return the command that compiles the model with its records, or without if nothing was `tuned`."""
    words = session.aim.words
    if not (args.fuse_rtasks or session.line.lays_out):  # all that depends on the device is in the records
        args = argparse.Namespace(**{**vars(args), "device": None})
    command = f"roller-tvm compile {model_words(args, words if isinstance(words, str) else args.target)}"
    records = f" --tuning-records {shlex.quote(str(args.output))}" if tuned else ""
    return f"{command}{records} -o {session.line.example}"
