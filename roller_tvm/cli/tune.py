"""``roller-tvm tune``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from roller_tvm.cli.model import add_model_arguments, read_model, say, target_of
from roller_tvm.errors import BadInput, UsageError
from roller_tvm.tvm_env import Line

INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    add_model_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="RECORDS",
        help="record file, in auto_scheduler's format; tasks that it has are not tuned again",
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
        "--device",
        metavar="DEVICE",
        help="plan for this device, a name or a spec file (.toml), where the target does not say enough",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="give a candidate up after so long (building, and running)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Tune; 0 if every task got a plan or a correct fallback."""
    if args.trials < 0:
        raise UsageError(
            f"--trials must be 0 or more (got {args.trials})", remedy="0 plans without measuring"
        )
    if args.timeout is not None and args.timeout <= 0:
        raise UsageError(f"--timeout must be above 0 (got {args.timeout:g})", remedy="leave it out")
    if args.tasks != "list" and args.output is None:
        raise UsageError("--output is missing", remedy="give a file for the records: --output records.json")
    if args.output is not None and args.output.is_dir():
        raise BadInput("is a folder", str(args.output), f"give a file: --output {args.output}/records.json")
    target = target_of(args, Line.RELAY)
    device = _device(args, target)
    if args.tasks != "list":
        _check_tasks(args.tasks)
        _check_records(args.output)
    start = time.perf_counter()
    model = read_model(args, Line.RELAY)
    if args.tasks == "list":
        return _list(args, model, target, device)
    return _tune(args, model, target, device, start)


def _device(args: argparse.Namespace, target: str) -> Any:
    """The device, before the model is imported: a mistake in it should not cost that time."""
    from roller_tvm.device import device_for_target, load_device

    if args.device:
        from roller_tvm.relay.tasks import check_device, make_target
        from roller_tvm.tvm_env import import_relay_tvm

        import_relay_tvm("tuning a Relay model")
        device = load_device(args.device)
        check_device(device, make_target(target))
    else:
        device = device_for_target(target)
    say(f"device: {device}")
    for note in device.notes if device.source != "data sheet" or not args.device else ():
        say(f"  note: {note}")
    return device


def _check_tasks(text: str) -> None:
    from roller_tvm.relay.tasks import select

    numbers = [int(n) for n in "".join(c if c.isdigit() else " " for c in text).split()]
    select(text, max(numbers, default=0) + 1)


def _check_records(path: Path) -> None:
    from roller_tvm.relay.records import read_records

    if not path.parent.is_dir():
        raise BadInput("no such folder", str(path.parent), f"mkdir -p {path.parent}")
    if path.exists() and not path.is_file():  # a device, a pipe
        raise BadInput("is not a regular file", str(path), "give another file")
    read_records(path)


def _list(args: argparse.Namespace, model: Any, target: str, device: Any) -> int:
    from roller_tvm.measure.table import si
    from roller_tvm.relay.tasks import extract_tasks, make_target

    tasks = extract_tasks(model.mod, model.params, make_target(target), device)
    if args.json:
        fields = ("id", "name", "flops", "weight", "key")
        print(json.dumps([{f: getattr(t, f) for f in fields} for t in tasks], indent=1))
        return 0
    print(f"{'ID':>3}  {'FLOP':>9}  {'Weight':>6}  Name")
    for task in tasks:
        print(f"{task.id:>3}  {si(task.flops):>9}  {task.weight:>6}  {task.name}")
    print(f"{len(tasks)} tasks, {si(sum(t.flops * t.weight for t in tasks), 'FLOP')} a run")
    return 0


def _tune(args: argparse.Namespace, model: Any, target: str, device: Any, start: float) -> int:
    from roller_tvm.measure.table import header, row, summary, table, to_json
    from roller_tvm.relay import tune
    from roller_tvm.relay.measure import Limits

    limits = Limits(build_s=args.timeout, run_s=args.timeout) if args.timeout else Limits()
    rows = sys.stderr if args.json else sys.stdout
    done = 0

    def progress(tuned: Any, count: int) -> None:
        nonlocal done
        if not done:
            print(header(), file=rows)
        done += 1
        print(row(tuned), file=rows, flush=True)

    try:
        result = tune(
            model.mod,
            model.params,
            target,
            args.output,
            args.trials,
            device,
            args.tasks,
            progress=progress,
            limits=limits,
        )
    except KeyboardInterrupt:
        kept = f"the records in {args.output} are intact" if done else "no task was done yet"
        say(f"\nroller-tvm: interrupted after {done} tasks; {kept}")
        say("  remedy: run the same command again: it resumes with the tasks that are left")
        return INTERRUPTED
    result.seconds["with import"] = time.perf_counter() - start
    if args.json:
        print(json.dumps(to_json(result), indent=1))
    else:
        print(summary(result).removeprefix(table(result)).strip())
        words = f'{args.FILE} --target "{target}" --tuning-records {args.output}'
        say(f"next: roller-tvm compile {words} -o model.tar")
    return 0
