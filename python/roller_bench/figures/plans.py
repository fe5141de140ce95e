"""Plans of an operator built, checked and timed on this CPU: predicted beside measured, or kind beside kind."""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from roller_bench.search import RTileSpace
from roller_bench.tiles import plan_tiles
from roller_tvm.codegen.rewrites import whole_vectors
from roller_tvm.device import DeviceSpec, cpu_device, default_cpu_target
from roller_tvm.errors import BadInput
from roller_tvm.ir.operators import parse_params
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.recipes import cpu_tiles
from roller_tvm.roller.features import Features
from roller_tvm.stats import geomean, spearman
from roller_tvm.te import te_operator
from roller_tvm.tvm_env import line, set_threads

#: Of answers, between one order of adding up and another.
TOLERANCE = 1e-3
#: Configurations that are drawn for each that is measured.
DRAWN = 40
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


def chosen(space: RTileSpace, plans: int, recipe: str, seed: int) -> list[Any]:
    """Return plans to measure: each recipe's best by prediction and as many drawn ones, fastest predicted first."""
    rng = random.Random(seed)
    drawn = [space.plan(point) for point in space.points(plans * DRAWN, rng)]
    kinds: dict[str, list[Any]] = {}
    for ranked in sorted(drawn, key=lambda r: r.seconds):
        recipes = "+".join(p.recipe for p in ranked.plan.programs)
        if recipe in recipes.split("+") or not recipe:
            kinds.setdefault(recipes, []).append(ranked)
    found: list[Any] = []
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

    Half of the plans are each recipe's fastest by prediction; the others are drawn from the whole space of the XGBoost
    baseline. Kernels are built as ``roller_tvm.relay.build`` and the Relax pipeline build them. Their answers are
    compared with those of TVM's default build, and they are timed one after the other, the median of nine runs each.
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
    plans = chosen(RTileSpace(expression, device, features), args.plans, args.recipe, args.seed)
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
        told = plan_tiles(ranked.plan) + ("" if right else f"  WRONG ANSWER, {error:.1e}")
        print(f"{predicted:>12.1f} {seconds:>9.1f} {seconds / predicted:>6.2f}  {told}", flush=True)
    best = min(seconds for _, seconds in pairs)
    print(f"measured over predicted: geomean {geomean([m / p for p, m in pairs]):.2f}; rank correlation "
          f"{spearman((p for p, _ in pairs), (m for _, m in pairs)):.2f}; the first is {pairs[0][1] / best:.2f} times "
          f"the fastest's time")  # fmt: skip
    return 1 if wrong else 0


# -- plans of one kind beside plans of another ------------------------------------------------------------------------

ROUNDS, PLANS = 15, 2
#: Ranked plans, and what builds one.
Kind = tuple[Sequence[Any], Callable[[Any], Built]]
Kinds = Callable[[Any, DeviceSpec, Callable[[Any], Built]], tuple[Kind, Kind]]
#: Rows, columns and images of awkward sizes, and some that tiles divide.
AWKWARD = (
    "matmul m=197 n=768 k=768", "matmul m=197 n=3072 k=768", "matmul m=77 n=512 k=512", "matmul m=1021 n=512 k=256",
    "batch_matmul b=12 m=197 n=64 k=197", "conv2d_nhwc n=1 c=192 h=17 w=17 f=192 k=3 padding=1",
    "conv2d_nhwc n=1 c=256 h=13 w=13 f=384 k=3 padding=1", "conv2d_nhwc n=1 c=512 h=7 w=7 f=512 k=3 padding=1",
    "conv2d_nhwc n=1 c=288 h=35 w=35 f=64 k=1",
    "matmul m=509 n=521 k=503", "batch_matmul b=12 m=197 n=197 k=64", "batch_matmul b=8 m=77 n=77 k=64",
    "matmul m=128 n=1000 k=512", "matmul m=8 n=1021 k=512", "conv2d_nhwc n=1 c=64 h=28 w=28 f=100 k=3 padding=1",
)  # fmt: skip
#: Pooling and convolutions as ONNX has them: channels first, so that vectors lie along rows of the image.
PADDED = (
    "max_pool2d_nchw n=1 c=64 h=112 w=112 k=3 stride=2 padding=1", "max_pool2d_nchw n=1 c=64 h=112 w=112 k=2 stride=2",
    "avg_pool2d_nchw n=1 c=192 h=35 w=35 k=3 padding=1", "avg_pool2d_nchw n=1 c=64 h=28 w=28 k=3 padding=1",
    "depthwise_conv2d_nchw n=1 c=144 h=56 w=56 k=3 padding=1",
    "depthwise_conv2d_nchw n=1 c=96 h=112 w=112 k=3 stride=2 padding=1",
    "depthwise_conv2d_nchw n=1 c=576 h=14 w=14 k=3 padding=1",
    "depthwise_conv2d_nchw n=1 c=240 h=28 w=28 k=5 stride=2 padding=2",
    "conv2d_nchw n=1 c=64 h=56 w=56 f=128 k=3 stride=2 padding=1", "conv2d_nchw n=1 c=256 h=56 w=56 f=512 k=1 stride=2",
    "conv2d_nchw n=1 c=3 h=224 w=224 f=64 k=7 stride=2 padding=3",
)  # fmt: skip


