"""Arguments that name a model and a target, shared by the verbs that read one."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from roller_tvm.relay.importers import LAYOUTS, Model, load_model, parse_shapes


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE, --target and what shapes the model."""
    parser.add_argument("FILE", type=Path, help="ONNX model, or Relay module (.json, .relay)")
    parser.add_argument(
        "--target",
        default=None,
        help='e.g. "llvm -mcpu=skylake-avx512" or "cuda -arch=sm_90"; default: this CPU',
    )
    parser.add_argument(
        "--input-shapes",
        metavar='"NAME:[1,3,224,224] ..."',
        help="shapes of the inputs that the model leaves open",
    )
    parser.add_argument("--desired-layout", choices=list(LAYOUTS), help="convert convolutions to this layout")
    weights = "weights of a Relay module; default: FILE with .params"
    parser.add_argument("--params", type=Path, metavar="FILE.params", help=weights)


def read_model(args: argparse.Namespace) -> Model:
    """Import the model, saying how long it took."""
    shapes = parse_shapes(args.input_shapes) if args.input_shapes else None
    start = time.perf_counter()
    model = load_model(args.FILE, shapes, args.desired_layout, args.params)
    told = ", ".join(f"{name} {list(shape)} {dtype}" for name, (shape, dtype) in model.inputs.items())
    say(f"{args.FILE}: {told} ({time.perf_counter() - start:.1f} s to import)")
    return model


def target_of(args: argparse.Namespace) -> str:
    """The target asked for, or that of this machine's CPU with the threads that it scales to."""
    if args.target:
        return str(args.target)
    from roller_tvm.device import cpu_device, default_cpu_target

    target = default_cpu_target(cpu_device().units)
    say(f"target: {target}")
    return target


def say(*words: Any) -> None:
    """Progress goes to the standard error, so that --json stays clean."""
    print(*words, file=sys.stderr, flush=True)
