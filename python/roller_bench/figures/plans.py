"""Plans of an operator built, checked and timed on this CPU: predicted beside measured."""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roller_bench.search import every_plan
from roller_bench.task import plan_words
from roller_tvm.device import cpu_device, default_cpu_target
from roller_tvm.errors import BadInput
from roller_tvm.ir.operators import parse_params
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.planner.lower import lower
from roller_tvm.roller.features import Features
from roller_tvm.stats import geomean, spearman
from roller_tvm.te import te_operator
from roller_tvm.tvm_env import line, set_threads

#: Of answers, between one order of adding up and another.
TOLERANCE = 1e-3
#: What times a kernel (seconds of so many runs at a time, so often), and what runs it for its answer.
Built = tuple[Callable[[int, int], Sequence[float]], Callable[[], np.ndarray]]


def opened(module: Any, name: str, arrays: Sequence[Any], cpu: Any) -> Built:
    """Open a built kernel on its arguments; the last one is the answer."""

    def timed(number: int, repeat: int) -> Sequence[float]:
        evaluator = module.time_evaluator(name, cpu, number=number, repeat=repeat)
        return [float(s) for s in evaluator(*arrays).results]

    def answer() -> np.ndarray:
        last = arrays[-1].numpy()
        arrays[-1].copyfrom(np.full(last.shape, np.nan, last.dtype))  # what is not written is not an earlier answer
        module[name](*arrays)
        return np.asarray(arrays[-1].numpy())

    return timed, answer


def relay_builder(tensors: Sequence[Any], target: str) -> tuple[Any, Callable[[Any], Built]]:
    """Return the operator as the planner reads it, and a builder of steps (None: TVM's own), on the Relay line."""
    import tvm
    from tvm import te

    from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
    from roller_tvm.relay.rewrites import as_tvm, cpu_code
    from roller_tvm.te import read_te

    reading = read_te(list(tensors))
    arrays = [tvm.nd.array(a) for a in arguments(tensors)]

    def build(steps: Any) -> Built:
        if steps is None:
            schedule, args = te.create_schedule(tensors[-1].op), list(tensors)
        else:
            schedule, args = apply_steps_te(TeProgram.of_reading(reading, list(tensors)), steps)
        with as_tvm() if steps is None else cpu_code():
            built = tvm.build(schedule, args, target)
        return opened(built, built.entry_name, arrays, tvm.cpu())

    return reading.expression, build


def relax_builder(tensors: Sequence[Any], target: str) -> tuple[Any, Callable[[Any], Built]]:
    """Return the same on the Relax line."""
    import tvm
    from tvm import te

    from roller_tvm.codegen.apply_tensorir import apply_steps_tir
    from roller_tvm.relax.rewrites import cpu_code
    from roller_tvm.relax.targets import make_target
    from roller_tvm.tir.read import read_prim_func

    func = te.create_prim_func(list(tensors))
    reading = read_prim_func(func, name="main", constants=())
    arrays = [tvm.runtime.tensor(a) for a in arguments(tensors)]

    def build(steps: Any) -> Built:
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        if steps is not None:
            schedule = apply_steps_tir(func, reading, steps)
            mod = cpu_code()(schedule.mod)
        return opened(tvm.compile(mod, make_target(target)).mod, "main", arrays, tvm.cpu())

    return reading.expression, build


def operator_here(operator: str, params: Sequence[str], threads: int) -> tuple[Any, Callable[[Any], Built]]:
    """Return a named operator as the planner reads it, and a builder of a plan's steps, on this environment's line."""
    tensors = list(te_operator(operator, **parse_params(" ".join(params))))
    return (relay_builder if line() == "relay" else relax_builder)(tensors, default_cpu_target(threads))


def error_of(answer: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference over the largest magnitude; nan if part of the answer was not written."""
    return float(np.max(np.abs(answer - expected)) / (np.max(np.abs(expected)) or 1))


def arguments(tensors: Sequence[Any]) -> list[np.ndarray]:
    """Return random inputs and an output."""
    rng = np.random.default_rng(0)
    shapes = [([int(e) for e in t.shape], str(t.dtype)) for t in tensors]
    return [rng.standard_normal(shape).astype(dtype) for shape, dtype in shapes]


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


def seconds_of(timed: Callable[[int, int], Sequence[float]]) -> float:
    """Return the median seconds of nine runs of at least ten milliseconds."""
    once = min(timed(1, 3))
    return statistics.median(timed(max(1, round(0.01 / once)), 9))


def plan_costs(parser: argparse.ArgumentParser) -> None:
    """Compare predicted and measured times of one operator's plans on this CPU, to find errors of a cost model.

        .venv/relay/bin/python -m roller_bench plan-costs max_pool2d_nchw n=1 c=64 h=56 w=56 k=3 stride=2 padding=1
        .venv/relax/bin/python -m roller_bench plan-costs softmax shape=12x128x128 --plans 30

    Half of the plans are each recipe's fastest by prediction; the others are drawn from all its plans. Kernels are
    built as ``roller_tvm.relay.build`` and the Relax pipeline build them. Their answers are compared with those of
    TVM's default build, and they are timed one after the other, the median of nine runs each.
    Exit code 1 if an answer is wrong.
    """
    parser.add_argument("operator", help="operator, as for roller-tvm plan")
    parser.add_argument("params", nargs="*", metavar="NAME=VALUE", help="parameters of the operator")
    parser.add_argument("--plans", type=int, default=20, help="number of plans; default 20")
    parser.add_argument("--recipe", default="",
                        help="choose plans with this recipe: cpu.window, cpu.tiled, ...; default all")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn plans; default 0")
    parser.set_defaults(run=_costs)


def _costs(args: argparse.Namespace) -> int:
    """Print a line per plan as it is measured, then the findings on all."""
    device = cpu_device()
    set_threads(device.units)
    expression, build = operator_here(args.operator, args.params, device.units)
    features = Features.of_tensor_ir(device) if line() == "relax" else Features.of_te(device)
    plans = chosen(every_plan(expression, device, features), args.plans, args.recipe, args.seed)
    if not plans:
        raise BadInput("no plan of the operator has this recipe", args.recipe, "leave --recipe out to see them all")
    expected = build(None)[1]()
    pairs, wrong = [], 0
    print(f"{'predicted us':>12} {'measured':>9} {'ratio':>6}  plan")
    for ranked in plans:
        timed, answer = build(lower(ranked.plan))
        error = error_of(answer(), expected)
        right = error <= TOLERANCE
        wrong += not right
        predicted, seconds = ranked.seconds * 1e6, seconds_of(timed) * 1e6
        pairs.append((predicted, seconds))
        told = plan_words(ranked.plan) + ("" if right else f"  WRONG ANSWER, {error:.1e}")
        print(f"{predicted:>12.1f} {seconds:>9.1f} {seconds / predicted:>6.2f}  {told}", flush=True)
    best = min(seconds for _, seconds in pairs)
    print(f"measured over predicted: geomean {geomean([m / p for p, m in pairs]):.2f}; rank correlation "
          f"{spearman((p for p, _ in pairs), (m for _, m in pairs)):.2f}; the first is {pairs[0][1] / best:.2f} times "
          f"the fastest's time")  # fmt: skip
    return 1 if wrong else 0
