"""Compile plans to cubins and compare them with the prediction; shared by the scripts compile_*.py."""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from roller_tvm.device.arch import arch_number

# Plans beyond the wanted ones, for those that the compile check drops.
SPARE = 4
#: Plans made at least, however few are compiled: of fewer the best can be another.
PLANNED = 10
#: States of plans that others take the place of.
DROPPED = ("spills", "refused")
#: A prediction of registers that is held to be right: at most this share below what the compiler took.
CLOSE = 0.75


def compile_plans(
    base: dict[str, Any], reading: Any, device: Any, archs: list[str], top: int, check: Callable[[Any], Any],
    done: dict[tuple[str, int], str] | None = None, features: Any = None,
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
    from roller_tvm.codegen.check import ResourcesDiffer
    from roller_tvm.errors import MeasureError, RollerError
    from roller_tvm.planner import construct
    from roller_tvm.roller.alignment import Rejection
    from roller_tvm.roller.features import NO_FEATURES

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
                **register_features(checked.plan.expression, program),
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


@dataclass(frozen=True)
class Tasks:
    """A network's tasks, extracted by either line.

    Parameters
    ----------
    tasks : sequence
        Tasks with `id` and `name`.
    devices : mapping of architecture to DeviceSpec
        Devices that plans are made for.
    read : function of (task, architecture) -> (reading, check of a plan)
    features : function of DeviceSpec -> Features, optional
        Returns the capabilities of the schedules.
    dtype : str
        Of most tensors.
    """

    tasks: Sequence[Any]
    devices: Mapping[str, Any]
    read: Callable[[Any, str], tuple[Any, Callable[[Any], Any]]]
    features: Callable[[Any], Any] | None = None
    dtype: str = "float32"

    def compiled(
        self, network: str, top: int, done: dict[tuple[str, int], str], only: set[str]
    ) -> Iterator[dict[str, Any]]:
        """Yield results, task by task, for the tasks chosen by `only` that are not in `done`."""
        from roller_tvm.errors import RollerError

        for task in self.tasks:
            own = f"{network}:{task.id}"
            if only and own not in only and task.name not in only:
                continue
            for arch, device in self.devices.items():
                base = {"id": f"{own}@{arch}", "name": task.name, "device": device.name, "dtype": self.dtype}
                if any((base["id"], rank) in done for rank in range(top)):
                    continue
                try:
                    reading, check = self.read(task, arch)
                except RollerError as error:
                    yield {**base, "rank": 0, "status": "fallback", "error": str(error)}
                    continue
                features = self.features(device) if self.features else None
                yield from compile_plans(base, reading, device, [arch], top, check, done, features)


def tasks_main(doc: str, models: Sequence[str], archs: str, take_apart: Callable[..., Tasks]) -> int:
    """Run the command line of a script that compiles the tasks of networks; return the exit code.

    Parameters
    ----------
    take_apart : function of (model, batch, architectures, folder, compiler) -> Tasks
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(models), help="names, with commas; default %(default)s")
    parser.add_argument("--batches", default="1,64", help="batch sizes, with commas; default %(default)s")
    parser.add_argument("--archs", default=archs, help="architectures, with commas; default %(default)s")
    parser.add_argument("--only", default="", help="choose tasks by name or number (resnet50_b1:3), with commas")
    parser.add_argument("--compiler", default="auto", choices=("auto", "nvrtc", "nvcc"))
    parser.add_argument("--top", type=int, default=1, help="plans per task; default 1")
    parser.add_argument("--folder", type=Path, default=Path("demo-out/models"),
                        help="folder for networks; default %(default)s")
    parser.add_argument("--out", type=Path, default=Path("compiled_tasks.jsonl"),
                        help="output file; default %(default)s")
    parser.add_argument("--summary", type=Path, nargs="+",
                        help="compile nothing; print the totals of these result files")
    args = parser.parse_args()
    if args.summary:
        print("\n".join(summary(read_results(path), "tasks") for path in args.summary))
        return 0
    done: dict[tuple[str, int], str] = {}
    if args.out.exists():
        done = {(r["id"], r["rank"]): r["status"] for r in read_results(args.out)}
    only = set(filter(None, args.only.split(",")))
    with args.out.open("a") as out:
        for name in args.models.split(","):
            for batch in map(int, args.batches.split(",")):
                network = take_apart(name, batch, args.archs.split(","), args.folder, args.compiler)
                for result in network.compiled(f"{name}_b{batch}", args.top, done, only):
                    out.write(json.dumps(result) + "\n")
                    out.flush()
                    print(result["id"], result["status"], result.get("name", ""), file=sys.stderr, flush=True)
    results = read_results(args.out)
    print(summary(results, "tasks"))
    return 0 if all(r["status"] in ("ok", *DROPPED) for r in results) else 1


def register_features(expression: Any, program: Any) -> dict[str, Any]:
    """Return the inputs of the register estimate, so that it can be fitted again (python/fit_registers.py)."""
    from roller_tvm.micro_perf.geometry import Geometry
    from roller_tvm.micro_perf.registers import accumulators, fragments, prefetched

    geometry = Geometry.of(expression, program.anchor, program.inlined, program.output)
    if program.recipe != "gpu.tiled":
        return {
            "operands": len(geometry.operands), "guarded": sum(op.guarded for op in geometry.operands),
            "reduction": prod(geometry.extents[i] for i in geometry.reduce),
            "choices": {k: v for k, v in program.choices if ":" not in k},
        }  # fmt: skip
    block, thread = (tuple(program.tile(level)[a] for a in geometry.axes) for level in ("shared", "register"))
    unrolled = tuple(program.choice(f"unroll:{a}", 1) for a in geometry.axes)
    fetches = [
        -(-op.elements(block) // (program.choice("threads") * program.choice(f"vector:{op.name}", 1)))
        for op in geometry.operands
    ]
    return {
        "accumulators": accumulators(geometry, thread),
        "fragments": fragments(geometry, thread),
        "prefetched": prefetched(geometry, thread, unrolled),
        "fetches": fetches,
        "unrolled": unrolled,
        "vectors": list(program.choices_of("vector").values()),
    }


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a result file, compressed or not."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def kernels_for(results: Sequence[dict[str, Any]], arch: str) -> list[tuple[dict[str, Any], list[int]]]:
    """Return (prediction, [registers, local bytes, shared bytes]) of every accepted kernel compiled for `arch`."""
    return [(k, k[arch]) for r in results if r["status"] == "ok" for k in r["kernels"] if arch in k]


def summary(results: list[dict[str, Any]], what: str = "operators") -> str:
    """Return the totals, as text."""
    ok = [r for r in results if r["status"] == "ok"]
    archs = sorted({a for r in ok for k in r["kernels"] for a in k if a.startswith("sm_")}, key=arch_number)
    states = Counter(r["status"] for r in results).most_common()
    devices = "/".join(sorted({r["device"] for r in results}))
    lines = [
        f"{len(results)} plans of {len({r['id'] for r in results})} {what}, planned for "
        f"{devices}, {results[0]['dtype']}: " + ", ".join(f"{n} {s}" for s, n in states)
    ]
    recipes = Counter("+".join(r["recipe"]) for r in ok).most_common()
    lines.append("  recipes: " + ", ".join(f"{n} {r}" for r, n in recipes))
    changed = Counter(r["variant"] for r in ok if r["variant"])
    if changed:
        lines.append(
            "  a variant of the plan was taken because the compiler spilled: "
            + ", ".join(f"{n} {v}" for v, n in changed.most_common())
        )
    for r in results:
        if r["status"] != "ok":
            lines.append(f"  {r['id']}#{r['rank']} {r['status']}: " + r["error"].splitlines()[0][:160])
    lost = {r["id"] for r in results} - {r["id"] for r in ok}
    lines.append(f"  fallbacks to TVM's default schedule: {len(lost)}" + "".join(f" {i}" for i in sorted(lost)))
    for arch in archs:
        kernels = kernels_for(results, arch)
        spilled = sum(1 for _, (_, local, _) in kernels if local)
        exact = sum(1 for k, (_, _, shared) in kernels if k["predicted_shared"] == shared)
        ratio = sorted(k["predicted_registers"] / registers for k, (registers, _, _) in kernels)
        at = [ratio[round(q * (len(ratio) - 1))] for q in (0, 0.05, 0.5, 0.95, 1)]
        close = sum(1 for q in ratio if q >= CLOSE)
        lines.append(
            f"  {arch}: {len(kernels)} kernels, with local memory {spilled}, "
            f"shared memory as predicted {exact}"
            + (f", and their alignment more {len(kernels) - exact}" if exact < len(kernels) else "")
        )
        shares = "min {:.2f}, 5% {:.2f}, median {:.2f}, 95% {:.2f}, max {:.2f}".format(*at)
        lines.append(f"    registers predicted / actual: {shares}; within 25% or above: {close}")
    if ok:
        seconds = [r["build_s"] for r in ok]
        lines.append(
            f"  seconds to lower and compile a plan: median {statistics.median(seconds):.2f}, max {max(seconds):.2f}"
        )
    return "\n".join(lines)
