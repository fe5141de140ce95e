"""``roller-tvm compile``."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from roller_tvm.cli.line import line_of
from roller_tvm.cli.model import add_model_arguments, read_model, say, target_of
from roller_tvm.errors import BadInput, RecordError, UsageError
from roller_tvm.tvm_env import Line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    add_model_arguments(parser)
    parser.add_argument(
        "--tuning-records",
        type=Path,
        metavar="RECORDS",
        help="what 'roller-tvm tune' wrote; without it TVM's own schedules, on the Relax line Roller's plans",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="package as TVMC writes it (.tar), or library (.so); default module.tar; on the Relax line module.so",
    )
    parser.add_argument(
        "--buckets",
        metavar="SIZES",
        help='Relax line: sizes of open extents to plan for, e.g. "1,8,32", or "n:1,8 m:128"',
    )
    parser.add_argument("--json", action="store_true", help="print what was built as JSON")


def run(args: argparse.Namespace) -> int:
    """Build and write the model."""
    if line_of(args, "compiling a model") is Line.RELAX:
        from roller_tvm.cli.relax import compile_model

        return compile_model(args)
    if args.buckets:
        raise UsageError("open extents are fixed at import on the Relay line", "--buckets", "use --input-shapes")
    args.output = args.output or Path("module.tar")
    from roller_tvm.device import device_for_target
    from roller_tvm.device.from_target import parse_target
    from roller_tvm.relay.package import check_output, save_model
    from roller_tvm.relay.records import read_kept, read_records

    check_output(args.output)
    target = target_of(args, Line.RELAY)
    device_for_target(target)
    records = args.tuning_records
    if records is not None:
        if not records.is_file():
            raise BadInput(
                "no such record file", str(records), f"roller-tvm tune {args.FILE} --output {records}"
            )
        known = read_records(records)
        if not known and not read_kept(records):
            raise BadInput(
                "holds no records", str(records), f"roller-tvm tune {args.FILE} --output {records}"
            )
        kinds = sorted({parse_target(r.target).kind for r in known})
        if kinds and (kind := parse_target(target).kind) not in kinds:
            raise RecordError(
                f"its records are for {', '.join(kinds)}, the target is {kind}",
                str(records),
                f'roller-tvm tune {args.FILE} --target "{target}" --output OTHER.json',
            )
    model = read_model(args, Line.RELAY)
    from roller_tvm.relay import build

    start = time.perf_counter()
    library = build(model.mod, model.params, target, records)
    save_model(library, args.output)
    seconds, size = time.perf_counter() - start, args.output.stat().st_size
    if args.json:
        print(
            json.dumps(
                {
                    "output": str(args.output),
                    "bytes": size,
                    "target": target,
                    "seconds": seconds,
                    "tuning_records": str(records) if records else None,
                },
                indent=1,
            )
        )
    else:
        how = f"with the records of {records}" if records else "with TVM's own schedules"
        print(f"{args.output}: {size / 1e6:.1f} MB, built in {seconds:.1f} s {how}")
        say(f"next: roller-tvm run {args.output} --print-time")
    return 0
