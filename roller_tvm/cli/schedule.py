"""``roller-tvm plan --schedule``: an operator's schedule as a script, and one built from a script."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from roller_tvm.cli.line import models_of
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import BadInput, UsageError, WrongAnswer
from roller_tvm.ir import TensorExpression
from roller_tvm.ir.operators import parse_operator
from roller_tvm.planner.explain.words import seconds
from roller_tvm.roller.features import Features
from roller_tvm.schedules.renaming import renamed
from roller_tvm.schedules.scheduled import Scheduled, schedule
from roller_tvm.schedules.script import Script
from roller_tvm.tools import tool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``plan`` about scripts."""
    told = "print the best plan as a script of commands, with the loop nest that it yields"
    parser.add_argument("--schedule", action="store_true", help=told)
    told = "take the schedule from a script, as --schedule prints it: its loops, and its predicted time"
    parser.add_argument("--schedule-from", type=Path, metavar="FILE", help=told)
    told = "with --schedule-from: build it for this CPU, compare its answer, and time it beside Roller's own"
    parser.add_argument("--measure", action="store_true", help=f"{told}; needs a TVM")
    told = "prove the kernels of the best plan, or of --schedule-from, by integer sets: bounds, races, barriers, values"
    parser.add_argument("--prove", action="store_true", help=f"{told}; needs a TVM and islpy")
    told = "print the iterations of these kernels, their order and place, memory and copies, as sets of isl"
    parser.add_argument("--levels", action="store_true", help=f"{told}; needs a TVM and islpy")


def _steps_of(args: argparse.Namespace, device: DeviceSpec, features: Features, why: str) -> tuple[Any, ...]:
    """Return the line, the operator as its tensors, and the steps of the best plan or of a script."""
    from roller_tvm.ir.operators import parse_params
    from roller_tvm.te import te_operator

    line = models_of(args, why)
    tensors = list(te_operator(args.words[0], **parse_params(" ".join(args.words[1:]))))
    read = line.read(tensors)
    if args.schedule_from is None:
        return line, tensors, schedule(read, None, device, features).script.steps
    script = Script.read(_text(args.schedule_from), str(args.schedule_from))
    return line, tensors, renamed(script, parse_operator(args.words), read).steps


def check(args: argparse.Namespace, device: DeviceSpec) -> None:
    """Refuse options that do not go together."""
    given = "--schedule" if args.schedule else "--schedule-from" if args.schedule_from is not None else ""
    others = (("operators", "--operators"), ("explain", "--explain"), ("check", "--check"), ("compile", "--compile"),
              ("json", "--json"), ("measured", "--rank-by"))  # fmt: skip
    if given and (other := next((told for name, told in others if getattr(args, name)), "")):
        raise UsageError(f"{other} does not go with {given}", "plan", "give one of them")
    for name in ("prove", "levels"):
        if getattr(args, name) and (args.operators or args.json):
            raise UsageError(f"--{name} is about one operator, and prints no JSON", "plan", "leave one of them out")
    if args.measure and args.schedule_from is None:
        raise UsageError("--measure goes with --schedule-from FILE", "plan", "give both")
    if args.measure and device.kind != "cpu":
        raise UsageError(f"--measure runs kernels on this CPU, not on {device.name}", "plan", "leave --measure out")


def run(args: argparse.Namespace, expression: TensorExpression, device: DeviceSpec, features: Features) -> int:
    """Print the schedule of an operator: Roller's, or the script's beside it."""
    own = schedule(expression, None, device, features)
    if args.schedule_from is None:
        print(f"{own}\n# predicted {seconds(own.seconds or 0.0)}")
        return 0
    script = Script.read(_text(args.schedule_from), str(args.schedule_from))
    made = schedule(expression, script, device, features)
    print(made)
    print(f"# predicted {_told(made)}; Roller's own {_told(own)}")
    return _measured(args, made, own) if args.measure else 0


def prove(args: argparse.Namespace, device: DeviceSpec, features: Features) -> int:
    """Print the proof of the best plan, or of a script; 1 if it is refuted."""
    line, tensors, steps = _steps_of(args, device, features, "proving a schedule")
    proof = line.prove(tensors, steps, device)
    print(proof)
    return int(proof.answer == "refuted")


def levels(args: argparse.Namespace, device: DeviceSpec, features: Features) -> None:
    """Print the four levels of the best plan's kernels, or of a script's."""
    line, tensors, steps = _steps_of(args, device, features, "reading the levels of a schedule")
    print(line.levels(tensors, steps, device))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", str(path), "give a script, as --schedule prints it") from error


def _told(made: Scheduled) -> str:
    return "unknown: the model prices no such schedule" if made.seconds is None else seconds(made.seconds)


def _as_tvm_reads(args: argparse.Namespace) -> TensorExpression:
    from roller_tvm.ir.operators import parse_params
    from roller_tvm.te import te_operator

    tensors = te_operator(args.words[0], **parse_params(" ".join(args.words[1:])))
    found: TensorExpression = models_of(args, "measuring a schedule").read(list(tensors))
    return found


def _measured(args: argparse.Namespace, made: Scheduled, own: Scheduled) -> int:
    """Build, compare and time both schedules on this CPU, in turns."""
    from roller_tvm.tvm_env import set_threads

    kernels, running = tool("roller_bench.schedule_times"), tool("roller_bench.running")
    set_threads(made.device.units)
    _, build = kernels.operator_here(args.words[0], args.words[1:], made.device.units)
    expected = build(None)[1]()
    timed, read = [], _as_tvm_reads(args)
    for scheduled, name in ((made, str(args.schedule_from)), (own, "Roller's own")):
        times, answer = build(renamed(scheduled.script, scheduled.expression, read).steps)
        if not (error := running.relative_error([answer()], [expected])) <= running.TOLERANCE:
            raise WrongAnswer(f"its answer is {error:.1e} off TVM's own schedule's", name, "report the script")
        timed.append(times)
    (first, second), (again, once_more) = [[kernels.seconds_of(times) for times in timed] for _ in range(2)]
    mine, theirs = min(first, again), min(second, once_more)
    print(f"# measured {seconds(mine)}; Roller's own {seconds(theirs)} ({mine / theirs:.2f} times)")
    return 0
