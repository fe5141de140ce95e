"""``--line``: which of TVM's two lines a verb works on; that of the TVM present, unless one is insisted on."""

from __future__ import annotations

import argparse

from roller_tvm.errors import NoTvm, TvmLineError
from roller_tvm.tvm_env import Line, find_tvm
from roller_tvm.tvm_env.locate import REMEDY, VERSION_TEXT, refuse_other_line

LINES = (Line.RELAY, Line.RELAX)
EITHER = f"{REMEDY[Line.RELAX]} (Relax), or {REMEDY[Line.RELAY]} (Relay)"


def add_line_argument(parser: argparse.ArgumentParser) -> None:
    """--line."""
    parser.add_argument(
        "--line",
        choices=[line.value for line in LINES],
        help="insist on TVM's Relay line (0.13 to 0.19) or Relax line (0.25 on); default: the TVM that is here",
    )


def wanted_line(args: argparse.Namespace) -> Line | None:
    """The line that is insisted on, or None."""
    return Line(args.line) if args.line else None


def line_of(args: argparse.Namespace, what_for: str) -> Line:
    """The line that a verb works on.

    Raises
    ------
    NoTvm, TvmLineError
        If there is no TVM, or not the one that is insisted on; with what to install.
    """
    wanted, found = wanted_line(args), find_tvm()
    if wanted is not None:
        refuse_other_line(wanted, found, what_for)
        return wanted
    if found is None:
        raise NoTvm(f"{what_for} needs TVM, and none can be imported", remedy=EITHER)
    if found.line is Line.UNSUPPORTED:
        versions = " or ".join(VERSION_TEXT[line] for line in LINES)
        remedy = f"in an environment of its own: {EITHER}"
        raise TvmLineError(f"{what_for} needs TVM {versions} (got {found.version})", str(found.root), remedy)
    return found.line
