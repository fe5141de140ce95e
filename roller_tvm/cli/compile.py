"""``roller-tvm compile``."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from roller_tvm.cli.line import add_buckets_argument, edge_of
from roller_tvm.cli.model import add_model_arguments, say


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
    add_buckets_argument(parser)
    told = "Relax line, cuda: products of float32 on tensor cores, rounded to tf32 (answers change); default off"
    parser.add_argument("--tf32", action="store_true", help=told)
    parser.add_argument("--json", action="store_true", help="print what was built as JSON")


def run(args: argparse.Namespace) -> int:
    """Build and write the model."""
    built = edge_of(args, "compiling a model").build(args)
    start = time.perf_counter()
    output = built.build()
    seconds, size, records = time.perf_counter() - start, output.stat().st_size, args.tuning_records
    if args.json:
        print(
            json.dumps(
                {
                    "output": str(output),
                    "bytes": size,
                    "target": built.target,
                    "seconds": seconds,
                    "tuning_records": str(records) if records else None,
                },
                indent=1,
            )
        )
    else:
        how = f"with the records of {records}" if records else built.untuned
        print(f"{output}: {size / 1e6:.1f} MB, built in {seconds:.1f} s {how}")
        say(f"next: roller-tvm run {output} --print-time")
    return 0
