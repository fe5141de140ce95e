"""Plans compiled to cubins, without a GPU: resources beside the prediction, one JSON line a plan, resumable."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from roller_bench.figures import OPERATORS, append_lines, names, read_lines
from roller_bench.figures.resources import DROPPED, architectures, read_results, report
from roller_tvm.codegen.check import ResourcesDiffer
from roller_tvm.device import load_device
from roller_tvm.errors import MeasureError, RollerError
from roller_tvm.ir.operators import parse_params
from roller_tvm.planner import construct
from roller_tvm.roller.alignment import Rejection
from roller_tvm.roller.features import NO_FEATURES, Features

#: (id, rank) of a plan -> its status in an earlier run.
Done = dict[tuple[str, int], str]
# Plans beyond the wanted ones, for those that the compile check drops.
SPARE = 4
#: Plans made at least, however few are compiled: of fewer the best can be another.
PLANNED = 10


def compile_plans(
    base: dict[str, Any], reading: Any, device: Any, archs: list[str], top: int, check: Callable[[Any], Any],
    done: Done | None = None, features: Any = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Plan one operator and compile plans until `top` of them are accepted; yield a result per plan.

    Parameters
    ----------
    base : dict
        First fields of every result; 'id' identifies the operator.
    reading : TeReading or TirReading
    check : function of RankedPlan -> CompiledPlan or Rejection
        Compiles a plan, as either line does.
    done : dict of (id, rank) -> status, optional
        Results of an earlier run, which are not made again.
    features : Features, optional
        What schedules can say beside loops (see ``plan.features``).
    """
    done, own, features = done or {}, base["id"], features or NO_FEATURES
    started = time.perf_counter()
    try:
        construction = construct(reading.expression, device, max(top, PLANNED), features)
    except RollerError as error:
        return [{**base, "rank": 0, "status": "fallback", "error": str(error)}]
    plan_ms = (time.perf_counter() - started) * 1e3
    plans = list(construction.plans)
    results: list[dict[str, Any]] = []
    for rank in range(top + SPARE):
        # A plan that spills, or that TVM cannot carry out, is dropped, and the next one takes its place.
        spilled = sum(done.get((own, n)) in DROPPED for n in range(rank))
        spilled += sum(r["status"] in DROPPED for r in results)
        if (own, rank) in done or rank >= top + spilled:
            continue
        if rank >= len(plans) and spilled:
            known = {ranked.plan for ranked in plans}
            more = construct(reading.expression, device, max(top, PLANNED) + SPARE, features).plans
            plans += [r for r in more if r.plan not in known]
        if rank >= len(plans):
            break
        ranked = plans[rank]
        result: dict[str, Any] = {
            **base, "rank": rank, "recipe": [p.recipe for p in ranked.plan.programs], "plan_ms": round(plan_ms, 1),
            "microseconds": round(ranked.seconds * 1e6, 2), "plan": ranked.plan.digest(),
        }  # fmt: skip
        started = time.perf_counter()
        try:
            checked = check(ranked)
        except ResourcesDiffer as error:
            results.append(result | {"status": "differs", "error": str(error)})
            continue
        except MeasureError as error:
            results.append(result | {"status": "refused", "error": error.what})
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
                "recipe": program.recipe,
                "predicted_registers": p.registers, "predicted_shared": p.shared_bytes, "threads": p.threads,
                **{a: [k.registers, k.local_bytes, k.shared_bytes] for a, k in zip(archs, kernels, strict=True)},
            }
            for program, p, *kernels in zip(
                checked.plan.programs, ranked.estimate.programs, *map(checked.kernels, archs), strict=True
            )
        ]  # fmt: skip
        results.append(result)
    return results


# -- operators --


def compile_operator(
    row: dict[str, str], device: Any, archs: list[str], top: int, compiler: str, dtype: str,
    done: Done,
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

    from roller_tvm.relax.cuda import check_resources
    from roller_tvm.tir import read_prim_func

    func = te.create_prim_func(tensors)
    reading = read_prim_func(func)
    return reading, lambda r: check_resources(r.plan, r.estimate, func, reading, archs, compiler, device)


def compile_operators(parser: argparse.ArgumentParser) -> None:
    """Compile every plan of a list of operators to cubins, and compare the resources with the prediction.

        python -m roller_bench compile-operators --device h200 --archs sm_80,sm_90 --out h200.jsonl

    Each plan is lowered to CUDA source once, through TE schedule primitives or TensorIR, depending on the installed TVM
    (on the Relax line with cp.async and tensor cores), and compiled for every architecture (NVRTC or nvcc); no GPU is
    needed. One JSON line per plan is appended to the output file, so an interrupted run resumes.
    """
    parser.add_argument("--operators", type=Path, default=OPERATORS,
                        help="CSV file with the columns id, operator, params")
    parser.add_argument("--device", default="h200", help="device that the plans are made for; default h200")
    parser.add_argument("--dtype", default="", help="dtype of all operators; default: each operator's own")
    parser.add_argument("--only", default="", help="choose operators by the start of their ids, with commas")
    parser.add_argument("--archs", default="sm_80,sm_90", help="architectures, with commas; default %(default)s")
    parser.add_argument("--compiler", default="auto", choices=("auto", "nvrtc", "nvcc"))
    parser.add_argument("--top", type=int, default=10, help="plans per operator; default %(default)s")
    parser.add_argument("--out", type=Path, default=Path("compiled.jsonl"), help="output file; default %(default)s")
    parser.set_defaults(run=_operators)


def _operators(args: argparse.Namespace) -> int:
    """Append the results of what is not done yet, and print the totals; return 1 if a plan failed."""
    done = {(r["id"], r["rank"]): str(r["status"]) for r in read_lines(args.out)}
    device, archs = load_device(args.device), names(args.archs)

    def compiled() -> Iterator[dict[str, Any]]:
        for row in csv.DictReader(args.operators.open()):
            kept = sum(i == row["id"] and status not in DROPPED for (i, _), status in done.items())
            if row["id"].startswith(tuple(args.only.split(","))) and kept < args.top:
                yield from compile_operator(row, device, archs, args.top, args.compiler, args.dtype, done)

    for result in append_lines(args.out, compiled()):
        print(result["id"], result["status"], result.get("error", "")[:160], file=sys.stderr, flush=True)
    results = read_results(args.out)
    print("\n\n".join(report(results, arch, False) for arch in architectures(results)))
    return 0 if all(r["status"] in ("ok", *DROPPED) for r in results) else 1
