#!/usr/bin/env python3
"""Compare whole models on both of TVM's lines: Roller, Ansor or MetaSchedule, untuned TVM, onnxruntime, PyTorch.

    python python/compare_models.py whole                      # an hour a model; stop it at any time
    python python/compare_models.py whole --models squeezenet,net.onnx --peers 200
    python python/compare_models.py benchmarks/models          # the folder kept in the repository

Runs ``roller-tvm compare --models`` in each line's environment (by default those of ``make venv``), model by model. The
same command resumes: finished models stay, also in the reports if other models are asked for. PyTorch takes part if
``pip install torch`` and ``pip install --no-deps onnx2torch`` put it into an environment; else its rows say that it is
missing.
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
    """Run the script; return 0 if nothing is left to do, else 1."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    add_common(parser, peers=500)  # for all operators of a model
    parser.add_argument("--models", default=MODELS, metavar="NAME,FILE.onnx",
                        help="models, with commas; default %(default)s")
    parser.add_argument("--again", default="", metavar="TUNERS", help="repeat the work of these tuners, or 'times'")
    args = parser.parse_args(argv)
    return ended("compare_models", lambda: compare(args))


def compare(args: argparse.Namespace) -> int:
    """Compare model by model, line by line; return the exit code."""
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
    """Run ``roller-tvm compare --models`` in a line's environment."""
    tuners = f"{OTHERS},{SEARCH[line]}:{args.peers}"
    return run_compare(getattr(args, line), line, args.folder, ["--models", models, "--tuners", tuners, *words], quiet)


if __name__ == "__main__":
    sys.exit(main())
