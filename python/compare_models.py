#!/usr/bin/env python3
"""Whole models on both of TVM's lines: Roller, Ansor or MetaSchedule, untuned TVM, onnxruntime, PyTorch.

    python python/compare_models.py whole                      # an hour a model; stop it at any time
    python python/compare_models.py whole --models squeezenet,net.onnx --peers 200
    python python/compare_models.py benchmarks/models          # where it is kept

Runs ``roller-tvm compare --models`` in each line's environment (those of ``make venv`` unless told), model by model.
The same command goes on: what was tuned and timed stays, in the reports too where other models are asked for. PyTorch
is among them where ``pip install torch`` and ``pip install --no-deps onnx2torch`` put it into an environment; else its
rows say that it is missing.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare_lines import DONE, LEFT, add_common, can_learn, ended, run_compare, write_summary  # noqa: E402

MODELS = "bert_base,mobilenet_v2,detection,direction,resnet50,squeezenet"
OTHERS = "roller:1,roller:10,untuned,onnxruntime,torch,torchcompile"
SEARCH = {"relay": "ansor", "relax": "metaschedule"}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 when nothing is left to do, 1 when something is."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    add_common(parser, peers=500)  # for all operators of a model
    parser.add_argument("--models", default=MODELS, metavar="NAME,FILE.onnx")
    parser.add_argument("--again", default="", metavar="TUNERS", help="forget what these did before, or 'times'")
    args = parser.parse_args(argv)
    return ended("compare_models", lambda: compare(args))


def compare(args: argparse.Namespace) -> int:
    """Model by model, line by line."""
    lines, models = args.lines.split(","), [m for m in args.models.split(",") if m]
    for line in lines:
        can_learn(str(getattr(args, line)))
    every = ",".join(dict.fromkeys([*MODELS.split(","), *models]))  # reports leave out those of which there is nothing
    until, left = time.monotonic() + args.seconds, False
    for number, model in enumerate(models, 1):
        print(f"-- {number}/{len(models)} {model}", flush=True)
        for line in lines:
            if (seconds := until - time.monotonic()) <= 0:
                return LEFT
            words = ["--quiet", f"{args.quiet:g}", *(["--retry"] if args.retry else []),
                     *(["--again", args.again] if args.again else []),
                     *(["--mix-machines"] if args.mix_machines else []),
                     *(["--seconds", f"{seconds:.0f}"] if math.isfinite(seconds) else [])]  # fmt: skip
            left |= call(args, line, model, words) != DONE
        for line in lines:
            call(args, line, every, ["--report"], quiet=True)
        write_summary(args.folder)
    return LEFT if left else DONE


def call(args: argparse.Namespace, line: str, models: str, words: Sequence[str], quiet: bool = False) -> int:
    """``roller-tvm compare --models`` in a line's environment."""
    tuners = f"{OTHERS},{SEARCH[line]}:{args.peers}"
    return run_compare(getattr(args, line), line, args.folder, ["--models", models, "--tuners", tuners, *words], quiet)


if __name__ == "__main__":
    sys.exit(main())
