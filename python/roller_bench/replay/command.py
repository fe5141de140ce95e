"""``roller-tvm replay``: record files of Ansor and databases of MetaSchedule held against the micro-performance model.

Ansor's are read without TVM, but for those of a whole model: they know their operators by hashes, which TVM of the
Relay line makes of the model's tasks again. MetaSchedule's hold a trace and a module: TVM of the Relax line applies one
to the other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roller_bench.learned import available
from roller_bench.replay.databases import apart
from roller_bench.replay.file_report import FileReport, add_learned, report_file, summary, text
from roller_bench.replay.plot import scatter
from roller_bench.replay.records import find_files
from roller_bench.replay.replay import FIRST, Predictions, Replayed, WorkloadOf, named_workload, replay_file
from roller_tvm.cli.model import LAYOUTS, say
from roller_tvm.device import DeviceSpec, known_devices, load_device
from roller_tvm.errors import BadInput, UsageError, cannot_write
from roller_tvm.folders import work_folder
from roller_tvm.micro_perf.effects import ALL, EFFECTS, Effects
from roller_tvm.tvm_env import Line, find_tvm
from roller_tvm.tvm_env.locate import refuse_other_line


def add_records(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name records, and the model that they were made for."""
    parser.add_argument(
        "records", nargs="+", type=Path, metavar="RECORDS",
        help="Ansor's record files (.json, .json.gz), folders of them, or a database of MetaSchedule (its folder; "
        "needs the TVM of the Relax line)",
    )  # fmt: skip
    parser.add_argument(
        "--tasks-of", metavar="MODEL",
        help="the model that records of Ansor were made for, where they know their operators by hashes: a file (ONNX, "
        "a Relay module), or a name as of compare --models; needs the TVM of the Relay line",
    )  # fmt: skip
    told = "read a MODEL that is a program (.json, .relay): it can do whatever you can do"
    parser.add_argument("--trust-model", action="store_true", help=told)
    shapes = "shapes of the inputs that MODEL leaves open"
    parser.add_argument("--input-shapes", metavar='"NAME:[1,3,224,224] ..."', help=shapes)
    parser.add_argument("--desired-layout", choices=LAYOUTS, help="convert MODEL's convolutions to this layout")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    add_records(parser)
    devices = ", ".join(d for d in known_devices() if d != "cpu")
    parser.add_argument(
        "--device", required=True, help=f"device of the measurements: {devices}, or a spec file (.toml)"
    )
    parser.add_argument(
        "--first", type=int, default=FIRST, metavar="N",
        help=f"judge on the first N records of each operator that ran; default {FIRST}, 0 for all",
    )  # fmt: skip
    parser.add_argument("--first-only", action="store_true", help="report only the first N records of each operator")
    parser.add_argument(
        "--without", action="append", default=[], metavar="EFFECT",
        help=f"leave an effect out of the model (may be given again): {', '.join(EFFECTS)}",
    )  # fmt: skip
    parser.add_argument("--no-xgboost", action="store_true", help="do not compare with a learned cost model")
    parser.add_argument("--worst", type=int, default=5, metavar="N", help="explain the N worst misses; default 5")
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
    for option in ("input_shapes", "desired_layout"):
        if getattr(args, option) and args.tasks_of is None:
            raise UsageError("it is of a model, and none is given", f"--{option.replace('_', '-')}", "give --tasks-of")
    first = args.first or None
    every = not args.first_only or first is None
    predictions = Predictions(device, effects)
    most = None if every else first
    workload_of = named_workload if args.tasks_of is None else of_model(args, device)
    reports = [report_file(file, predictions, first, every) for file in replayed(args.records, most, workload_of)]
    learned = available() and not args.no_xgboost
    if learned:
        add_learned(reports, predictions, first)
    if args.plot is not None:
        title = f"{device.name}: {sum(len(r.points) for r in reports)} records"
        try:
            args.plot.write_text(scatter(title, [(r.file.kind, r.points) for r in reports]), encoding="utf-8")
        except OSError as error:
            raise cannot_write(error, args.plot) from error
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
            "give records of Ansor or MetaSchedule for a GPU",
        )  # fmt: skip
    return 0


def of_model(args: argparse.Namespace, device: DeviceSpec, any_target: bool = False) -> WorkloadOf:
    """Return a lookup of records' operators among a model's tasks."""
    from roller_bench.zoo import TESTING, find_model

    word, layout = args.tasks_of, args.desired_layout
    is_file = bool(Path(word).suffix) and not word.startswith(TESTING)
    if args.input_shapes and not is_file:
        raise UsageError(f"{word} has shapes of its own", "--input-shapes", "leave it out, or give a model's file")
    refuse_other_line(Line.RELAY, find_tvm(), "reading the tasks of a model")
    from roller_bench.relay_models import testing_model
    from roller_bench.replay.relay import ModelWorkloads
    from roller_tvm.models import parse_shapes
    from roller_tvm.relay.importers import Model, converted, load_model
    from roller_tvm.tvm_env import import_relay_tvm

    import_relay_tvm("reading the tasks of a model")
    shapes = parse_shapes(args.input_shapes) if args.input_shapes else None
    if word.startswith(TESTING):
        find_model(word, Path())  # or an error that names those there are
        mod, params, _ = testing_model(word.removeprefix(TESTING))
        model = Model(mod, params, {})
        model = converted(model, layout) if layout else model
    elif is_file:
        model = load_model(Path(word), shapes, layout, trusted=args.trust_model)
    else:
        with work_folder() as folder:
            found = find_model(word, Path(folder))
            model = load_model(found.path, found.shapes, layout)
    say(f"records are looked up among the tasks of {word}")
    return ModelWorkloads(word, model.mod, model.params, device, any_target)


def replayed(paths: list[Path], most: int | None, workload_of: WorkloadOf) -> Iterator[Replayed]:
    """Everything that the paths hold, file by file and workload by workload."""
    databases, others = apart(paths)
    files = find_files(others)
    for number, path in enumerate((*databases, *files), 1):
        if sys.stderr.isatty():
            told = f"{number}/{len(databases) + len(files)} {path.name:<60.60}"
            print(f"\r{told}", end="\r", file=sys.stderr, flush=True)
        yield from _database(path, most) if number <= len(databases) else replay_file(path, most, workload_of)


def _database(folder: Path, most: int | None) -> list[Replayed]:
    """A database of MetaSchedule, by the only edge that knows TVM's TensorIR."""
    refuse_other_line(Line.RELAX, find_tvm(), "replaying a database of MetaSchedule")
    from roller_bench.replay.relax import replay_database

    return replay_database(folder, most)


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
