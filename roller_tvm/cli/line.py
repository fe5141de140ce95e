"""``--line``: which of TVM's two lines a verb works on; that of the TVM present, unless one is insisted on.

The work on a line is `models.line.ModelLine`, the same for both.
"""

from __future__ import annotations

import argparse
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import UsageError
from roller_tvm.models.line import ModelLine, model_line
from roller_tvm.models.planning import planning_on
from roller_tvm.roller.features import Features
from roller_tvm.tvm_env import Line, find_tvm
from roller_tvm.tvm_env.locate import usable_line

LINES = (Line.RELAY, Line.RELAX)


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
    """Return the line that a verb works on: the insisted one, else that of the TVM here; see `usable_line`."""
    return usable_line(what_for, wanted_line(args))


def models_of(args: argparse.Namespace, what_for: str) -> ModelLine:
    """Return the models of the line that a verb works on."""
    return model_line(line_of(args, what_for))


def planning_of(args: argparse.Namespace, device: DeviceSpec) -> tuple[DeviceSpec, Features]:
    """Return the device and features that `plan` plans for; without a TVM, the Relay line's."""
    found = find_tvm()
    line = wanted_line(args) or (found.line if found is not None else Line.UNSUPPORTED)
    return planning_on(line, device)


def add_buckets_argument(parser: argparse.ArgumentParser) -> None:
    """--buckets."""
    told = 'Relax line: sizes of open extents to plan for, e.g. "1,8,32", or "n:1,8 m:128"'
    parser.add_argument("--buckets", metavar="SIZES", help=told)
    told = 'Relax line: least and most of open extents, e.g. "n:1-512"; a run of another size is refused'
    parser.add_argument("--bounds", metavar="BOUNDS", help=told)
    told = 'Relax line: sizes of open extents to plan for before others, e.g. "n:128"; all are served'
    parser.add_argument("--likely", metavar="SIZES", help=told)


def add_winograd_argument(parser: argparse.ArgumentParser) -> None:
    """--no-winograd."""
    told = (
        "Relax line, CPUs: compute 3x3 convolutions directly, never by Winograd's algorithm, whose errors are up to 20 "
        "times as large (some 1e-6 of the largest output)"
    )
    parser.add_argument("--no-winograd", action="store_true", help=told)


def add_fusion_arguments(parser: argparse.ArgumentParser) -> None:
    """--fuse-rtasks, --fusion-policy, and the device that they plan for."""
    from roller_tvm.rammer import POLICIES

    told = "make one kernel (on a CPU one parallel region) of small operators where that is predicted to pay"
    parser.add_argument("--fuse-rtasks", action="store_true", help=told)
    told = f"with --fuse-rtasks, of a GPU: how to schedule; by 'horizontal' no block waits; default {POLICIES[0]}"
    parser.add_argument("--fusion-policy", choices=POLICIES, help=told)
    told = (
        "plan for this device, a name or a spec file (.toml), where the target does not say enough: of a card with "
        "fewer units than others of its architecture (A30, L4, a MIG slice)"
    )
    parser.add_argument("--device", metavar="DEVICE", help=told)


def policy_of(args: argparse.Namespace) -> str:
    """Return the --fusion-policy. It has no argparse default, so that an explicit value can be told."""
    from roller_tvm.rammer import POLICIES

    return str(args.fusion_policy or POLICIES[0])


def check_fusion_arguments(args: argparse.Namespace, *others: tuple[Any, str]) -> None:
    """Refuse what goes with --fuse-rtasks alone: --fusion-policy, and `others` as (what is given, the option)."""
    for given, option in ((args.fusion_policy, "--fusion-policy"), *others):
        if given and not args.fuse_rtasks:
            raise UsageError("it is about what --fuse-rtasks does", option, "give --fuse-rtasks too")


def add_tracker_arguments(parser: argparse.ArgumentParser, told: str) -> None:
    """Add the address of a tracker, with its help, and the key of its servers."""
    parser.add_argument("--rpc-tracker", metavar="HOST:PORT", help=told)
    parser.add_argument("--rpc-key", metavar="KEY", help="key under which the servers are registered")
