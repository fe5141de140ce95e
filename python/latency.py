#!/usr/bin/env python3
"""Compare the latency of built models with onnxruntime's: same input and threads, one process each, in turns.

    python python/latency.py model.onnx untuned.so tuned.so --inputs inputs.npz --threads 2

``roller_tvm.compare.whole.latency`` times them. Prints medians and ratios to onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roller_tvm.compare.whole.latency import in_turns  # noqa: E402
from roller_tvm.compare.whole.running import Runnable  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402

ORT = "onnxruntime"


def runnable(path: Path, inputs: Path, threads: int) -> Runnable:
    """Return an ONNX file to run by onnxruntime, or a library to run by the installed TVM."""
    edge = f"{line()}.whole" if path.suffix == ".so" else "whole.onnxruntime"
    return Runnable(f"roller_tvm.compare.{edge}", str(path), str(inputs), threads)


def latencies(model: Path, libraries: Sequence[Path], inputs: Path, threads: int, seconds: float) -> list[list[float]]:
    """Return the seconds of every run of onnxruntime and of each library, at least two blocks each."""
    with tempfile.TemporaryDirectory(prefix="roller-tvm-") as folder:
        files = [
            runnable(path, inputs, threads).write(Path(folder, f"{number}.json"))
            for number, path in enumerate((model, *libraries))
        ]
        return [[s for block in blocks for s in block] for blocks in in_turns(files, seconds)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="ONNX model")
    parser.add_argument("libraries", type=Path, nargs="*", help="libraries built for the installed TVM")
    parser.add_argument("--inputs", type=Path, required=True, help=".npz file with an array for each input")
    parser.add_argument("--threads", type=int, required=True, help="threads of each implementation")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of measuring; default 10")
    parser.add_argument("--json", action="store_true", help="print every time in seconds, by name")
    args = parser.parse_args()
    times = latencies(args.model, args.libraries, args.inputs, args.threads, args.seconds)
    named = dict(zip((ORT, *(path.name for path in args.libraries)), times, strict=True))
    if args.json:
        print(json.dumps(named))
        return 0
    reference = statistics.median(named[ORT])
    for name, taken in named.items():
        median, fast = statistics.median(taken), sorted(taken)[len(taken) // 10]
        print(f"{name:<40} {median * 1e3:8.2f} ms (fastest tenth {fast * 1e3:.2f})  "
              f"{reference / median:5.2f}x onnxruntime's speed")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
