"""Arguments that name a model and a target, shared by the verbs that read one."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from roller_tvm.cli.line import add_line_argument, models_of, policy_of
from roller_tvm.errors import UsageError, plain
from roller_tvm.models import existing, parse_shapes
from roller_tvm.models.line import SCHEDULES, Request
from roller_tvm.models.shapes import parse_bounds, parse_buckets, parse_likely
from roller_tvm.session import Session

WITH_WEIGHTS = (".onnx", ".pt2")
LAYOUTS = ("NCHW", "NHWC")  # those of either line's importer
#: What the command to go on with has to repeat: of another shape, or planned otherwise, there are no records.
_SHAPING = ("target", "input_shapes", "desired_layout", "params", "line", "buckets", "bounds", "likely", "device",
            "fusion_policy")  # fmt: skip
_FLAGS = ("no_winograd", "fuse_rtasks", "trust_model")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE, --target and what shapes the model."""
    told = "ONNX model; PyTorch ExportedProgram (.pt2); module of the line: Relay (.json, .relay) or Relax (.json)"
    parser.add_argument("FILE", type=Path, help=told)
    parser.add_argument(
        "--target", default=None, help='e.g. "llvm -mcpu=skylake-avx512" or "cuda -arch=sm_90"; default: this CPU'
    )
    parser.add_argument(
        "--input-shapes", metavar='"NAME:[1,3,224,224] ..."', help="shapes of the inputs that the model leaves open"
    )
    parser.add_argument("--desired-layout", choices=LAYOUTS, help="convert convolutions to this layout")
    weights = "weights of a Relay or Relax module; default: FILE with .params"
    told = "read a FILE that is a program (.pt2, .json, .relay): it can do whatever you can do"
    parser.add_argument("--trust-model", action="store_true", help=told)
    parser.add_argument("--params", type=Path, metavar="FILE.params", help=weights)
    add_line_argument(parser)


def model_words(args: argparse.Namespace, target: str | None) -> str:
    """FILE and what shapes the model, for the command to go on with: another shape has no records."""
    words = [str(args.FILE)]
    for name, value in {**vars(args), "target": target}.items():
        if name in _SHAPING and value:
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += [f"--{name.replace('_', '-')}" for name in _FLAGS if vars(args).get(name)]
    return shlex.join(words)


def tune_words(args: argparse.Namespace, target: str | None, place: str) -> str:
    """Return the command that tunes the model, for a target (None: as asked), into a place."""
    return f"roller-tvm tune {model_words(args, target or args.target)} --output {shlex.quote(place)}"


def open_session(args: argparse.Namespace, what_for: str, tell: bool) -> Session:
    """Return the session of a command: options, target and device checked, the model not yet read.

    Parameters
    ----------
    tell : bool
        Say the device, even if it follows from the target.
    """
    given = vars(args)
    request = Request(
        args.target, schedules=given.get("schedules", SCHEDULES[0]), device=args.device, fuse_rtasks=args.fuse_rtasks,
        buckets=parse_buckets(args.buckets) if args.buckets else None, tf32=given.get("tf32", False),
        winograd=not given.get("no_winograd"), fast_math=given.get("fast_math", False), policy=policy_of(args),
        strict=given.get("strict", False), prove=given.get("prove", False),
        bounds=parse_bounds(args.bounds) if given.get("bounds") else {},
        likely=parse_likely(args.likely) if given.get("likely") else {},
    )  # fmt: skip
    line = models_of(args, what_for)
    line.check_options(request)
    if "schedules" in given:  # the model is written to a file
        line.check_output(args.output or line.output)
    session = Session(line, request, "--device")
    if not args.target:
        words = session.aim.words
        say(f"target: {words if isinstance(words, str) else json.dumps(words)}")
    if tell or args.device:
        device = session.aim.device
        say(f"device: {device}")
        for note in device.notes if device.source != "data sheet" or not args.device else ():
            say(f"  note: {note}")
    return session


def read_model(args: argparse.Namespace, session: Session) -> None:
    """Import the model into a session, saying how long it took."""
    shapes = parse_shapes(args.input_shapes) if args.input_shapes is not None else None
    if args.params is not None:
        existing(args.params, "weights, or leave --params out")
        if args.FILE.suffix in WITH_WEIGHTS:
            raise UsageError(f"{args.FILE} holds its own weights", "--params", "leave it out")
    start, importer = time.perf_counter(), session.line.importer
    load = partial(importer.load, args.FILE, shapes, args.desired_layout, args.params, trusted=args.trust_model)
    model = load()
    told = ", ".join(f"{name} {list(shape)} {dtype}" for name, (shape, dtype) in model.inputs.items())
    say(f"{args.FILE}: {told} ({time.perf_counter() - start:.1f} s to import)")
    for note in model.notes:
        say(f"  note: {note}")
    session.take(str(args.FILE), model, load)


def say(*words: Any) -> None:
    """Progress goes to the standard error, so that --json stays clean."""
    print(*(plain(str(word)) for word in words), file=sys.stderr, flush=True)
