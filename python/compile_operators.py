"""Compile every plan of a list of operators to cubins, and hold the resources against the prediction.

Each plan is lowered through TE schedule primitives to CUDA source once and compiled for every architecture (NVRTC
or nvcc); no GPU is needed. One JSON line a plan is appended to the output file: a run that was interrupted goes on
where it was.

    python python/compile_operators.py --device h200 --archs sm_80,sm_90 --out h200.jsonl
    python python/compile_operators.py --summary h200.jsonl a100.jsonl

The CSV has the columns id, operator, params.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import RollerError  # noqa: E402
from roller_tvm.expr.operators import parse_params  # noqa: E402

# Plans beyond the wanted ones, for those that the compile check drops.
SPARE = 4
OPERATORS = Path(__file__).with_name("roller_osdi22_operators.csv")


def compile_operator(
    row: dict[str, str], device: Any, archs: list[str], top: int, compiler: str, dtype: str,
    done: dict[tuple[str, int], str],
) -> list[dict[str, Any]]:  # fmt: skip
    """Plan one operator and compile plans until `top` of them are accepted; a result a plan."""
    from roller_tvm.plan import construct
    from roller_tvm.plan.align import Rejection
    from roller_tvm.relay.cuda import ResourcesDiffer, check_resources
    from roller_tvm.relay.loops import TeProgram
    from roller_tvm.te import read_te, te_operator

    params = parse_params(row["params"])
    if dtype:
        params["dtype"] = dtype
    tensors = te_operator(row["operator"], **params)
    base = {"id": row["id"], "device": device.name, "dtype": dtype or "float32"}
    try:
        reading = read_te(tensors)
        started = time.perf_counter()
        construction = construct(reading.expression, device, top)
    except RollerError as error:
        return [{**base, "rank": 0, "status": "fallback", "error": str(error)}]
    plan_ms = (time.perf_counter() - started) * 1e3
    known = {ranked.plan for ranked in construction.plans}
    more = construct(reading.expression, device, top + SPARE).plans
    plans = [*construction.plans, *(r for r in more if r.plan not in known)]
    te_program = TeProgram.of_reading(reading, tensors)
    results: list[dict[str, Any]] = []
    for rank, ranked in enumerate(plans):
        # A plan that spills is dropped, and the next one takes its place.
        spilled = [done.get((row["id"], n)) for n in range(rank)].count("spills")
        spilled += sum(r["status"] == "spills" for r in results)
        if (row["id"], rank) in done or rank >= top + spilled:
            continue
        result: dict[str, Any] = {
            **base, "rank": rank, "recipe": [p.recipe for p in ranked.plan.programs], "plan_ms": round(plan_ms, 1),
            "microseconds": round(ranked.seconds * 1e6, 2), "plan": ranked.plan.digest(),
        }  # fmt: skip
        started = time.perf_counter()
        try:
            checked = check_resources(ranked.plan, ranked.estimate, te_program, archs, compiler)
        except ResourcesDiffer as error:
            results.append(result | {"status": "differs", "error": str(error)})
            continue
        except (RollerError, ValueError) as error:
            results.append(result | {"status": "failed", "error": f"{type(error).__name__}: {error}"[:600]})
            continue
        result["build_s"] = round(time.perf_counter() - started, 3)
        if isinstance(checked, Rejection):
            results.append(result | {"status": "spills", "error": str(checked)})
            continue
        result |= {"status": "ok", "variant": checked.variant}
        result["kernels"] = [
            {
                **register_features(checked.plan.expression, program),
                "predicted_registers": p.registers, "predicted_shared": p.shared_bytes, "threads": p.threads,
                **{a: [k.registers, k.local_bytes, k.shared_bytes] for a, k in zip(archs, kernels, strict=True)},
            }
            for program, p, *kernels in zip(
                checked.plan.programs, ranked.estimate.programs, *map(checked.kernels, archs), strict=True
            )
        ]  # fmt: skip
        results.append(result)
    return results


def register_features(expression: Any, program: Any) -> dict[str, Any]:
    """What the register estimate looks at, so that it can be fitted again (python/fit_registers.py)."""
    from roller_tvm.model.geometry import Geometry
    from roller_tvm.model.registers import accumulators, fragments, prefetched

    if program.recipe != "gpu.tiled":
        return {}
    geometry = Geometry.of(expression, program.anchor, program.inlined, program.output)
    block, thread = (tuple(program.tile(level)[a] for a in geometry.axes) for level in ("shared", "register"))
    unrolled = tuple(program.choice(f"unroll:{a}", 1) for a in geometry.axes)
    fetches = [-(-op.elements(block) // (program.choice("threads") * program.choice(f"vector:{op.name}", 1)))
               for op in geometry.operands]
    return {"accumulators": accumulators(geometry, thread), "fragments": fragments(geometry, thread),
            "prefetched": prefetched(geometry, thread, unrolled), "fetches": fetches,
            "unrolled": unrolled, "vectors": list(program.choices_of("vector").values())}


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines of a result file, compressed or not."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def summary(results: list[dict[str, Any]]) -> str:
    """Totals, as text."""
    ok = [r for r in results if r["status"] == "ok"]
    archs = [a for a in ok[0]["kernels"][0] if a.startswith("sm_")] if ok else []
    states = Counter(r["status"] for r in results).most_common()
    lines = [f"{len(results)} plans of {len({r['id'] for r in results})} operators, planned for "
             f"{results[0]['device']}, {results[0]['dtype']}: " + ", ".join(f"{n} {s}" for s, n in states)]
    changed = Counter(r["variant"] for r in ok if r["variant"])
    if changed:
        lines.append("  a variant of the plan was taken because the compiler spilled: "
                     + ", ".join(f"{n} {v}" for v, n in changed.most_common()))
    for r in results:
        if r["status"] != "ok":
            lines.append(f"  {r['id']}#{r['rank']} {r['status']}: " + r["error"].splitlines()[0][:160])
    lost = {r["id"] for r in results} - {r["id"] for r in ok}
    lines.append(f"  fallbacks to TVM's default schedule: {len(lost)}" + "".join(f" {i}" for i in sorted(lost)))
    for arch in archs:
        kernels = [(k, k[arch]) for r in ok for k in r["kernels"]]
        spilled = sum(1 for _, (_, local, _) in kernels if local)
        exact = sum(1 for k, (_, _, shared) in kernels if k["predicted_shared"] == shared)
        ratio = sorted(k["predicted_registers"] / registers for k, (registers, _, _) in kernels)
        at = [ratio[round(q * (len(ratio) - 1))] for q in (0, 0.05, 0.5, 0.95, 1)]
        close = sum(1 for q in ratio if q >= 0.75)
        lines.append(f"  {arch}: {len(kernels)} kernels, with local memory {spilled}, "
                     f"shared memory as predicted {exact}")
        shares = "min {:.2f}, 5% {:.2f}, median {:.2f}, 95% {:.2f}, max {:.2f}".format(*at)
        lines.append(f"    registers predicted / actual: {shares}; within 25% or above: {close}")
    if ok:
        seconds = [r["build_s"] for r in ok]
        lines.append(f"  seconds to lower and compile a plan for {len(archs)} architectures: "
                     f"median {statistics.median(seconds):.2f}, max {max(seconds):.2f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=Path, default=OPERATORS, help="CSV with the columns id, operator, params")
    parser.add_argument("--device", default="h200", help="what the plans are made for")
    parser.add_argument("--archs", default="sm_80,sm_90", help="what they are compiled for")
    parser.add_argument("--compiler", default="auto", choices=("auto", "nvrtc", "nvcc"))
    parser.add_argument("--dtype", default="", help="instead of each operator's own")
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--only", default="", help="ids that start so, with commas")
    parser.add_argument("--out", type=Path, default=Path("compiled.jsonl"))
    parser.add_argument("--summary", type=Path, nargs="+", help="only print the totals of result files")
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
            kept = sum(i == row["id"] and status != "spills" for (i, _), status in done.items())
            if not row["id"].startswith(starts) or kept >= args.top:
                continue
            for result in compile_operator(row, device, archs, args.top, args.compiler, args.dtype, done):
                out.write(json.dumps(result) + "\n")
                out.flush()
            print(row["id"], end=" ", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    results = read_results(args.out)
    print(summary(results))
    return 0 if all(r["status"] in ("ok", "spills") for r in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
