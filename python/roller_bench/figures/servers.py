"""Tuning on several servers of TVM's RPC tracker: seconds by their number."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from roller_bench.farm import Farm
from roller_bench.figures import NETWORKS, add_out, names, tell
from roller_bench.slow_board import VARIABLE
from roller_bench.zoo import onnx_model
from roller_tvm.folders import variable
from roller_tvm.models.line import Request, model_line
from roller_tvm.planner.explain.words import table
from roller_tvm.session import Session
from roller_tvm.tvm_env.locate import usable_line


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
        with (tempfile.TemporaryDirectory() as folder, Farm(Path(folder)) as farm,
              variable(VARIABLE, str(args.slower))):  # fmt: skip
            for _ in range(count):
                farm.start_server()
            farm.wait(count)
            session = Session(line, Request(threads=1)).read(str(model.path))
            began = time.perf_counter()
            result = session.tune(args.plans, Path(folder, line.place), list(range(args.tasks)), tracker=farm.address,
                                  key=farm.where.key, worker="roller_bench.slow_board")  # fmt: skip
            seconds[count] = time.perf_counter() - began
            print(f"{count}: {seconds[count]:.1f} s, {len(result.tasks)} operators", flush=True)
    first = min(seconds)
    rows: list[list[str]] = [["servers", "seconds", "times as fast"]]
    rows += [[str(n), f"{s:.1f}", f"{seconds[first] / s:.2f}"] for n, s in seconds.items()]
    tell("\n".join(table(rows, left=1, indent="")), args.out)
    return 0
