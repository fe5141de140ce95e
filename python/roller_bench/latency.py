"""Time whole models in turns: a process for each implementation, stopped while another has its turn.

In one process they would disturb one another. TVM's idle threads keep spinning for a tenth of a second on a CPU that
the next implementation needs. And once TVM's calling thread was pinned to its own CPU, onnxruntime's two threads shared
one CPU in their next runs (8 ms instead of 2).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

import roller_bench
import roller_tvm
from roller_bench.running import Runnable, read_inputs
from roller_tvm.children import environment, python
from roller_tvm.errors import MeasureError
from roller_tvm.folders import work_folder
from roller_tvm.tuning.lifeline import tie_to_parent

#: Runs of a block that are not counted (threads wake up), then its least runs and least seconds.
WARM, BLOCK, BLOCK_S = 4, 8, 0.08
#: Seconds of a block after which no other run is begun. A model whose run takes longer (TVM untuned) is not warmed up.
MOST_S = 2.0
#: Number of sets of new processes, as memory lies differently in each; least blocks per process.
PROCESSES, BLOCKS = 3, 2
Process = subprocess.Popen[str]
#: numpy puts large arrays on huge pages; onnxruntime and torch read inputs there, ours a copy on small ones.
EQUAL = {"NUMPY_MADVISE_HUGEPAGE": "0"}
#: Where this program's packages are: all that an interpreter with an environment of its own takes from here.
OWN = [str(Path(package.__file__ or "").resolve().parents[1]) for package in (roller_bench, roller_tvm)]
#: This process's CPUs before TVM ran. TVM pins the thread that runs a kernel, and processes started later inherit that.
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def time(kernels: list[str], target: str, seconds: float) -> list[list[float]]:
    """Time implementations (files of a `Runnable`) in turns; return seconds of a run by implementation and block."""
    found: list[list[float]] = [[] for _ in kernels]
    for _ in range(PROCESSES):
        for own, blocks in zip(found, in_turns([Path(k) for k in kernels], seconds), strict=True):
            own += [statistics.median(block) for block in blocks]
    return found


def medians_in_turns(
    asked: Mapping[str, Runnable], seconds: float
) -> tuple[dict[str, float], dict[str, list[np.ndarray]]]:
    """Time implementations in turns; return the median seconds of a run and the outputs of each, by name."""
    with work_folder() as folder:
        files = [runnable.write(Path(folder, f"{n}.json")) for n, runnable in enumerate(asked.values())]
        taken = in_turns(files, seconds, Path(folder))
        outputs = [[*read_inputs(Path(folder, f"{n}.npz")).values()] for n in range(len(files))]
    medians = [statistics.median(s for block in blocks for s in block) for blocks in taken]
    return dict(zip(asked, medians, strict=True)), dict(zip(asked, outputs, strict=True))


def in_turns(files: Sequence[Path], seconds: float, outputs: Path | None = None) -> list[list[list[float]]]:
    """Return the seconds of every run, by implementation and block.

    Parameters
    ----------
    files : sequence of Path
        Of a `Runnable` each.
    seconds : float
        Time of measuring, beyond the least blocks.
    outputs : Path, optional
        Folder in which each implementation's outputs are written first, as ``0.npz`` and so on.

    Raises
    ------
    MeasureError
        An implementation cannot be run.
    """
    with opened(files) as processes:
        for number, process in enumerate(processes if outputs is not None else ()):
            _asked(process, f"{outputs}/{number}.npz")
        return blocks_in_turns(processes, seconds)


@contextlib.contextmanager
def opened(files: Sequence[Path]) -> Iterator[list[Process]]:
    """Open implementations, each in a process of its own that is then stopped; at the end they are killed.

    Raises
    ------
    MeasureError
        An implementation cannot be run.
    """
    with opened_if_possible(files) as processes:
        for path, process in zip(files, processes, strict=True):
            if process is None:
                raise MeasureError("cannot be run: see above", str(path), kind="run error")
        yield [process for process in processes if process is not None]


@contextlib.contextmanager
def opened_if_possible(
    files: Sequence[Path], limit_s: float | None = None, env: Mapping[str, str] | None = None
) -> Iterator[list[Process | None]]:
    """Open implementations side by side as `opened` does; None for one that cannot be run or is late.

    Parameters
    ----------
    files : sequence of Path
    limit_s : float, optional
        Most seconds to wait for the next one to be ready.
    env : mapping, optional
        Variables of the processes' environment, beside this one's.
    """
    processes, ready = list[Process](), list[Process | None]()
    try:
        for path in files:
            command = python("-m", __name__, str(path), str(os.getpid()), ",".join(map(str, CPUS)))
            own = environment({**EQUAL, **(env or {})})
            if other := Runnable.read(path).python:
                command[0], own["PYTHONPATH"] = other, os.pathsep.join(OWN)
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own)
            processes.append(process)
        for process in processes:
            late = threading.Timer(limit_s or threading.TIMEOUT_MAX, process.kill)
            late.daemon = True
            late.start()
            told = _line(process)
            late.cancel()
            process.send_signal(signal.SIGSTOP if told == "ready" else signal.SIGKILL)
            ready.append(process if told == "ready" else None)
        yield ready
    finally:
        for process in processes:
            process.kill()
            process.wait()


def blocks_in_turns(processes: Sequence[Process], seconds: float) -> list[list[list[float]]]:
    """Return the seconds of every run of opened implementations, by implementation and block."""
    times: list[list[list[float]]] = [[] for _ in processes]
    until = clock.perf_counter() + seconds
    while len(times[-1]) < BLOCKS or clock.perf_counter() < until:
        for own, process in zip(times, processes, strict=True):
            own.append(json.loads(_asked(process, "block")))
    return times


def _asked(process: Process, line: str) -> str:
    """Return the answer of a process, which runs only meanwhile."""
    assert process.stdin is not None
    process.send_signal(signal.SIGCONT)
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    told = _line(process)
    process.send_signal(signal.SIGSTOP)
    return told


def _line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def serve(path: Path) -> None:
    """Run one implementation: a block of runs for every line of input, its times as a line of output.

    A line that names a file has the outputs written there.
    """
    running = Runnable.read(path).open()
    run = running.run
    run()  # torch.compile compiles at the first
    slow = _timed(run) > MOST_S
    print("ready", flush=True)
    for line in sys.stdin:
        if (file := line.strip()) != "block":
            np.savez(file, *running.outputs())
            print("written", flush=True)
            continue
        for _ in range(0 if slow else WARM):
            run()
        taken, spent = list[float](), 0.0
        while spent < MOST_S and (len(taken) < BLOCK or spent < BLOCK_S):
            taken.append(_timed(run))
            spent += taken[-1]
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
