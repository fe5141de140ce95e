"""Explores a small Relay model on a card that is none (`fake_cuda.cc`); prints JSON. Argument: a folder."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tvm

import roller_tvm
from roller_check import compile_source
from roller_tvm import exploring
from roller_tvm.codegen import kept_cubins
from roller_tvm.relay import cuda
from tests.relay.test_exploring import X, network

TARGET, FOLDER = "cuda -arch=sm_80", Path(sys.argv[1])
HOSTILE = "v0_1_kernel("
FOLDER.mkdir(exist_ok=True)


def emulated(source, arch):
    """Compile for the emulator; the card takes the path of a library."""
    if HOSTILE in source:
        source = source.replace("= max(", "= min(")
    library = os.path.relpath(compile_source(source, checked=False, arch=arch).library)  # TVM takes "/" for PTX
    return SimpleNamespace(data=f"{library}\0".encode())


cuda.compile_cuda = kept_cubins.compile_cuda = emulated
exploring.LEAST = 0.0
told = {"card": bool(tvm.cuda(0).exist)}
right = roller_tvm.compile(network(), "llvm -num-cores=1", schedules="tvm").run({"x": X})[0]


def error(outputs):
    return float(np.abs(outputs[0] - right).max() / np.abs(right).max())


def out(site, number):
    return (made._made.classes[site.operator], site.options[number]) in made._made.failed


model = roller_tvm.compile(network(), TARGET)
told["plain"] = error(model.run({"x": X}))
made = exploring.ModelExploration(model._session, FOLDER / "records.json", {"x": X}, 2)
told["options"] = [len(site.options) for site in made.running.sites]
told["variants"] = []
for n in range(2):
    made.running.table.choose([n if n < len(s.options) and not out(s, n) else 0 for s in made.running.sites])
    told["variants"].append(error(made.loaded.outputs(made.running.call(*made.arguments({"x": X})))))
    told["positive"] = all(s >= 0 for s in made.running.table.seconds())
made.explore(None, 25, None)
result = made.finish()
told["site"] = dict(made.running.explorer.best(made.running.explorer.tree.epochs[0].name))["plan"]
told["failed"], told["runs"], told["notes"] = dict(result.failed), result.runs, list(result.notes)
told["explored"] = error(model.run({"x": X}))
print(json.dumps(told))
