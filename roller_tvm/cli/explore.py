"""``roller-tvm explore``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from roller_tvm.cli.line import (
    add_fusion_arguments,
    add_tracker_arguments,
    add_winograd_argument,
    check_fusion_arguments,
)
from roller_tvm.cli.live import redrawn, write_picture
from roller_tvm.cli.model import add_model_arguments, open_session, read_model, say
from roller_tvm.cli.tune import INTERRUPTED, next_command
from roller_tvm.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    add_model_arguments(parser)
    told = "for the records, as of tune; the state, with which the same command goes on, is beside them"
    parser.add_argument("-o", "--output", type=Path, metavar="RECORDS", help=told)
    parser.add_argument("--top", type=int, default=5, metavar="N", help="plans of each operator; default 5")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="stop exploring after so many seconds of runs")
    parser.add_argument("--runs", type=int, metavar="N", help="stop exploring after so many runs")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the convergence")
    add_winograd_argument(parser)
    add_fusion_arguments(parser)
    add_tracker_arguments(parser, "run the model on a server of TVM's RPC tracker there, instead of here")
    parser.add_argument("--buckets", help=argparse.SUPPRESS)  # refused, with the reason
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Explore; 0 if it ended, also before all was tried."""
    from roller_tvm.explore.result import live_table

    for name in ("top", "budget", "runs"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name} must be above 0 (got {value:g})", remedy="leave it out")
    from roller_tvm.exploring import ModelExploration
    from roller_tvm.tuning.remote import Tracker

    tracker = Tracker.of(args.rpc_tracker, args.rpc_key)
    check_fusion_arguments(args)
    if args.fuse_rtasks or args.buckets:
        raise UsageError("it explores kernels as they are", "--fuse-rtasks", "leave it out")
    if args.output is None:
        raise UsageError("--output is missing", remedy="give a place for the records: --output records")
    session = open_session(args, "exploring a model", tell=True)
    session.line.check_place(args.output, session.aim)
    read_model(args, session)
    if session.line.holds_records(args.output):
        session.records = args.output
    made = ModelExploration(session, args.output, None, args.top, tracker=tracker)
    live, lines = sys.stderr.isatty() and not args.json, 0

    def show(_: Any) -> None:
        nonlocal lines
        lines = redrawn(live_table(made.running.explorer.rows(), made.names, 20), lines)

    code = 0
    try:
        made.explore(args.budget, args.runs, show if live else None)
    except KeyboardInterrupt:
        say("\nroller-tvm: interrupted; what is decided is recorded, the same command goes on")
        code = INTERRUPTED
    result = made.finish()
    if args.picture is not None:
        write_picture(args.picture, result.svg())
    print(json.dumps(result.to_json(), indent=1) if args.json else str(result))
    if not code:
        say(f"next: {next_command(args, session, session.records is not None)}")
    return code
