"""Proofs of Roller's plans: the share that is proven, and the time that they take."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter

from roller_tvm.device import load_device
from roller_tvm.errors import RollerError
from roller_tvm.ir.operators import parse_params
from roller_tvm.models.line import model_line
from roller_tvm.models.planning import planning_on
from roller_tvm.schedules.proofs import PROVEN, REFUTED
from roller_tvm.schedules.scheduled import schedule
from roller_tvm.te import te_operator
from roller_tvm.tvm_env.locate import usable_line

#: Operators by default, of a kind each, in sizes of networks.
WORDS = (
    "matmul m=256 n=256 k=256", "matmul m=197 n=768 k=768", "dense m=1 n=1000 k=512 bias=1 relu=1",
    "batch_matmul b=12 m=197 n=64 k=197", "conv2d_nchw n=1 c=64 h=56 w=56 f=64 k=3 padding=1",
    "conv2d_nhwc n=1 c=64 h=56 w=56 f=64 k=3 padding=1 relu=1", "conv2d_nchw n=1 c=256 h=56 w=56 f=512 k=1 stride=2",
    "depthwise_conv2d_nchw n=1 c=96 h=112 w=112 k=3 stride=2 padding=1", "softmax shape=12x128x128",
    "layer_norm shape=128x768", "max_pool2d_nchw n=1 c=64 h=112 w=112 k=3 stride=2 padding=1",
    "avg_pool2d_nchw n=1 c=192 h=35 w=35 k=3 padding=1", "global_avg_pool2d_nchw n=1 c=512 h=7 w=7",
    "reduce_sum shape=8x100000 axis=1", "reduce_max shape=64x1000 axis=1", "transpose shape=512x768 perm=1,0",
    "add shape=1x64x56x56 other=64x1x1", "relu shape=1x64x56x56",
)  # fmt: skip


def prove(parser: argparse.ArgumentParser) -> None:
    """Prove the best plan of each operator on each device, on this environment's line.

        .venv/relax/bin/python -m roller_bench prove --devices cpu,v100,a100

    A line for each kernel that is not proven, or takes over a second of CPU time; then shares and times. Exit code 1 if
    one is refuted.
    """
    parser.add_argument("--devices", default="cpu,v100", help="names, with commas; default cpu,v100")
    parser.add_argument("--operators", nargs="*", default=list(WORDS), help="as for roller-tvm plan, each in quotes")
    parser.set_defaults(run=_prove)


def _prove(args: argparse.Namespace) -> int:
    here = usable_line("proving")
    line = model_line(here)
    answers: Counter[str] = Counter()
    times: list[float] = []
    for name in args.devices.split(","):
        device, features = planning_on(here, load_device(name))
        for words in args.operators:
            operator, *params = words.split()
            tensors = list(te_operator(operator, **parse_params(" ".join(params))))
            try:
                steps = schedule(line.read(tensors), None, device, features).script.steps
            except RollerError as error:
                print(f"{name} {words}: no plan: {error.what}")
                continue
            start = time.process_time()
            proof = line.prove(tensors, steps, device)
            times.append(time.process_time() - start)
            answers[proof.answer] += 1
            if proof.answer != PROVEN or times[-1] > 1:
                print(f"{name} {words} ({times[-1]:.2f} s): {'; '.join(map(str, proof.open)) or PROVEN}", flush=True)
    told = ", ".join(f"{count} {answer}" for answer, count in answers.most_common())
    print(f"{sum(answers.values())} kernels: {told}; {answers[PROVEN] / max(1, sum(answers.values())):.0%} proven")
    if times:
        print(f"CPU time: median {statistics.median(times) * 1e3:.0f} ms, at most {max(times):.2f} s")
    return int(answers[REFUTED] > 0)
