"""``compile`` on the Relax line."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from roller_tvm.cli.model import read_model, say, target_of
from roller_tvm.errors import BadInput, UsageError
from roller_tvm.tvm_env import Line, set_threads

OUTPUT = Path("module.so")


def compile_model(args: argparse.Namespace) -> int:
    """Build and write the model."""
    from roller_tvm.relax.package import check_output, save_model, with_signature

    output, records = check_output(args.output or OUTPUT), args.tuning_records
    buckets = parse_buckets(args.buckets) if args.buckets else None
    target = target_of(args, Line.RELAX)
    if records is not None:
        _check_database(records, args.FILE)
    if target["kind"] == "llvm":
        set_threads(target["num-cores"])  # constants are folded by running kernels
    model = read_model(args, Line.RELAX)
    from roller_tvm.relax.pipeline import build

    start = time.perf_counter()
    built = build(with_signature(model.mod, model.inputs), target, model.params, records, buckets=buckets)
    save_model(built, output)
    seconds, size = time.perf_counter() - start, output.stat().st_size
    if args.json:
        told = {"output": str(output), "bytes": size, "target": target, "seconds": seconds,
                "tuning_records": str(records) if records else None}  # fmt: skip
        print(json.dumps(told, indent=1))
        return 0
    how = f"with the records of {records}" if records else "with the plans that the model thinks best, not measured"
    print(f"{output}: {size / 1e6:.1f} MB, built in {seconds:.1f} s {how}")
    say(f"next: roller-tvm run {output} --print-time")
    return 0


def _check_database(folder: Path, model: Path) -> None:
    remedy = f"roller-tvm tune {model} --output {folder}"
    if not folder.exists():
        raise BadInput("no such folder of records", str(folder), remedy)
    if not folder.is_dir():
        raise BadInput("is no folder: records of the Relax line are MetaSchedule's, two files in a folder", str(folder),
                       f"roller-tvm tune {model} --output FOLDER")  # fmt: skip


def parse_buckets(text: str) -> dict[str, list[int]] | list[int]:
    """Sizes of open extents.

    Examples
    --------
    >>> parse_buckets("1,8,32")
    [1, 8, 32]
    >>> parse_buckets("n:1,8 m:128")
    {'n': [1, 8], 'm': [128]}
    """
    named: dict[str, list[int]] = {}
    for word in text.split():
        name, _, sizes = word.rpartition(":")
        numbers = [s for s in sizes.split(",") if s]
        if not numbers or not all(s.isdigit() and int(s) for s in numbers) or name in named:
            raise UsageError(f"'{text}' is not a list of sizes", "--buckets", 'write "1,8,32", or "n:1,8 m:128"')
        named[name] = [int(s) for s in numbers]
    if "" in named and len(named) > 1:
        raise UsageError(f"'{text}' names some variables only", "--buckets", 'write "n:1,8 m:128"')
    return named.get("", named)
