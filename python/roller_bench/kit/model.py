"""Hold today's model against recorded runs of the kit: no card, no TVM.

    python -m roller_bench.kit.model [RECORD ...] [--only M3,C0] [--plans]
    python -m roller_bench.kit.model --keep RECORD --kit build/gpu-kit --results results/results.json

A record (JSON lines, gzipped) has an operator a line: its plans, each beside the time that a card took for it and the
time that the model predicted then. `--keep` writes one from a kit and its results.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roller_bench.kit.archive import archive_path, read_operator
from roller_bench.kit.cases import RTASKS, Case
from roller_bench.kit.results_text import by_family, timed
from roller_tvm.device import DeviceSpec, load_device
from roller_tvm.errors import BadInput, RollerError
from roller_tvm.planner.predict_programs import geometry_of, program_times
from roller_tvm.roller.rprogram import Plan

ROOT = Path(__file__).resolve().parents[3]
#: Records that are kept: ten plans of each operator on an H200, and plans of some drawn from all candidates.
RECORDS = tuple(ROOT / "benchmarks" / "gpu" / "h200" / f"{name}.jsonl.gz" for name in ("plans", "drawn"))
Row = Mapping[str, Any]


def record(kit: Path, results: Row) -> Iterator[dict[str, Any]]:
    """Yield the operators of a run with what its kit knows about their plans, those with right answers."""
    for name, operator in results["operators"].items():
        if operator["operator"] == RTASKS or not timed(operator):
            continue
        case = Case(*(operator[key] for key in ("id", "operator", "params", "dtype")))
        known = {plan.rank: plan for plan in read_operator(archive_path(kit, results["arch"], case)).plans}
        expressions: list[Any] = []
        plans: dict[str, Any] = {}
        for rank in timed(operator):
            plan = dict(known[rank].plan)
            if (expression := plan.pop("expression")) not in expressions:
                expressions.append(expression)
            kept = {key: operator["plans"][str(rank)][key] for key in ("verdict", "variant", "predicted_us", "us")}
            registers = [k.get("registers") for k in known[rank].resources]
            plans[str(rank)] = {**kept, "plan": plan, "expression": expressions.index(expression),
                                "registers": registers}  # fmt: skip
        kept = {key: operator[key] for key in ("id", "operator", "params", "dtype", "planned_for", "torch")}
        yield {"name": name, "card": results["card"]["name"], **kept, "expressions": expressions, "plans": plans}


def write_record(path: Path, rows: Iterable[Row]) -> None:
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_record(path: Path) -> list[dict[str, Any]]:
    """Read a record.

    Raises
    ------
    BadInput
        The file is absent or damaged.
    """
    try:
        return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"cannot be read: {error}", str(path), "write it by --keep") from error


def plans_of(row: Row) -> dict[str, Plan]:
    """Return an operator's plans by rank."""
    return {
        rank: Plan.from_json({**kept["plan"], "expression": row["expressions"][kept["expression"]]})
        for rank, kept in row["plans"].items()
    }  # fmt: skip


def predicted(row: Row, device: DeviceSpec) -> dict[str, float]:
    """Return the model's microseconds of an operator's plans by rank, those of known recipes."""
    groups: dict[Any, list[tuple[str, int]]] = {}
    plans = plans_of(row)
    for rank, plan in plans.items():
        for n, p in enumerate(plan.programs):
            kind = p.choice("async", 0), p.choice("swapped", 0)
            key = row["plans"][rank]["expression"], p.recipe, p.anchor, p.inlined, p.output, kind
            groups.setdefault(key, []).append((rank, n))
    total = dict.fromkeys(plans, 0.0)
    for members in groups.values():
        (rank, n), programs = members[0], [plans[rank].programs[n] for rank, n in members]
        times = program_times(geometry_of(plans[rank], programs[0]), programs, device)
        for at, (rank, _) in enumerate(members):
            total[rank] += float("nan") if times is None else float(times.seconds[at]) * 1e6
    return {rank: us for rank, us in total.items() if us == us}


def today(row: Row) -> dict[str, Any]:
    """Return an operator with today's predictions, its plans in their order."""
    told = predicted(row, load_device(row["planned_for"]))
    order = sorted(told, key=told.__getitem__)
    plans = {str(n): {**row["plans"][rank], "predicted_us": told[rank], "rank": rank} for n, rank in enumerate(order)}
    return {**row, "plans": plans}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table: each family when it was recorded, and now."""
    now = [today(row) for row in rows]
    both = [by_family({"operators": dict(enumerate(some))}) for some in (rows, now)]
    yield (f"{'':<32}{'plans':>6}{'predicted/measured':>20}{'near':>13}{'top-1 regret':>15}{'order':>15}"
           f"{'torch/top-1':>13}")  # fmt: skip
    for name, then in both[0].items():
        after = both[1][name]
        keys = ("predicted_over_measured", "near", "top1_regret", "rank_correlation", "top1_over_torch")
        cells = "".join(f"{then[key]:>9.2f} {after[key]:5.2f}" for key in keys)
        yield f"{name:<32}{then['verdicts']['right']:>6}{cells}"


def lines_of(row: Row) -> Iterator[str]:
    """Yield an operator's plans with both predictions."""
    told, plans = predicted(row, load_device(row["planned_for"])), plans_of(row)
    torch = (row["torch"].get(row["dtype"]) or {}).get("us", {}).get("median")
    yield f"{row['name']} {row['params']}, torch {torch} us"
    for rank, kept in sorted(row["plans"].items(), key=lambda item: told.get(item[0], 0.0)):
        us = kept["us"]["median"]
        programs = " + ".join(
            f"{p.recipe} " + " ".join("x".join(str(e) for _, e in t.extents) for t in p.tiles) + " "
            + " ".join(f"{k}={v}" for k, v in p.choices) for p in plans[rank].programs
        )  # fmt: skip
        yield (f"  {rank:>3} then {kept['predicted_us']:9.1f} now {told.get(rank, 0.0):9.1f} measured {us:9.1f} "
               f"{told.get(rank, 0.0) / us:5.2f}  {programs} registers {kept['registers']}")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="*", type=Path, help="default the records in benchmarks/gpu")
    parser.add_argument("--only", default="", help="choose operators by id or family letters and type, with commas")
    parser.add_argument("--plans", action="store_true", help="print every plan")
    parser.add_argument("--keep", type=Path, help="write this record, from --kit and --results")
    parser.add_argument("--kit", type=Path, help="the kit's folder")
    parser.add_argument("--results", type=Path, help="results.json of its run")
    args = parser.parse_args(arguments)
    try:
        if args.keep:
            write_record(args.keep, record(args.kit, json.loads(args.results.read_text())))
            return 0
        rows = [row for path in args.records or RECORDS for row in read_record(path)]
    except RollerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    wanted = [w for w in args.only.split(",") if w]
    rows = [row for row in rows if not wanted or any(w in (row["name"], row["id"]) for w in wanted)]
    for line in (line for row in rows for line in lines_of(row)) if args.plans else table(rows):
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
