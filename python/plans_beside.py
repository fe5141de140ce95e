"""Compare plans of one kind with plans of another, for scripts that show a mechanism's gain on this CPU."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from plan_costs import TOLERANCE, Built, error_of, operator_here

from roller_tvm.compare.tiles import plan_tiles
from roller_tvm.device import DeviceSpec, cpu_device
from roller_tvm.stats import geomean
from roller_tvm.tvm_env import set_threads

ROUNDS, PLANS = 15, 2

#: Ranked plans, and what builds one.
Kind = tuple[Sequence[Any], Callable[[Any], Built]]


def beside(
    doc: str | None,
    operators: Sequence[str],
    names: tuple[str, str],
    kinds: Callable[[Any, DeviceSpec, Callable[[Any], Built]], tuple[Kind, Kind]],
) -> int:
    """Run such a script: check the kernels and time them in turns; return 1 if an answer is wrong.

    Parameters
    ----------
    operators : sequence of str
        A word of the command line chooses those that hold it.
    names : tuple of str
        Of the plans with the mechanism, and of those without.
    kinds : function of (expression, device, build) -> the plans with the mechanism, and those without
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="choose operators with one of these texts; default all")
    args = parser.parse_args()
    asked = [words for words in operators if not args.words or any(w in words for w in args.words)]
    if not asked:
        parser.error(f"no operator holds {' or '.join(args.words)}: they are in the script's OPERATORS")
    device = cpu_device()
    set_threads(device.units)
    ratios, wrong = [], 0
    for words in asked:
        operator, *params = words.split()
        expression, build = operator_here(operator, params, device.units)
        (ours, of_ours), (others, of_others) = kinds(expression, device, build)
        expected = build(None)[1]()
        built = [*(of_ours(ranked.plan) for ranked in ours), *(of_others(ranked.plan) for ranked in others)]
        errors = [error_of(answer(), expected) for _, answer in built]
        wrong += sum(not error <= TOLERANCE for error in errors)
        number = max(1, round(0.01 / min(built[0][0](1, 3))))
        rounds = [[timed(number, 1)[0] for timed, _ in built] for _ in range(ROUNDS)]
        times = [statistics.median(column) * 1e6 for column in zip(*rounds, strict=True)]
        with_it, without = times[: len(ours)], times[len(ours) :]
        ratios.append(min(without) / min(with_it))
        print(f"{words}\n  {names[0]} {' '.join(f'{t:.1f}' for t in with_it)} us, {names[1]} "
              f"{' '.join(f'{t:.1f}' for t in without)} us: {ratios[-1]:.2f}; predicted "
              f"{ours[0].seconds * 1e6:.1f} and {others[0].seconds * 1e6:.1f}; largest error {max(errors):.1e}\n"
              f"  {plan_tiles(ours[0].plan)}\n  {plan_tiles(others[0].plan)}", flush=True)  # fmt: skip
    print(f"times {names[1]}, over those {names[0]}: geometric mean {geomean(ratios):.2f}")
    return 1 if wrong else 0
