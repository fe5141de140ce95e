"""``roller-tvm doctor``."""

from __future__ import annotations

import argparse
import json

from roller_tvm.cli.line import add_line_argument, wanted_line
from roller_tvm.tvm_env.doctor import examine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    add_line_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report; 0 if all that is needed is there, else 1."""
    report = examine(wanted_line(args))
    print(json.dumps(report.to_json(), indent=2) if args.json else report)
    return 0 if report.healthy else 1
