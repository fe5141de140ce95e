"""``roller-tvm compile``."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roller_tvm.cli.line import (
    add_buckets_argument,
    add_fusion_arguments,
    add_winograd_argument,
    check_fusion_arguments,
)
from roller_tvm.cli.model import add_model_arguments, open_session, read_model, say, tune_words
from roller_tvm.cli.nodes import add_nodes_arguments, compile_for_nodes
from roller_tvm.errors import BadInput, RecordWarning, RollerError, UnplannedWarning, UsageError, cannot_write
from roller_tvm.models.line import SCHEDULES
from roller_tvm.models.package import REPORT
from roller_tvm.progress import progress_line
from roller_tvm.tvm_env.compiler import is_foreign

#: Lines of records that cannot be read, said one by one.
SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    add_model_arguments(parser)
    parser.add_argument(
        "--tuning-records",
        type=Path,
        metavar="RECORDS",
        help="records that 'roller-tvm tune' wrote; operators without a record follow --schedules",
    )
    told = "schedules of operators without a record: Roller's first plan (default), or TVM's own"
    parser.add_argument("--schedules", choices=SCHEDULES, default=SCHEDULES[0], help=told)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="package as TVMC writes it (.tar), or library (.so); default module.tar; on the Relax line module.so",
    )
    add_buckets_argument(parser)
    add_winograd_argument(parser)
    told = "Relax line, cuda: products of float32 on tensor cores, rounded to tf32 (answers change); default off"
    parser.add_argument("--tf32", action="store_true", help=told)
    told = "CPUs: erf and tanh of float32 within 8 units in the last place, not 2, in less time"
    parser.add_argument("--fast-math", action="store_true", help=told)
    told = "kernels that Roller did not plan are an error; by default a table lists them, with the reasons"
    parser.add_argument("--strict", action="store_true", help=told)
    told = "prove each kernel by integer sets, and execute those that stay undecided; a wrong one is an error"
    parser.add_argument("--prove", action="store_true", help=f"{told}; needs islpy")
    add_fusion_arguments(parser)
    parser.add_argument("--explain", action="store_true", help="with --fuse-rtasks: print every plan, and why")
    told = "with --fuse-rtasks: draw the operators over time, before and after (of several graphs FILE.1.svg, ...)"
    parser.add_argument("--timeline", type=Path, metavar="FILE.svg", help=told)
    told = (
        "with --fuse-rtasks: execute the fused kernels whose blocks do not wait (all of --fusion-policy horizontal) in "
        "OpenCL by PoCL on this CPU too, and compare them with their operators; needs pyopencl and PoCL"
    )
    parser.add_argument("--on-pocl", action="store_true", help=told)
    add_nodes_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print what was built as JSON")


def run(args: argparse.Namespace) -> int:
    """Build and write the model."""
    _check_fusion(args)
    if args.nodes is not None:
        return compile_for_nodes(args)
    for name in ("states", "along"):
        if getattr(args, name) is not None:
            raise UsageError("it is about what --nodes does", f"--{name}", "give --nodes too")
    session = open_session(args, "compiling a model", tell=False)
    if (records := args.tuning_records) is not None:
        session.line.check_records(records, session.aim, lambda target, place: tune_words(args, target, place))
        session.records = records
    read_model(args, session)
    witnessed = _witnessed(session.on_pocl()) if args.on_pocl else {}
    start = time.perf_counter()
    with reading_records(records), telling_left(), progress_line() as progress:
        built = session.built(progress)
    if records is not None:
        kernels = getattr(built, REPORT).plans
        say(f"records: {sum(k.how == 'record' for k in kernels)} of {len(kernels)} operators had one in {records}")
    output = session.save(args.output or session.line.output)
    seconds, size = time.perf_counter() - start, output.stat().st_size
    fusion = session.fused() if args.fuse_rtasks else None
    pictures = _draw(args.timeline, fusion.pictures()) if args.timeline and fusion is not None else []
    if args.json:
        told: dict[str, Any] = {
            "output": str(output),
            "bytes": size,
            "target": session.aim.words,
            "seconds": seconds,
            "tuning_records": str(records) if records else None,
            "proofs": {k.kernel: k.proof for k in getattr(built, REPORT).plans} if args.prove else None,
            "left_to_tvm": [{"kernel": k.kernel, "reason": k.reason} for k in getattr(built, REPORT).left_to_tvm],
        }
        if fusion is not None:
            told["fusion"] = {
                "kernels": fusion.launches, "kernels_one_by_one": fusion.sequential_launches,
                "predicted_s": fusion.predicted_seconds, "predicted_s_one_by_one": fusion.sequential_seconds,
                "outside": dict(fusion.outside), "refused": list(fusion.refused),
                "timelines": [str(p) for p in pictures], "on_pocl": witnessed,
            }  # fmt: skip
        print(json.dumps(told, indent=1))
    else:
        untuned = "with TVM's own schedules" if args.schedules == "tvm" else "with Roller's first plans, not measured"
        how = f"with the records of {records}" if records else untuned
        print(f"{output}: {size / 1e6:.1f} MB, built in {seconds:.1f} s {how}")
        if proofs := getattr(built, REPORT).proofs():
            print(proofs)
        if fusion is not None:
            print(fusion.explain() if args.explain else str(fusion).splitlines()[0])
            if (fusion.outside or fusion.refused) and not args.explain:
                say(
                    f"  {len(fusion.outside)} operators are in no plan, {len(fusion.refused)} plans or kernels were "
                    "refused: --explain tells why"
                )
        for picture in pictures:
            print(f"timeline: {picture}")
        words = session.aim.words
        kind = words["kind"] if isinstance(words, dict) else words.split()[0]
        there = f"copy it to a machine of {session.triple}, then there: " if is_foreign(session.triple) else ""
        emulated = " (without a GPU: --emulate)" if kind == "cuda" else ""
        say(f"next: {there}roller-tvm run {output} --print-time{emulated}")
    return 0


@contextlib.contextmanager
def telling_left() -> Iterator[None]:
    """Say the table of kernels that Roller did not plan, in place of a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnplannedWarning)
        yield
    for one in caught:
        if issubclass(one.category, UnplannedWarning):
            say(str(one.message))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


