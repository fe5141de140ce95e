"""``roller-tvm replay``: Ansor's record files held against the micro-performance model. Imports no TVM."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from roller_tvm.baseline.xgb import available
from roller_tvm.device import known_devices, load_device
from roller_tvm.errors import BadInput, UsageError
from roller_tvm.model.effects import ALL, EFFECTS, Effects
from roller_tvm.replay.plot import scatter
from roller_tvm.replay.records import find_files
from roller_tvm.replay.replay import FIRST, Predictions, replay_file
from roller_tvm.replay.report import FileReport, add_learned, report_file, summary, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "records", nargs="+", type=Path, metavar="RECORDS.json[.gz]", help="Ansor's record files, or folders of them"
    )
    devices = ", ".join(d for d in known_devices() if d != "cpu")
    parser.add_argument("--device", required=True, help=f"where they were measured: {devices}, or a spec file (.toml)")
    parser.add_argument(
        "--first", type=int, default=FIRST, metavar="N",
        help=f"judge on a file's first N records that ran; default {FIRST}, 0 for all",
    )  # fmt: skip
    parser.add_argument("--first-only", action="store_true", help="leave out the figures of all records beside them")
    parser.add_argument(
        "--without", action="append", default=[], metavar="EFFECT",
        help=f"leave an effect out of the model (may be given again): {', '.join(EFFECTS)}",
    )  # fmt: skip
    parser.add_argument("--no-xgboost", action="store_true", help="no learned model beside ours")
    parser.add_argument("--worst", type=int, default=5, metavar="N", help="misses that are explained; default 5")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write predicted against measured times")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.epilog = "A log crowds near its optimum, where a random choice is good too: the first records judge.\n"
    parser.epilog += "\neffects:\n" + "\n".join(f"  {name}: {told}" for name, told in EFFECTS.items())


def effects_of(names: list[str]) -> Effects:
    """All effects but those named."""
    effects = ALL
    for name in names:
        if name not in EFFECTS:
            raise UsageError(f"no effect is called {name!r}", "--without", f"effects: {', '.join(EFFECTS)}")
        effects = effects.without(name)
    return effects


def run(args: argparse.Namespace) -> int:
    """Replay and print; 0 if at least one record was read."""
    if args.first < 0 or args.worst < 0:
        raise UsageError("--first and --worst are 0 or more", remedy="leave them out")
    effects = effects_of(args.without)
    device = load_device(args.device)
    if device.kind != "gpu":
        raise UsageError(f"{device.name} is a {device.kind}", "--device", "replay knows the kernels of GPUs")
    if args.plot is not None and not args.plot.resolve().parent.is_dir():
        raise BadInput("no such folder", str(args.plot.parent), f"mkdir -p {args.plot.parent}")
    first = args.first or None
    every = not args.first_only or first is None
    predictions = Predictions(device, effects)
    files = find_files(args.records)
    reports: list[FileReport] = []
    for number, path in enumerate(files, 1):
        if sys.stderr.isatty():
            print(f"\r{number}/{len(files)} {path.name:<60.60}", end="\r", file=sys.stderr, flush=True)
        reports.append(report_file(replay_file(path, None if every else first), predictions, first, every))
    learned = available() and not args.no_xgboost
    if learned:
        add_learned(reports, predictions, first)
    if args.plot is not None:
        title = f"{device.name}: {sum(len(r.points) for r in reports)} records"
        args.plot.write_text(scatter(title, [(r.file.kind, r.points) for r in reports]), encoding="utf-8")
    if args.json:
        print(json.dumps(as_json(reports, device.name, first, args.without), indent=1))
    else:
        print(text(reports, predictions, first, args.worst))
        if not learned and not args.no_xgboost:
            print("\nno learned model beside ours: pip install xgboost")
    read = sum(len(r.file.entries) for r in reports)
    if not read:
        reasons = [f"{r.file.path.name} {s}" for r in reports for s in r.file.skipped[:1]]
        raise BadInput(
            f"no record could be read back; {reasons[0] if reasons else 'none ran'}", str(args.records[0]),
            "give records of Ansor for a GPU",
        )  # fmt: skip
    return 0


def as_json(reports: list[FileReport], device: str, first: int | None, without: list[str]) -> dict[str, Any]:
    """The whole report as plain data."""
    return {
        "device": device, "first": first, "without": without,
        "summary": {
            group: {part: {who: f.to_json() for who, f in table.items()} for part, table in parts.items()}
            for group, parts in summary(reports).items()
        },
        "files": [r.to_json() for r in reports],
    }  # fmt: skip
