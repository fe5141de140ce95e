#!/usr/bin/env python3
"""Latency of built models beside onnxruntime: the same input and threads, a process each, run in turns.

    python python/latency.py model.onnx untuned.so tuned.so --inputs inputs.npz --threads 2

A process each, stopped while another has its turn: in one process they disturb one another. TVM's idle threads spin on
for a tenth of a second on a CPU that the next one needs; and after TVM's calling thread had been given its own CPU,
onnxruntime's two threads shared one CPU for its next runs (8 ms where it takes 2). `demo.py` and `end_to_end.py`
measure through this script too, so that nothing of their tuning is left in what is timed. Prints medians and the ratios
to onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

ORT = "onnxruntime"
#: Of one block: runs that are not counted (threads wake up), then at least so many runs and so long.
WARM, BLOCK, BLOCK_S = 4, 8, 0.08


def onnxruntime_run(model: Path, inputs: dict[str, np.ndarray], threads: int) -> Callable[[], object]:
    """onnxruntime's session on these inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def tvm_run(library: Path, inputs: dict[str, np.ndarray], threads: int) -> Callable[[], object]:
    """A built library of the TVM here on these inputs, the calling thread on a CPU of its own."""
    from roller_tvm.tvm_env import line, set_threads
    from roller_tvm.tvm_env.pin import pin_calling_thread

    set_threads(threads)
    run = (_relax_run if line() == "relax" else _relay_run)(library, inputs)
    run()  # the pool exists from here on
    pin_calling_thread()
    return run


def _relay_run(library: Path, inputs: dict[str, np.ndarray]) -> Callable[[], object]:
    from roller_tvm.tvm_env import import_relay_tvm

    tvm = import_relay_tvm("running a built model")
    from tvm.contrib import graph_executor

    module = graph_executor.GraphModule(tvm.runtime.load_module(str(library))["default"](tvm.cpu()))
    module.set_input(**inputs)
    run: Callable[[], object] = module.run
    return run


def _relax_run(library: Path, inputs: dict[str, np.ndarray]) -> Callable[[], object]:
    """The virtual machine's closure, its arguments in place once, as the graph executor's are."""
    from roller_tvm.relax.package import LoadedModel
    from roller_tvm.tvm_env import import_relax_tvm

    tvm, model = import_relax_tvm("running a built model"), LoadedModel(library)
    model.machine.set_input("main", *(tvm.runtime.tensor(inputs[name]) for name in model.inputs))
    return lambda: model.machine.invoke_stateful("main")


def serve(args: argparse.Namespace) -> int:
    """One implementation: a block of runs for every line of input."""
    with np.load(args.inputs) as arrays:
        inputs = dict(arrays)
    run = (tvm_run if args.model.suffix == ".so" else onnxruntime_run)(args.model, inputs, args.threads)
    run()
    print("ready", flush=True)
    for _ in sys.stdin:
        taken: list[float] = []
        for _ in range(WARM):
            run()
        until = time.perf_counter() + BLOCK_S
        while len(taken) < BLOCK or time.perf_counter() < until:
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        print(json.dumps(taken), flush=True)
    return 0


def latencies(model: Path, libraries: list[Path], inputs: Path, threads: int, seconds: float) -> dict[str, list[float]]:
    """Times of onnxruntime and of each library, by file name; every one gets at least two blocks."""
    processes: dict[str, Any] = {}
    try:
        for path in (model, *libraries):
            command = [sys.executable, __file__, str(path), "--inputs", str(inputs), "--threads", str(threads)]
            processes[ORT if path == model else path.name] = subprocess.Popen(
                [*command, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        for name, process in processes.items():
            if process.stdout.readline().strip() != "ready":
                raise SystemExit(f"{name} cannot be run: see above")
            process.send_signal(signal.SIGSTOP)
        times: dict[str, list[float]] = {name: [] for name in processes}
        until, rounds = time.perf_counter() + seconds, 0
        while rounds < 2 or time.perf_counter() < until:
            for name, process in processes.items():
                process.send_signal(signal.SIGCONT)
                process.stdin.write("block\n")
                process.stdin.flush()
                times[name] += json.loads(process.stdout.readline())
                process.send_signal(signal.SIGSTOP)
            rounds += 1
        return times
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the ONNX model")
    parser.add_argument("libraries", type=Path, nargs="*", help="built for the TVM here")
    parser.add_argument("--inputs", type=Path, required=True, help=".npz with an array for each input")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true", help="every time in seconds, by name")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args)
    times = latencies(args.model, args.libraries, args.inputs, args.threads, args.seconds)
    if args.json:
        print(json.dumps(times))
        return 0
    reference = statistics.median(times[ORT])
    for name, taken in times.items():
        median, fast = statistics.median(taken), sorted(taken)[len(taken) // 10]
        print(f"{name:<40} {median * 1e3:8.2f} ms (fastest tenth {fast * 1e3:.2f})  "
              f"{reference / median:5.2f}x onnxruntime's speed")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