@contextlib.contextmanager
def reading_records(records: Path | None) -> Iterator[None]:
    """Say which lines of the records cannot be read: how many, and of the first each place and reason."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecordWarning)
        yield
    lost = [str(one.message).partition("\n")[0] for one in caught if issubclass(one.category, RecordWarning)]
    for one in caught:
        if not issubclass(one.category, RecordWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if lost:
        say(f"{records}: {len(lost)} line{'s' if len(lost) > 1 else ''} could not be read, and left out:")
        for told in lost[:SHOWN]:
            say(f"  {told}")
        if len(lost) > SHOWN:
            say(f"  and {len(lost) - SHOWN} more")


def _check_fusion(args: argparse.Namespace) -> None:
    """Mistakes that need no model to be found."""
    check_fusion_arguments(
        args, (args.explain, "--explain"), (args.timeline, "--timeline"), (args.on_pocl, "--on-pocl")
    )
    if args.timeline is None:
        return
    if args.timeline.suffix != ".svg":
        raise UsageError(f"'{args.timeline}' does not end in .svg", "--timeline", "give a name such as timeline.svg")
    if not args.timeline.parent.is_dir():
        raise BadInput("no such folder", str(args.timeline.parent), f"mkdir -p {args.timeline.parent}")


def _witnessed(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the result of each fused kernel executed in OpenCL; prints them on the way.

    Raises
    ------
    WrongAnswer, ToolchainError
        A kernel's results are wrong, or PoCL failed for another reason than a missing feature.
    """
    from roller_tvm.codegen.errors import NotEmulated
    from roller_tvm.rammer.cuda_functions import CannotFuse

    for name, result in found.items():
        say(f"{name}: {str(result).splitlines()[0] if isinstance(result, RollerError) else result}")
    for result in found.values():
        if isinstance(result, RollerError) and not isinstance(result, (CannotFuse, NotEmulated)):
            raise result
    agreed = sum(not isinstance(result, RollerError) for result in found.values())
    say(
        f"PoCL executed {agreed} of {len(found)} fused kernels, and they agree with their operators"
        + ("" if agreed == len(found) else "; --fusion-policy horizontal makes kernels whose blocks do not wait")
    )
    return {name: str(result) for name, result in found.items()}


def _draw(path: Path, pictures: Sequence[str]) -> list[Path]:
    """One picture a graph; of several each has a number."""
    paths = [path] if len(pictures) == 1 else [path.with_suffix(f".{n}.svg") for n in range(1, len(pictures) + 1)]
    for where, picture in zip(paths, pictures, strict=True):
        try:
            where.write_text(picture, encoding="utf-8")
        except OSError as error:
            raise cannot_write(error, where) from error
    return paths
