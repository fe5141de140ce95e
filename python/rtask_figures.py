#!/usr/bin/env python3
"""Predict rTask fusion of whole models at batch 1: kernels launched, makespan, seconds of scheduling.

    python python/rtask_figures.py                                  # six models, h200 and v100
    python python/rtask_figures.py lstm --devices a100 --explain    # the plan in words

Needs the Relax line of TVM (0.25 or later); no GPU, and nothing is compiled. Both sides run Roller's kernels: one by
one, and fused by ``roller_tvm.rammer``; launched from a stream, and as nodes of a CUDA graph. The costs of a launch and
a barrier are in ``roller_tvm/device/data/_cuda.toml``, with their source. Exit code 1 if a figure is missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.planner.explain.words import table  # noqa: E402
from roller_tvm.rammer import POLICIES, DataFlowGraph, FusionPlan, explain_fusion, plan_graph  # noqa: E402
from roller_tvm.rammer.veu import LAUNCHES  # noqa: E402
from roller_tvm.relax.branchy import MODELS, PARTS, build  # noqa: E402

#: What is wanted (issue 7): geometric means over the six models, and kernels of the three that are named.
WANTED = {"stream": 1.8, "graph": 1.3}
FEWER, FEWER_OF = 3.0, ("nasnet", "resnext", "lstm")
SCHEDULING_S, SCHEDULED_OPERATORS = 10.0, 1000


@dataclass(frozen=True)
class Row:
    """A model planned for a device, launched in one way."""

    model: str
    device: str
    launch: str
    operators: int
    plans: tuple[FusionPlan, ...]
    scheduling_s: float

    @property
    def unfused(self) -> int:
        return sum(p.sequential_launches for p in self.plans)

    @property
    def fused(self) -> int:
        return sum(p.launches for p in self.plans)

    @property
    def unfused_us(self) -> float:
        return sum(p.sequential_seconds for p in self.plans) * 1e6

    @property
    def fused_us(self) -> float:
        return sum(p.seconds for p in self.plans) * 1e6

    @property
    def faster(self) -> float:
        return self.unfused_us / self.fused_us


def graphs_of(model: str, device: str) -> list[DataFlowGraph]:
    """Return the parts of a model that can be planned; print a note if some are left out."""
    from roller_tvm.relax.fuse_rtasks import rtask_graph

    found = rtask_graph(build(model)[0], device=device)
    for name, reason in found.outside:
        print(f"{model}: {name} stays outside: {reason}", file=sys.stderr)
    return [found.graph(region) for region in found.regions]


def rows_of(model: str, device: str, policy: str) -> list[Row]:
    spec, graphs = load_device(device), graphs_of(model, device)
    rows = []
    for launch in LAUNCHES:
        start = time.process_time()  # of one thread
        plans = tuple(plan_graph(graph, spec, policy, launch) for graph in graphs)
        seconds = time.process_time() - start
        rows.append(Row(model, device, launch, sum(len(g.operators) for g in graphs), plans, seconds))
    return rows


def lines_of(rows: Sequence[Row]) -> list[str]:
    head = ("model", "device", "launched from", "operators", "kernels", "fused", "fewer", "us", "fused", "faster",
            "scheduling s")
    body = [
        (r.model, r.device, r.launch, str(r.operators), str(r.unfused), str(r.fused), f"{r.unfused / r.fused:.1f}x",
         f"{r.unfused_us:.0f}", f"{r.fused_us:.0f}", f"{r.faster:.2f}x", f"{r.scheduling_s:.1f}") for r in rows
    ]  # fmt: skip
    return table([head, *body], left=3, indent="")


def verdicts(rows: Sequence[Row]) -> list[tuple[bool, str]]:
    """Return (True if met, a sentence) for each figure that the rows cover."""
    found = []
    for device in dict.fromkeys(r.device for r in rows):
        for launch, wanted in WANTED.items():
            mine = [r.faster for r in rows if (r.device, r.launch) == (device, launch) and r.model in MODELS]
            if len(mine) == len(MODELS):
                mean = math.exp(statistics.fmean(map(math.log, mine)))
                found.append((mean >= wanted, f"{device}, launched from a {launch}: {mean:.2f}x faster by geometric "
                                              f"mean, wanted {wanted}x"))
        for r in rows:
            if r.device == device and r.launch == "stream" and r.model in FEWER_OF:
                found.append((r.unfused >= FEWER * r.fused, f"{device}: {r.model} {r.unfused / r.fused:.1f}x fewer "
                                                            f"kernels, wanted {FEWER:g}x"))
    for r in rows:
        if r.operators >= SCHEDULED_OPERATORS:
            found.append((r.scheduling_s <= SCHEDULING_S, f"{r.model} on {r.device}: {r.operators} operators scheduled "
                                                          f"in {r.scheduling_s:.1f} s, wanted {SCHEDULING_S:g} s"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*MODELS, "lstm_long"],
                        help=f"some of {', '.join([*MODELS, *PARTS])}")
    parser.add_argument("--devices", nargs="+", default=["h200", "v100"])
    parser.add_argument("--policy", default="best", choices=POLICIES)
    parser.add_argument("--explain", action="store_true", help="also explain every plan in words")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    if strange := [m for m in args.models if m not in {**MODELS, **PARTS}]:
        parser.error(f"no model {strange[0]!r}: there are {', '.join([*MODELS, *PARTS])}")
    rows: list[Row] = []
    for device in args.devices:
        for model in args.models:
            made = rows_of(model, device, args.policy)
            rows += made
            print("\n".join(lines_of(made)[-len(made):]), flush=True)
            if args.explain:
                for row in made:
                    print("\n\n".join(map(explain_fusion, row.plans)))
    said = verdicts(rows)
    words = [*(args.models if args.models != parser.get_default("models") else []), "--devices", *args.devices]
    command = f"python python/rtask_figures.py {' '.join(words)} --policy {args.policy}"
    verdict = [f"{'met' if met else 'MISSED'}: {what}" for met, what in said]
    text = "\n".join([command, "", *lines_of(rows), "", *verdict])
    print(f"\n{text}")
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    return 0 if all(met for met, _ in said) else 1


if __name__ == "__main__":
    sys.exit(main())
