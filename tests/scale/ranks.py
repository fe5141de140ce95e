"""One rank of a model whose pieces onnxruntime computes: `python -m tests.scale.ranks FOLDER [FAULT]`, under mpirun.

The folder has `program.json`, `NODE_PIECE.onnx`, `inputs.npz`; node 0 writes `outputs.npz`. A fault is `kill:RANK`,
`late:RANK`, `differ:RANK`, `device:RANK` or `fail:RANK`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import onnx

from roller_tvm.cli import main  # noqa: F401  the command's import is what is tested too
from roller_tvm.cli.nodes import _as_rank
from roller_tvm.errors import RollerError
from roller_tvm.folders import beside
from roller_tvm.scale.mpi import Ranks
from roller_tvm.scale.program import Program
from roller_tvm.scale.running import Node
from tests.scale.kit import Piece


def work(ranks, folder, kind, who):
    program = Program.from_json((folder / "program.json").read_text())
    mine = {"error": "", "build": "same", "device": "same"}
    if who == ranks.rank and kind in ("differ", "device", "fail"):
        mine[{"differ": "build", "device": "device", "fail": "error"}[kind]] = "no such file"
    ranks.agree(mine, {"device": "device file of the plan", "build": "build of the model"}, "give all the same")
    pieces = [Piece(onnx.load(folder / f"{ranks.rank}_{n}.onnx")) for n in range(len(program.pieces))]
    node = Node(program, pieces, ranks)
    inputs = dict(np.load(folder / "inputs.npz"))
    node.run(inputs)
    if kind == "late":
        ranks.limit = 2.0
    if who == ranks.rank and kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if who == ranks.rank and kind == "late":
        time.sleep(600)
    if who == ranks.rank and kind == "raise":
        raise ValueError("a kernel failed")
    outputs = node.run(inputs)
    size = node.check_bytes()
    if outputs is not None:
        with beside(folder / "outputs.npz") as made, made.open("wb") as file:
            np.savez(file, **outputs)
        (folder / "told.json").write_text(json.dumps({"bytes": size, "events": [
            [str(e.instruction), e.under_way] for e in node.events]}))  # fmt: skip
    return 0


def run(folder, fault=":-1"):
    kind, who = fault.split(":")
    ranks = Ranks(40.0)
    try:
        return _as_rank(ranks, lambda: work(ranks, Path(folder), kind, int(who)))
    except RollerError as error:
        print(f"roller-tvm: error: {error.one_line()}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
