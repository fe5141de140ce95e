"""Arguments that name a model and a target, shared by the verbs that read one."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roller_tvm.cli.line import add_line_argument
from roller_tvm.errors import UsageError
from roller_tvm.models import existing, parse_shapes

WITH_WEIGHTS = (".onnx", ".pt2")
LAYOUTS = ("NCHW", "NHWC")  # those of either line's importer
#: What the command to go on with has to repeat: of another shape, or planned otherwise, there are no records.
_SHAPING = ("target", "input_shapes", "desired_layout", "params", "line", "buckets", "device", "fusion_policy")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE, --target and what shapes the model."""
    parser.add_argument(
        "FILE",
        type=Path,
        help="ONNX model; a Relay module (.json, .relay); on the Relax line a PyTorch ExportedProgram (.pt2), a "
        "Relax module (.json)",
    )
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
    parser.add_argument("--desired-layout", choices=LAYOUTS, help="convert convolutions to this layout")
    weights = "weights of a Relay or Relax module; default: FILE with .params"
    parser.add_argument("--params", type=Path, metavar="FILE.params", help=weights)
    add_line_argument(parser)


def model_words(args: argparse.Namespace, target: str | None) -> str:
    """FILE and what shapes the model, for the command to go on with: another shape has no records."""
    words = [str(args.FILE)]
    for name, value in {**vars(args), "target": target}.items():
        if name in _SHAPING and value:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, *(["--fuse-rtasks"] if vars(args).get("fuse_rtasks") else [])])


def read_model(args: argparse.Namespace, load: Callable[..., Any]) -> Any:
    """Import the model with a line's importer, saying how long it took."""
    shapes = parse_shapes(args.input_shapes) if args.input_shapes is not None else None
    if args.params is not None:
        existing(args.params, "weights, or leave --params out")
        if args.FILE.suffix in WITH_WEIGHTS:
            raise UsageError(f"{args.FILE} holds its own weights", "--params", "leave it out")
    start = time.perf_counter()
    model = load(args.FILE, shapes, args.desired_layout, args.params)
    told = ", ".join(f"{name} {list(shape)} {dtype}" for name, (shape, dtype) in model.inputs.items())
    say(f"{args.FILE}: {told} ({time.perf_counter() - start:.1f} s to import)")
    for note in model.notes:
        say(f"  note: {note}")
    return model


def tell_device(device: Any, named: bool) -> None:
    """Say the device, and its notes."""
    say(f"device: {device}")
    for note in device.notes if device.source != "data sheet" or not named else ():
        say(f"  note: {note}")


def say(*words: Any) -> None:
    """Progress goes to the standard error, so that --json stays clean."""
    print(*words, file=sys.stderr, flush=True)


def progress_of(what: str) -> Callable[[str], None]:
    """Return a function that shows the latest step on one line of a terminal's standard error; else nothing."""
    if not sys.stderr.isatty():
        return lambda step: None
    begun, count = time.perf_counter(), 0

    def show(step: str) -> None:
        nonlocal count
        count += 1
        text = f"{what} {count}: {step}, {time.perf_counter() - begun:.0f} s"
        sys.stderr.write(f"\r\033[K{text[:100]}" if step else "\r\033[K")
        sys.stderr.flush()

    return show
