"""Tuning on several servers of TVM's RPC tracker: seconds by their number."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from roller_bench.figures import NETWORKS, add_out, names, tell
from roller_bench.slow_board import VARIABLE
from roller_bench.zoo import onnx_model
from roller_tvm.children import environment, python
from roller_tvm.errors import MeasureError
from roller_tvm.folders import variable
from roller_tvm.models.line import Request, model_line
from roller_tvm.planner.explain.words import table
from roller_tvm.session import Session
from roller_tvm.tuning import remote
from roller_tvm.tvm_env.locate import usable_line

KEY, HOST = "board", "127.0.0.1"
#: Seconds in which a tracker and its servers start.
START_S = 120.0
#: Ports that a server may choose from.
PORTS = 20


def servers(parser: argparse.ArgumentParser) -> None:
    """Tune operators of a model on 1, 2 and 4 servers, which are started here by TVM's own commands.

    Builds and runs wait for `--slower` seconds each, as slow machines would: this one has too few cores for so many.
    """
    parser.add_argument("--counts", type=names, default=["1", "2", "4"], help="numbers of servers; default 1,2,4")
    told = "name from 'roller-tvm compare --list', or a file; default %(default)s"
    parser.add_argument("--model", default="squeezenet", help=told)
    parser.add_argument("--tasks", type=int, default=2, help="operators to tune; default %(default)s")
    parser.add_argument("--plans", type=int, default=16, help="plans of each; default %(default)s")
    parser.add_argument("--slower", type=float, default=1.0, help="seconds; default %(default)s")
    parser.add_argument("--folder", type=Path, default=NETWORKS, help="folder of models; default %(default)s")
    add_out(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    model = onnx_model(args.model, args.folder)
    line = model_line(usable_line("tuning"))
    seconds = {}
    for count in map(int, args.counts):
        with _farm(count) as tracker, tempfile.TemporaryDirectory() as folder, variable(VARIABLE, str(args.slower)):
            session = Session(line, Request(threads=1)).read(str(model.path))
            began = time.perf_counter()
            result = session.tune(args.plans, Path(folder, line.place), list(range(args.tasks)), tracker=tracker,
                                  key=KEY, worker="roller_bench.slow_board")  # fmt: skip
            seconds[count] = time.perf_counter() - began
            print(f"{count}: {seconds[count]:.1f} s, {len(result.tasks)} operators", flush=True)
    first = min(seconds)
    rows: list[list[str]] = [["servers", "seconds", "times as fast"]]
    rows += [[str(n), f"{s:.1f}", f"{seconds[first] / s:.2f}"] for n, s in seconds.items()]
    tell("\n".join(table(rows, left=1, indent="")), args.out)
    return 0


@contextlib.contextmanager
def _farm(count: int) -> Iterator[str]:
    """Yield the address of a tracker with so many servers of one thread each."""
    port, processes = _free_port(), []
    with tempfile.TemporaryFile() as log:

        def start(*words: str) -> None:
            made = subprocess.Popen(python("-m", *words), stdout=log, stderr=log, start_new_session=True,
                                    env=environment({"TVM_NUM_THREADS": "1"}))  # fmt: skip
            processes.append(made)

        try:
            start("tvm.exec.rpc_tracker", "--host", HOST, "--port", str(port), "--port-end", str(port + 1))
            for _ in range(count):
                own = _free_port()
                start("tvm.exec.rpc_server", "--host", HOST, "--port", str(own), "--port-end", str(own + PORTS),
                      "--tracker", f"{HOST}:{port}", "--key", KEY)  # fmt: skip
            _wait(remote.Tracker(HOST, port, KEY), count)
            yield f"{HOST}:{port}"
        finally:
            for process in processes:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _free_port() -> int:
    with socket.socket() as made:
        made.bind((HOST, 0))
        return int(made.getsockname()[1])


def _wait(tracker: remote.Tracker, count: int) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            if remote.servers(tracker) >= count:
                return
        except MeasureError:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)
