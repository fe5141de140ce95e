"""Latencies of whole models in turns: a process for each implementation, stopped while another has its turn.

In one process they disturb one another. TVM's idle threads spin on for a tenth of a second on a CPU that the next one
needs; and after TVM's calling thread had been given its own CPU, onnxruntime's two threads shared one CPU for its next
runs (8 ms where it takes 2).
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time as clock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from roller_tvm.compare.whole.running import Runnable
from roller_tvm.errors import MeasureError
from roller_tvm.measure.lifeline import tie_to_parent

#: Of one block: runs that are not counted (threads wake up), then at least so many runs and so long.
WARM, BLOCK, BLOCK_S = 4, 8, 0.08
#: Seconds of a block after which no other run is begun. What takes longer once (TVM untuned) need not be warm.
MOST_S = 2.0
#: New processes for all, as memory lies differently in each; blocks in each at least.
PROCESSES, BLOCKS = 3, 2
#: This process' CPUs before TVM ran: it gives the thread that runs a kernel a CPU, which processes started then share.
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def time(kernels: list[str], target: str, seconds: float) -> list[list[float]]:
    """Seconds of a run of each implementation (a `Runnable`'s file), block by block: all in turns, for so long."""
    found: list[list[float]] = [[] for _ in kernels]
    for _ in range(PROCESSES):
        for own, blocks in zip(found, in_turns([Path(k) for k in kernels], seconds), strict=True):
            own += [statistics.median(block) for block in blocks]
    return found


def in_turns(files: Sequence[Path], seconds: float) -> list[list[list[float]]]:
    """Seconds of every run, by implementation and block.

    Raises
    ------
    MeasureError
        One cannot be run.
    """
    processes: list[Any] = []
    try:
        for path in files:
            command = [sys.executable, "-m", __name__, str(path), str(os.getpid()), ",".join(map(str, CPUS))]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(os.path.abspath(p) for p in sys.path))}
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            processes.append(process)
        for path, process in zip(files, processes, strict=True):
            if process.stdout.readline().strip() != "ready":
                raise MeasureError("cannot be run: see above", str(path), kind="run error")
            process.send_signal(signal.SIGSTOP)
        times: list[list[list[float]]] = [[] for _ in files]
        until = clock.perf_counter() + seconds
        while len(times[-1]) < BLOCKS or clock.perf_counter() < until:
            for own, process in zip(times, processes, strict=True):
                process.send_signal(signal.SIGCONT)
                process.stdin.write("block\n")
                process.stdin.flush()
                own.append(json.loads(process.stdout.readline()))
                process.send_signal(signal.SIGSTOP)
        return times
    finally:
        for process in processes:
            process.kill()
            process.wait()


def serve(path: Path) -> None:
    """One implementation: a block of runs for every line of input."""
    run = Runnable.read(path).open().run
    run()  # torch.compile compiles at the first
    slow = _timed(run) > MOST_S
    print("ready", flush=True)
    for _ in sys.stdin:
        for _ in range(0 if slow else WARM):
            run()
        taken = [_timed(run)]
        while sum(taken) < MOST_S and (len(taken) < BLOCK or sum(taken) < BLOCK_S):
            taken.append(_timed(run))
        print(json.dumps(taken), flush=True)


def _timed(run: Callable[[], object]) -> float:
    start = clock.perf_counter()
    run()
    return clock.perf_counter() - start


if __name__ == "__main__":
    tie_to_parent(int(sys.argv[2]))
    if sys.argv[3]:
        os.sched_setaffinity(0, {int(cpu) for cpu in sys.argv[3].split(",")})
    serve(Path(sys.argv[1]))
