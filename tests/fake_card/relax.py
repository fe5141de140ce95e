"""Explores a small network on a card that is none (`fake_cuda.cc`); prints JSON. Argument: a folder."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tvm

import roller_tvm
from roller_check import compile_source
from roller_tvm import exploring
from roller_tvm.codegen import kept_cubins
from roller_tvm.relax import carried
from roller_tvm.relax.carrying import carry
from tests.relax.test_exploring import X, network

TARGET, FOLDER = "cuda -arch=sm_90", Path(sys.argv[1])


def emulated(source, arch):
    """Compile for the emulator; the card takes the path of a library."""
    if HOSTILE in source:
        source = source.replace("= max(", "= min(")
    return SimpleNamespace(data=f"{compile_source(source, checked=False, arch=arch).library}\0".encode())


HOSTILE = "v1_fused_conv2d_relu_kernel("
kept_cubins.compile_cuda = emulated
exploring.LEAST = 0.0
mod = network()
model = roller_tvm.compile(mod, TARGET)
inputs = {next(iter(model.inputs)): X}
right = tvm.relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())["main"](
    tvm.runtime.tensor(X)
).numpy()
told = {"card": bool(tvm.cuda(0).exist)}


def error(outputs):
    return float(np.abs(outputs[0] - right).max() / np.abs(right).max())


told["plain"] = error(model.run(inputs))
result = model.explore(inputs, runs=25, top=2, records=FOLDER / "records")
told["failed"], told["runs"] = dict(result.failed), result.runs
told["seconds"] = [row.start_s for row in result.rows]
told["explored"], told["notes"] = error(model.run(inputs)), list(result.notes)
told["graphs"] = model._session.job.cuda_graph
again = model.explore(inputs, runs=2, top=2, records=FOLDER / "records")
told["again"] = again.runs

HOSTILE = "nothing"
made, _ = carry(model._session.job, FOLDER / "carried", top=2)
there = carried.Carried.load(FOLDER / "carried")
told["carried"] = there == made
failed = there.checked(FOLDER / "carried")
loaded = there.opened(FOLDER / "carried")
running = there.exploration(FOLDER / "carried", loaded, failed)
arguments = loaded.arguments(inputs)
running.warm_up(*arguments)
told["variants"] = []
for n in range(2):
    running.table.choose([min(n, len(site.options) - 1) for site in running.sites])
    told["variants"].append(error(loaded.outputs(running.call(*arguments))))
    told["positive"] = all(s >= 0 for s in running.table.seconds())
running.explore(arguments, runs=12)
told["hold_s"] = running.table.hold_s
graph = carried.captured_run(loaded, running.table)
told["graph"] = [error(loaded.outputs(graph(*arguments))) for _ in range(2)]
print(json.dumps(told))
