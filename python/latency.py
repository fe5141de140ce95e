#!/usr/bin/env python3
"""Latency of built models beside onnxruntime: one fresh process, the same input and threads, run in turns.

    python python/latency.py model.onnx untuned.so tuned.so --inputs inputs.npz --threads 2

`demo.py` measures through this script too, so that nothing of its tuning is left in the process that is timed. Prints
medians and the ratios to onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
from timing import interleaved  # noqa: E402

ORT = "onnxruntime"


def latencies(
    model: Path, libraries: list[Path], inputs: dict[str, np.ndarray], threads: int, seconds: float
) -> dict[str, list[float]]:
    """Times of onnxruntime and of each library, by file name."""
    import onnxruntime

    from roller_tvm.tvm_env import import_relay_tvm, set_threads

    set_threads(threads)
    tvm = import_relay_tvm("running a built model")
    from tvm.contrib import graph_executor

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    calls: dict[str, Callable[[], object]] = {ORT: lambda: session.run(None, inputs)}
    for library in libraries:
        module = graph_executor.GraphModule(tvm.runtime.load_module(str(library))["default"](tvm.cpu()))
        module.set_input(**inputs)
        calls[library.name] = module.run
    return interleaved(calls, seconds, pinned=lambda name: name != ORT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the ONNX model")
    parser.add_argument("libraries", type=Path, nargs="+", help="built with relay and exported")
    parser.add_argument("--inputs", type=Path, required=True, help=".npz with an array for each input")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true", help="every time in seconds, by name")
    args = parser.parse_args()
    with np.load(args.inputs) as arrays:
        inputs = dict(arrays)
    times = latencies(args.model, args.libraries, inputs, args.threads, args.seconds)
    if args.json:
        print(json.dumps(times))
        return 0
    reference = statistics.median(times[ORT])
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:<40} {median * 1e3:8.2f} ms  {reference / median:5.2f}x onnxruntime's speed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
