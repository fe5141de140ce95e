#!/usr/bin/env python3
"""Measure the gain of register tiles over the edge: the best plan with them beside the best without, on this CPU.

    .venv/relay/bin/python python/over_edge.py                 # every operator below; likewise on the Relax line
    .venv/relax/bin/python python/over_edge.py 197 17          # operators with one of these texts

For each operator, the two plans predicted fastest are built as in ``plan_costs.py``, once with tiles over the edge of
an axis and once only with tiles that divide it. Answers are compared with those of TVM's default build. The four
kernels are timed in turns; medians of the rounds count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from plans_beside import PLANS, beside  # noqa: E402

from roller_tvm.planner import construct
from roller_tvm.recipes import cpu_tiled as cpu  # noqa: E402

#: Rows, columns and images of awkward sizes, and some that tiles divide.
OPERATORS = (
    "matmul m=197 n=768 k=768", "matmul m=197 n=3072 k=768", "matmul m=77 n=512 k=512", "matmul m=1021 n=512 k=256",
    "batch_matmul b=12 m=197 n=64 k=197", "conv2d_nhwc n=1 c=192 h=17 w=17 f=192 k=3 padding=1",
    "conv2d_nhwc n=1 c=256 h=13 w=13 f=384 k=3 padding=1", "conv2d_nhwc n=1 c=512 h=7 w=7 f=512 k=3 padding=1",
    "conv2d_nhwc n=1 c=288 h=35 w=35 f=64 k=1",
    "matmul m=509 n=521 k=503", "batch_matmul b=12 m=197 n=197 k=64", "batch_matmul b=8 m=77 n=77 k=64",
    "matmul m=128 n=1000 k=512", "matmul m=8 n=1021 k=512", "conv2d_nhwc n=1 c=64 h=28 w=28 f=100 k=3 padding=1",
)  # fmt: skip


@contextmanager
def dividing_tiles_alone() -> Iterator[None]:
    """Disable tiles over the edge."""
    before = cpu.OVER_EDGE
    cpu.OVER_EDGE = 0.0
    try:
        yield
    finally:
        cpu.OVER_EDGE = before


def both(expression: Any, device: Any, build: Callable[[Any], Any]) -> Any:
    """Return plans with tiles over the edge, and plans without."""
    over = construct(expression, device, top=PLANS).plans
    with dividing_tiles_alone():
        plain = construct(expression, device, top=PLANS).plans
    return (over, build), (plain, build)


if __name__ == "__main__":
    sys.exit(beside(__doc__, OPERATORS, ("over the edge", "dividing"), both))
