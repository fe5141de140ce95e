"""Compile every plan of a list of operators to a cubin, and hold the resources against the prediction.

Each plan is lowered through TE schedule primitives to CUDA source and compiled (NVRTC or nvcc); no GPU is
needed. One JSON line a plan is appended to the output file: a run that was interrupted goes on where it was.

    python python/compile_operators.py --operators operators.csv --device h200 --arch sm_90 --out h200.jsonl
    python python/compile_operators.py --summary h200.jsonl

The CSV has the columns id, operator, params.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from roller_tvm.device import load_device
from roller_tvm.errors import RollerError
from roller_tvm.expr.operators import operator, parse_params


def compile_operator(row: dict[str, str], device: Any, arch: str, top: int, done: set[tuple[str, int]]) -> list[dict[str, Any]]:
    """Plan one operator and compile each of its plans; a result a plan."""
    from roller_tvm.lower import lower
    from roller_tvm.plan import construct
    from roller_tvm.relay.apply_te import apply_steps_te
    from roller_tvm.relay.cuda import cuda_source
    from roller_tvm.relay.loops import TeProgram
    from roller_tvm.te import read_te, te_operator
    from roller_tvm.toolchain import compile_cuda, kernel_resources

    params = parse_params(row["params"])
    started = time.perf_counter()
    try:
        construction = construct(operator(row["operator"], **params), device, top)
    except RollerError as error:
        return [{"id": row["id"], "rank": -1, "arch": arch, "status": "not planned", "error": str(error)}]
    plan_ms = (time.perf_counter() - started) * 1e3
    tensors = te_operator(row["operator"], **params)
    reading = read_te(tensors)
    construction = construct(reading.expression, device, top)
    results = []
    for rank, ranked in enumerate(construction.plans):
        if (row["id"], rank) in done:
            continue
        result: dict[str, Any] = {"id": row["id"], "rank": rank, "arch": arch, "device": device.name,
                                  "recipe": [p.recipe for p in ranked.plan.programs], "plan_ms": round(plan_ms, 1),
                                  "seconds": ranked.seconds, "plan": ranked.plan.digest()}  # fmt: skip
        started = time.perf_counter()
        try:
            schedule, args = apply_steps_te(TeProgram.of_reading(reading, tensors), lower(ranked.plan))
            source = cuda_source(schedule, args, arch)
            result["lower_s"] = round(time.perf_counter() - started, 3)
            kernels = kernel_resources(compile_cuda(source, arch))
            result["compile_s"] = round(time.perf_counter() - started - result["lower_s"], 3)
            predicted = [p for p in ranked.estimate.programs]
            result["status"] = "ok"
            result["kernels"] = [
                {"registers": k.registers, "local": k.local_bytes, "shared": k.shared_bytes,
                 "predicted_registers": p.registers, "predicted_shared": p.shared_bytes, "threads": p.threads}
                for k, p in zip(kernels.values(), predicted, strict=True)
            ]  # fmt: skip
        except (RollerError, ValueError) as error:
            result |= {"status": "failed", "error": f"{type(error).__name__}: {error}"[:400]}
        results.append(result)
    return results


def summary(path: Path) -> str:
    """Totals of a result file, as text."""
    results = [json.loads(line) for line in path.read_text().splitlines()]
    kernels = [(r, k) for r in results if r["status"] == "ok" for k in r["kernels"]]
    lines = [f"{len(results)} plans of {len({r['id'] for r in results})} operators: "
             + ", ".join(f"{n} {s}" for s, n in Counter(r["status"] for r in results).most_common())]
    spilled = [(r, k) for r, k in kernels if k["local"]]
    lines.append(f"kernels {len(kernels)}, with local memory (spills) {len(spilled)}"
                 + "".join(f"\n  {r['id']}#{r['rank']} {k}" for r, k in spilled[:10]))
    wrong = [(r, k) for r, k in kernels if k["shared"] != k["predicted_shared"]]
    lines.append(f"shared memory as predicted: {len(kernels) - len(wrong)} of {len(kernels)}"
                 + "".join(f"\n  {r['id']}#{r['rank']} {r['recipe']} {k}" for r, k in wrong[:10]))
    if kernels:
        ratio = sorted(k["predicted_registers"] / k["registers"] for _, k in kernels)
        at = [ratio[int(q * (len(ratio) - 1))] for q in (0, 0.05, 0.5, 0.95, 1)]
        lines.append("registers predicted / actual: min {:.2f}, 5% {:.2f}, median {:.2f}, 95% {:.2f}, max {:.2f}".format(*at))
        lines.append(f"seconds a plan, median: lower {statistics.median(r['lower_s'] for r, _ in kernels):.2f}, "
                     f"compile {statistics.median(r['compile_s'] for r, _ in kernels):.2f}")
    lines += [f"  {r['id']}#{r['rank']} {r['status']}: {r['error'][:300]}" for r in results if r["status"] != "ok"][:10]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=Path, help="CSV with the columns id, operator, params")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--only", default="", help="ids that start so")
    parser.add_argument("--out", type=Path, default=Path("compiled.jsonl"))
    parser.add_argument("--summary", type=Path, help="only print the totals of a result file")
    args = parser.parse_args()
    if args.summary:
        print(summary(args.summary))
        return 0
    if not args.operators:
        parser.error("--operators is needed")
    device = load_device(args.device)
    done: set[tuple[str, int]] = set()
    if args.out.exists():
        done = {(r["id"], r["rank"]) for r in map(json.loads, args.out.read_text().splitlines())}
    with args.operators.open() as rows, args.out.open("a") as out:
        for row in csv.DictReader(rows):
            if not row["id"].startswith(args.only) or all((row["id"], n) in done for n in range(args.top)):
                continue
            for result in compile_operator(row, device, args.arch, args.top, done):
                out.write(json.dumps(result) + "\n")
                out.flush()
            print(row["id"], end=" ", flush=True, file=sys.stderr)
    print(summary(args.out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
