#!/usr/bin/env python3
"""What register tiles over the edge bring: the best plan with them beside the best without, on this CPU.

    .venv/relay/bin/python python/over_edge.py                 # every operator below; likewise on the Relax line
    .venv/relax/bin/python python/over_edge.py 197 17          # those whose words hold one of these

Of each operator the two plans that are predicted fastest are built as ``plan_costs.py`` builds them, with tiles over
the edge of an axis and with those alone that divide it; answers are compared with those of TVM's default build. The
four kernels are timed in turns: medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from plan_costs import TOLERANCE, error_of, operator_here  # noqa: E402

from roller_tvm.compare.tiles import plan_tiles  # noqa: E402
from roller_tvm.device import cpu_device  # noqa: E402
from roller_tvm.plan import construct, cpu  # noqa: E402
from roller_tvm.stats import geomean  # noqa: E402
from roller_tvm.tvm_env import set_threads  # noqa: E402

#: Rows, columns and images of awkward sizes, and some that tiles divide.
OPERATORS = (
    "matmul m=197 n=768 k=768", "matmul m=197 n=3072 k=768", "matmul m=77 n=512 k=512", "matmul m=1021 n=512 k=256",
    "batch_matmul b=12 m=197 n=64 k=197", "conv2d_nhwc n=1 c=192 h=17 w=17 f=192 k=3 padding=1",
    "conv2d_nhwc n=1 c=256 h=13 w=13 f=384 k=3 padding=1", "conv2d_nhwc n=1 c=512 h=7 w=7 f=512 k=3 padding=1",
    "conv2d_nhwc n=1 c=288 h=35 w=35 f=64 k=1",
    "matmul m=509 n=521 k=503", "batch_matmul b=12 m=197 n=197 k=64", "batch_matmul b=8 m=77 n=77 k=64",
    "matmul m=128 n=1000 k=512", "matmul m=8 n=1021 k=512", "conv2d_nhwc n=1 c=64 h=28 w=28 f=100 k=3 padding=1",
)  # fmt: skip
ROUNDS, PLANS = 15, 2


@contextmanager
def dividing_tiles_alone() -> Iterator[None]:
    """No tile over the edge is thought worth while."""
    before = cpu.OVER_EDGE
    cpu.OVER_EDGE = 0.0
    try:
        yield
    finally:
        cpu.OVER_EDGE = before


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 1 where an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="operators that hold one of these")
    args = parser.parse_args(argv)
    device = cpu_device()
    set_threads(device.units)
    ratios, wrong = [], 0
    for words in OPERATORS:
        if args.words and not any(w in words for w in args.words):
            continue
        operator, *params = words.split()
        expression, build = operator_here(operator, params, device.units)
        over = construct(expression, device, top=PLANS).plans
        with dividing_tiles_alone():
            plain = construct(expression, device, top=PLANS).plans
        expected = build(None)[1]()
        built = [build(ranked.plan) for ranked in (*over, *plain)]
        errors = [error_of(answer(), expected) for _, answer in built]
        wrong += sum(not error <= TOLERANCE for error in errors)
        number = max(1, round(0.01 / min(built[0][0](1, 3))))
        rounds = [[timed(number, 1)[0] for timed, _ in built] for _ in range(ROUNDS)]
        times = [statistics.median(column) * 1e6 for column in zip(*rounds, strict=True)]
        with_edge, without = times[: len(over)], times[len(over) :]
        ratios.append(min(without) / min(with_edge))
        print(f"{words}\n  over the edge {' '.join(f'{t:.1f}' for t in with_edge)} us, dividing "
              f"{' '.join(f'{t:.1f}' for t in without)} us: {ratios[-1]:.2f}; predicted "
              f"{over[0].seconds * 1e6:.1f} and {plain[0].seconds * 1e6:.1f}; largest error {max(errors):.1e}\n"
              f"  {plan_tiles(over[0].plan)}\n  {plan_tiles(plain[0].plan)}", flush=True)  # fmt: skip
    print(f"times without tiles over the edge, over those with them: geometric mean {geomean(ratios):.2f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
