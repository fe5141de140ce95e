"""Plans compiled to cubins, without a GPU: resources beside the prediction, one JSON line a plan, resumable."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roller_bench.figures import OPERATORS, append_lines, read_lines
from roller_bench.figures.resources import architectures, read_results, report
from roller_tvm.codegen.check import ResourcesDiffer
from roller_tvm.device import DeviceSpec, load_device
from roller_tvm.errors import MeasureError, RollerError
from roller_tvm.ir.operators import parse_params
from roller_tvm.models.line import ModelLine, model_line
from roller_tvm.models.planning import planning_on
from roller_tvm.planner import construct
from roller_tvm.roller.alignment import Rejection
from roller_tvm.roller.features import Features
from roller_tvm.te import te_operator
from roller_tvm.tvm_env.locate import usable_line

#: States of plans that others take the place of.
DROPPED = ("spills", "refused")
#: Plans beyond the wanted ones, for those that the compiler's check drops; a few more can change which are best.
SPARE = 10


def compile_operators(parser: argparse.ArgumentParser) -> None:
    """Compile the plans of a list of operators to cubins, and compare the resources with the prediction.

        python -m roller_bench compile-operators --device h200 --top 2 --out h200.jsonl
        python -m roller_bench resources h200.jsonl                                   # the table again

    Each plan is lowered to CUDA source, through TE schedule primitives or TensorIR, depending on the installed TVM (on
    the Relax line with cp.async and tensor cores), and compiled for the device's architecture (NVRTC or nvcc); no GPU
    is needed. One JSON line a plan is appended to the output file; operators that it has are not compiled again.
    """
    parser.add_argument("--operators", type=Path, default=OPERATORS,
                        help="CSV file with the columns id, operator, params")
    parser.add_argument("--device", default="h200", help="device that the plans are made for; default h200")
    parser.add_argument("--dtype", default="", help="dtype of all operators; default: each operator's own")
    parser.add_argument("--only", default="", help="choose operators by the start of their ids, with commas")
    parser.add_argument("--top", type=int, default=10, help="plans per operator; default %(default)s")
    parser.add_argument("--out", type=Path, default=Path("compiled.jsonl"), help="output file; default %(default)s")
    parser.set_defaults(run=_operators)


def compiled(
    row: dict[str, str], line: ModelLine, device: DeviceSpec, features: Features, dtype: str, top: int
) -> Iterator[dict[str, Any]]:
    """Plan an operator, compile plans until `top` of them are accepted; yield a result a plan."""
    tensors = te_operator(row["operator"], **parse_params(row["params"]), **({"dtype": dtype} if dtype else {}))
    base: dict[str, Any] = {"id": row["id"], "device": device.name, "dtype": dtype or "float32"}
    started, left = time.perf_counter(), top
    try:
        plans = construct(line.read(tensors), device, top + SPARE, features).plans
    except RollerError as error:
        yield {**base, "rank": 0, "status": "fallback", "error": str(error)}
        return
    base["plan_ms"] = round((time.perf_counter() - started) * 1e3, 1)
    for rank, ranked in enumerate(plans):
        if not left:
            return
        programs = ranked.plan.programs
        result = {**base, "rank": rank, "recipe": [p.recipe for p in programs], "plan": ranked.plan.digest(),
                  "microseconds": round(ranked.seconds * 1e6, 2)}  # fmt: skip
        started = time.perf_counter()
        try:
            found = line.resources(ranked, tensors, device)
        except (RollerError, ValueError) as error:
            kinds = {ResourcesDiffer: "differs", MeasureError: "refused"}
            status = next((word for kind, word in kinds.items() if isinstance(error, kind)), "failed")
            left -= status not in DROPPED
            yield result | {"status": status, "error": str(error)[:600]}
            continue
        if isinstance(found, Rejection):
            yield result | {"status": "spills", "error": str(found)}
            continue
        left -= 1
        pairs = zip(found.plan.programs, ranked.estimate.programs, found.kernels(device.arch), strict=True)
        yield result | {
            "status": "ok", "variant": found.variant, "build_s": round(time.perf_counter() - started, 3),
            "kernels": [
                {"recipe": program.recipe, "predicted_registers": p.registers, "predicted_shared": p.shared_bytes,
                 "threads": p.threads, device.arch: [k.registers, k.local_bytes, k.shared_bytes]}
                for program, p, k in pairs
            ],
        }  # fmt: skip


def _operators(args: argparse.Namespace) -> int:
    """Append the results of what is not done yet, and print the table; return 1 if a plan failed."""
    here = usable_line("compiling plans")
    device, features = planning_on(here, load_device(args.device))
    done = {row["id"] for row in read_lines(args.out)}

    def rows() -> Iterator[dict[str, Any]]:
        for row in csv.DictReader(args.operators.open()):
            if row["id"].startswith(tuple(args.only.split(","))) and row["id"] not in done:
                yield from compiled(row, model_line(here), device, features, args.dtype, args.top)

    for result in append_lines(args.out, rows()):
        print(result["id"], result["status"], result.get("error", "")[:160], file=sys.stderr, flush=True)
    results = read_results(args.out)
    print("\n\n".join(report(results, arch, False) for arch in architectures(results)))
    return 0 if all(r["status"] in ("ok", *DROPPED) for r in results) else 1
