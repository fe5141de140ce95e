"""Measure the share of the FMA peak that Roller's kernels reach: a 1024^3 product and ResNet-50's 3x3 convolutions.

Every operator is a one-operator Relay model, tuned by measuring the top plans, its answer checked. The peak is measured
in the same run, before and after; the larger figure counts.

    python python/fma_share.py [--trials 10] [--only matmul]
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import Any

from roller_tvm.device import cpu_device, default_cpu_target

# ResNet-50's 3x3 convolutions at batch 1: channels, image, stride.
CONVOLUTIONS = (
    (64, 56, 1),
    (128, 56, 2),
    (128, 28, 1),
    (256, 28, 2),
    (256, 14, 1),
    (512, 14, 2),
    (512, 7, 1),
)


def matmul(n: int) -> tuple[Any, dict[str, Any]]:
    """Return a Relay module of a square product, neither operand constant."""
    import tvm
    from tvm import relay

    a, b = relay.var("a", shape=(n, n)), relay.var("b", shape=(n, n))
    return tvm.IRModule.from_expr(relay.Function([a, b], relay.nn.matmul(a, b))), {}


def convolution(channels: int, image: int, stride: int) -> tuple[Any, dict[str, Any]]:
    """Return a Relay module of a 3x3 convolution with bias and ReLU, NCHW as in ONNX models, weights constant."""
    import numpy as np
    import tvm
    from tvm import relay

    x = relay.var("x", shape=(1, channels, image, image))
    w, b = relay.var("w", shape=(channels, channels, 3, 3)), relay.var("b", shape=(channels,))
    y = relay.nn.conv2d(x, w, kernel_size=(3, 3), channels=channels, padding=(1, 1), strides=(stride, stride))
    y = relay.nn.relu(relay.nn.bias_add(y, b))
    rng = np.random.default_rng(0)
    params = {
        "w": tvm.nd.array((rng.standard_normal((channels, channels, 3, 3)) * 0.05).astype("float32")),
        "b": tvm.nd.array(rng.standard_normal(channels).astype("float32")),
    }
    return tvm.IRModule.from_expr(relay.Function([x, w, b], y)), params


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10, help="plans measured per operator; default 10")
    parser.add_argument("--only", default="", help="choose operators with this text in their name")
    args = parser.parse_args()

    from roller_tvm.relay import tune

    before = cpu_device(refresh=True)
    target = default_cpu_target(threads=before.units)
    cases = {"matmul 1024^3": lambda: matmul(1024)}
    for c, image, stride in CONVOLUTIONS:
        cases[f"conv 3x3 {c}x{image}x{image} /{stride}"] = lambda c=c, image=image, stride=stride: (
            convolution(c, image, stride)
        )
    rates: dict[str, float] = {}
    for name, build in cases.items():
        if args.only not in name:
            continue
        mod, params = build()
        result = tune(mod, params, target, trials=args.trials, device=before)
        heavy = max(result.tasks, key=lambda t: t.task.flops)
        rates[name] = heavy.gflops
        print(
            f"{name:<28} {heavy.seconds * 1e6:9.1f} us {heavy.gflops:7.1f} GFLOP/s  checked {heavy.checked}",
            flush=True,
        )
    after = cpu_device(refresh=True)
    peak = max(before.peak("float32"), after.peak("float32"))
    print(
        f"\nFMA peak {before.peak('float32'):.0f} before, {after.peak('float32'):.0f} after,"
        f" GFLOP/s on {before.units} cores"
    )
    for name, rate in rates.items():
        print(f"{name:<28} {rate / peak:6.1%}")
    share = math.exp(statistics.mean(math.log(rate / peak) for rate in rates.values()))
    print(f"{'geometric mean':<28} {share:6.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
