#!/usr/bin/env python3
"""Measure the gain of vectors into padding and of every second element: plans that use them beside plans for plain TVM.

    .venv/relay/bin/python python/padded_vectors.py            # every operator below; likewise on the Relax line
    .venv/relax/bin/python python/padded_vectors.py pool       # operators with this text

For each operator, the two plans predicted fastest are built as in ``plan_costs.py``, and the two predicted fastest for
plain TVM are built by it alone. Answers are compared with those of TVM's default build. The four kernels are timed in
turns; medians of the rounds count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from plans_beside import PLANS, beside  # noqa: E402

from roller_tvm.codegen.rewrites import whole_vectors  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402

#: Pooling and convolutions as ONNX has them: channels first, so that vectors lie along rows of the image.
OPERATORS = (
    "max_pool2d_nchw n=1 c=64 h=112 w=112 k=3 stride=2 padding=1", "max_pool2d_nchw n=1 c=64 h=112 w=112 k=2 stride=2",
    "avg_pool2d_nchw n=1 c=192 h=35 w=35 k=3 padding=1", "avg_pool2d_nchw n=1 c=64 h=28 w=28 k=3 padding=1",
    "depthwise_conv2d_nchw n=1 c=144 h=56 w=56 k=3 padding=1",
    "depthwise_conv2d_nchw n=1 c=96 h=112 w=112 k=3 stride=2 padding=1",
    "depthwise_conv2d_nchw n=1 c=576 h=14 w=14 k=3 padding=1",
    "depthwise_conv2d_nchw n=1 c=240 h=28 w=28 k=5 stride=2 padding=2",
    "conv2d_nchw n=1 c=64 h=56 w=56 f=128 k=3 stride=2 padding=1", "conv2d_nchw n=1 c=256 h=56 w=56 f=512 k=1 stride=2",
    "conv2d_nchw n=1 c=3 h=224 w=224 f=64 k=7 stride=2 padding=3",
)  # fmt: skip


def both(expression: Any, device: Any, build: Callable[[Any], Any]) -> Any:
    """Return plans that count on whole vectors, and plans for TVM alone."""

    def by_tvm(plan: Any) -> Any:
        with patch.object(whole_vectors, "REWRITINGS", ()):
            return build(plan)

    ours = construct(expression, device, top=PLANS).plans
    return (ours, build), (construct(expression, device.built_by_tvm(), top=PLANS).plans, by_tvm)


if __name__ == "__main__":
    sys.exit(beside(__doc__, OPERATORS, ("whole", "as TVM builds"), both))