def over_edge(parser: argparse.ArgumentParser) -> None:
    """Measure the gain of register tiles over the edge: the best plan with them beside the best without, on this CPU.

    For each operator, the two plans predicted fastest are built as in ``plan-costs``, once with tiles over the edge of
    an axis and once only with tiles that divide it. Answers are compared with those of TVM's default build. The four
    kernels are timed in turns; medians of the rounds count. Runs on either line; exit code 1 if an answer is wrong.
    """
    _beside(parser, AWKWARD, ("over the edge", "dividing"), with_and_without_edges)


def padded_vectors(parser: argparse.ArgumentParser) -> None:
    """Measure the gain of vectors into padding and of every second element: plans that use them beside plain TVM's.

    For each operator, the two plans predicted fastest are built as in ``plan-costs``, and the two predicted fastest for
    plain TVM are built by it alone. Answers are compared with those of TVM's default build. The four kernels are timed
    in turns; medians of the rounds count. Runs on either line; exit code 1 if an answer is wrong.
    """
    _beside(parser, PADDED, ("whole", "as TVM builds"), whole_vectors_and_plain)


def _beside(parser: argparse.ArgumentParser, operators: Sequence[str], words: tuple[str, str], kinds: Kinds) -> None:
    parser.add_argument("words", nargs="*", help="choose operators with one of these texts; default all")
    parser.set_defaults(run=lambda args: beside(args.words, operators, words, kinds))


@contextmanager
def dividing_tiles_alone() -> Iterator[None]:
    """Disable tiles over the edge."""
    before = cpu_tiles.OVER_EDGE
    cpu_tiles.OVER_EDGE = 0.0
    try:
        yield
    finally:
        cpu_tiles.OVER_EDGE = before


def with_and_without_edges(expression: Any, device: DeviceSpec, build: Callable[[Any], Built]) -> tuple[Kind, Kind]:
    """Return plans with tiles over the edge, and plans without."""
    over = construct(expression, device, top=PLANS).plans
    with dividing_tiles_alone():
        plain = construct(expression, device, top=PLANS).plans
    return (over, build), (plain, build)


def whole_vectors_and_plain(expression: Any, device: DeviceSpec, build: Callable[[Any], Built]) -> tuple[Kind, Kind]:
    """Return plans that count on whole vectors, and plans for TVM alone."""
    def by_tvm(steps: Any) -> Any:
        with patch.object(whole_vectors, "REWRITINGS", ()):
            return build(steps)

    ours = construct(expression, device, top=PLANS).plans
    return (ours, build), (construct(expression, device.built_by_tvm(), top=PLANS).plans, by_tvm)


def beside(words: Sequence[str], operators: Sequence[str], names: tuple[str, str], kinds: Kinds) -> int:
    """Check the kernels of two kinds of plans and time them in turns; return 1 if an answer is wrong.

    Parameters
    ----------
    words : sequence of str
        Texts that choose operators.
    names : tuple of str
        Of the plans with the mechanism, and of those without.
    """
    asked = [text for text in operators if not words or any(w in text for w in words)]
    if not asked:
        remedy = f"choose words of: {'; '.join(operators)}"
        raise BadInput(f"no operator holds {' or '.join(words)}", ", ".join(names), remedy)
    device = cpu_device()
    set_threads(device.units)
    ratios, wrong = [], 0
    for text in asked:
        operator, *params = text.split()
        expression, build = operator_here(operator, params, device.units)
        (ours, of_ours), (others, of_others) = kinds(expression, device, build)
        expected = build(None)[1]()
        built = [make(lower(r.plan)) for make, plans in ((of_ours, ours), (of_others, others)) for r in plans]
        errors = [error_of(answer(), expected) for _, answer in built]
        wrong += sum(not error <= TOLERANCE for error in errors)
        number = max(1, round(0.01 / min(built[0][0](1, 3))))
        rounds = [[timed(number, 1)[0] for timed, _ in built] for _ in range(ROUNDS)]
        times = [statistics.median(column) * 1e6 for column in zip(*rounds, strict=True)]
        with_it, without = times[: len(ours)], times[len(ours) :]
        ratios.append(min(without) / min(with_it))
        print(f"{text}\n  {names[0]} {' '.join(f'{t:.1f}' for t in with_it)} us, {names[1]} "
              f"{' '.join(f'{t:.1f}' for t in without)} us: {ratios[-1]:.2f}; predicted "
              f"{ours[0].seconds * 1e6:.1f} and {others[0].seconds * 1e6:.1f}; largest error {max(errors):.1e}\n"
              f"  {plan_tiles(ours[0].plan)}\n  {plan_tiles(others[0].plan)}", flush=True)  # fmt: skip
    print(f"times {names[1]}, over those {names[0]}: geometric mean {geomean(ratios):.2f}")
    return 1 if wrong else 0
