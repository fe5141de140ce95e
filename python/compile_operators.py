"""Compile every plan of a list of operators to cubins, and compare the resources with the prediction.

Each plan is lowered to CUDA source once, through TE schedule primitives or TensorIR, depending on the installed TVM,
and compiled for every architecture (NVRTC or nvcc); no GPU is needed. One JSON line per plan is appended to the output
file, so an interrupted run resumes.

    python python/compile_operators.py --device h200 --archs sm_80,sm_90 --out h200.jsonl
    python python/compile_operators.py --summary h200.jsonl a100.jsonl

The CSV has the columns id, operator, params.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compiling import DROPPED, compile_plans, read_results, summary  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import RollerError  # noqa: E402
from roller_tvm.ir.operators import parse_params  # noqa: E402
from roller_tvm.roller.features import NO_FEATURES, Features  # noqa: E402

OPERATORS = Path(__file__).with_name("roller_osdi22_operators.csv")


def compile_operator(
    row: dict[str, str], device: Any, archs: list[str], top: int, compiler: str, dtype: str,
    done: dict[tuple[str, int], str],
) -> list[dict[str, Any]]:  # fmt: skip
    """Plan one operator and compile plans until `top` of them are accepted; yield a result per plan."""
    from roller_tvm.te import te_operator
    from roller_tvm.tvm_env.locate import line

    params = parse_params(row["params"])
    if dtype:
        params["dtype"] = dtype
    tensors = te_operator(row["operator"], **params)
    base = {"id": row["id"], "device": device.name, "dtype": dtype or "float32"}
    try:
        relax = line() == "relax"
        reading, check = (through_tir if relax else through_te)(tensors, device, archs, compiler)
    except RollerError as error:
        return [{**base, "rank": 0, "status": "fallback", "error": str(error)}]
    features = Features.of_tensor_ir(device) if relax else NO_FEATURES
    return compile_plans(base, reading, device, archs, top, check, done, features)


def through_te(tensors: Any, _device: Any, archs: list[str], compiler: str) -> tuple[Any, Any]:
    """Return (reading, check of a plan), through TE schedule primitives."""
    from roller_tvm.codegen.apply_te import TeProgram
    from roller_tvm.relay.cuda import check_resources
    from roller_tvm.te import read_te

    reading = read_te(tensors)
    program = TeProgram.of_reading(reading, tensors)
    return reading, lambda ranked: check_resources(ranked.plan, ranked.estimate, program, archs, compiler)


def through_tir(tensors: Any, device: Any, archs: list[str], compiler: str) -> tuple[Any, Any]:
    """Return (reading, check of a plan), through TensorIR."""
    from tvm import te

    from roller_tvm.tir import read_prim_func
    from roller_tvm.tir.cuda import check_resources

    func = te.create_prim_func(tensors)
    reading = read_prim_func(func)
    return reading, lambda r: check_resources(r.plan, r.estimate, func, reading, archs, compiler, device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=Path, default=OPERATORS,
                        help="CSV file with the columns id, operator, params")
    parser.add_argument("--device", default="h200", help="device that the plans are made for; default h200")
    parser.add_argument("--archs", default="sm_80,sm_90",
                        help="architectures to compile for, with commas; default %(default)s")
    parser.add_argument("--compiler", default="auto", choices=("auto", "nvrtc", "nvcc"))
    parser.add_argument("--dtype", default="", help="dtype of all operators; default: each operator's own")
    parser.add_argument("--top", type=int, default=10, help="plans per operator; default 10")
    parser.add_argument("--only", default="", help="choose operators by the start of their ids, with commas")
    parser.add_argument("--out", type=Path, default=Path("compiled.jsonl"), help="output file; default compiled.jsonl")
    parser.add_argument("--summary", type=Path, nargs="+",
                        help="compile nothing; print the totals of these result files")
    args = parser.parse_args()
    if args.summary:
        print("\n".join(summary(read_results(path)) for path in args.summary))
        return 0
    device, archs = load_device(args.device), args.archs.split(",")
    done: dict[tuple[str, int], str] = {}
    if args.out.exists():
        done = {(r["id"], r["rank"]): r["status"] for r in read_results(args.out)}
    starts = tuple(args.only.split(","))
    with args.operators.open() as rows, args.out.open("a") as out:
        for row in csv.DictReader(rows):
            kept = sum(i == row["id"] and status not in DROPPED for (i, _), status in done.items())
            if not row["id"].startswith(starts) or kept >= args.top:
                continue
            for result in compile_operator(row, device, archs, args.top, args.compiler, args.dtype, done):
                out.write(json.dumps(result) + "\n")
                out.flush()
            print(row["id"], end=" ", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    results = read_results(args.out)
    print(summary(results))
    return 0 if all(r["status"] in ("ok", *DROPPED) for r in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
