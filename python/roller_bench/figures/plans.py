"""Plans of an operator built, checked and timed on this CPU: predicted beside measured."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from roller_bench.cases import Case
from roller_bench.files import why_wrong
from roller_bench.search import every_plan
from roller_bench.timing import rounds_in_turns, typical
from roller_tvm.device import cpu_device, default_cpu_target
from roller_tvm.errors import BadInput
from roller_tvm.folders import work_folder
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.stats import geomean, spearman
from roller_tvm.tvm_env.locate import usable_line


def plan_costs(parser: argparse.ArgumentParser) -> None:
    """Compare predicted and measured times of one operator's plans on this CPU, to find errors of a cost model.

        .venv/relay/bin/python -m roller_bench plan-costs max_pool2d_nchw n=1 c=64 h=56 w=56 k=3 stride=2 padding=1
        .venv/relax/bin/python -m roller_bench plan-costs softmax shape=12x128x128 --plans 30

    Half of the plans are each recipe's fastest by prediction; the others are drawn from all its plans. Kernels are
    built and checked as ``roller-tvm compare`` does, then timed in turns; medians. Exit code 1 if an answer is wrong.
    """
    parser.add_argument("operator", help="operator, as for roller-tvm plan")
    parser.add_argument("params", nargs="*", metavar="NAME=VALUE", help="parameters of the operator")
    parser.add_argument("--plans", type=int, default=20, help="number of plans; default 20")
    parser.add_argument("--recipe", default="",
                        help="choose plans with this recipe: cpu.window, cpu.tiled, ...; default all")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn plans; default 0")
    parser.set_defaults(run=_costs)


def chosen(every: Sequence[RankedPlan], plans: int, recipe: str, seed: int) -> list[RankedPlan]:
    """Return plans to measure: each recipe's best by prediction and as many drawn ones, fastest predicted first."""
    rng = random.Random(seed)
    kinds: dict[str, list[RankedPlan]] = {}
    for ranked in every:
        recipes = "+".join(p.recipe for p in ranked.plan.programs)
        if recipe in recipes.split("+") or not recipe:
            kinds.setdefault(recipes, []).append(ranked)
    found: list[RankedPlan] = []
    for own in kinds.values():
        share = max(1, plans // len(kinds))
        best, rest = own[: (share + 1) // 2], own[(share + 1) // 2 :]
        found += best + rng.sample(rest, min(len(rest), share // 2))
    return sorted(found, key=lambda r: r.seconds)


def _costs(args: argparse.Namespace) -> int:
    """Print a line per plan as it is measured, then the findings on all."""
    case, target = Case("operator", args.operator, " ".join(args.params)), default_cpu_target(cpu_device().units)
    edge: Any = import_module(f"roller_bench.{usable_line('measuring plans').value}").EDGE
    edge.tvm()
    with work_folder() as folder:
        prepared = edge.prepared(case, case.expression(), target, Path(folder))
        with edge.building(edge.open(Path(folder, prepared.file), case, target, Path(folder)), True) as opened:
            searched = opened.searched()
            every = every_plan(searched.expression, opened.device, searched.features)
            if not (plans := chosen(every, args.plans, args.recipe, args.seed)):
                raise BadInput("no plan of the operator has this recipe", args.recipe, "leave --recipe out for all")
            kernels = [opened.build(searched.record(ranked.plan)) for ranked in plans]
        rounds, faults = rounds_in_turns(edge.timers(kernels, target)), [why_wrong(kernel) for kernel in kernels]
    pairs = []
    print(f"{'predicted us':>12} {'measured':>9} {'ratio':>6}  plan")
    for ranked, fault, taken in zip(plans, faults, rounds, strict=True):
        predicted, seconds = ranked.seconds * 1e6, typical(taken) * 1e6
        pairs.append((predicted, seconds))
        told = ranked.plan.words(whole=True) + (f"  WRONG ANSWER, {fault}" if fault else "")
        print(f"{predicted:>12.1f} {seconds:>9.1f} {seconds / predicted:>6.2f}  {told}", flush=True)
    best = min(seconds for _, seconds in pairs)
    print(f"measured over predicted: geomean {geomean([m / p for p, m in pairs]):.2f}; rank correlation "
          f"{spearman((p for p, _ in pairs), (m for _, m in pairs)):.2f}; the first is {pairs[0][1] / best:.2f} times "
          f"the fastest's time")  # fmt: skip
    return int(any(faults))
