"""Time and memory of building a model with Roller beside those of an untuned TVM build, in fresh processes."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roller_bench.figures import NETWORKS, add_out, append_lines, names, read_lines, tell
from roller_bench.zoo import onnx_model
from roller_tvm.children import environment, python
from roller_tvm.device import cpu_device
from roller_tvm.errors import MeasureError
from roller_tvm.folders import cache_folder, work_folder
from roller_tvm.planner.explain.words import table
from roller_tvm.tvm_env import find_tvm, line

#: From a model's file to a model that is ready to run.
OURS = """
import json, sys, roller_tvm
roller_tvm.compile(sys.argv[1], shapes=json.loads(sys.argv[2]))
"""
#: The same importer, TVM's own schedules and pipeline.
UNTUNED = {
    "relax": """
import json, sys, tvm
from roller_tvm.relax import load_model
from roller_tvm.relax.targets import local_target
model = load_model(sys.argv[1], json.loads(sys.argv[2]))
tvm.relax.VirtualMachine(tvm.compile(model.mod, tvm.target.Target(local_target())), tvm.cpu())
""",
    "relay": """
import json, sys
from roller_tvm.device import cpu_device, default_cpu_target
from roller_tvm.tvm_env import import_relay_tvm
tvm = import_relay_tvm("building")
from tvm import relay
from tvm.contrib import graph_executor
from roller_tvm.relay.importers import load_model
model = load_model(sys.argv[1], json.loads(sys.argv[2]))
with tvm.transform.PassContext(opt_level=3):
    built = relay.build(model.mod, default_cpu_target(cpu_device().units), params=model.params)
graph_executor.GraphModule(built["default"](tvm.cpu()))
""",
}
FIRST, SECOND, TVM = "first", "second", "untuned"
MODELS = "squeezenet,mobilenet_v2,resnet50,recognition,detection,bert_base"


def build_time(parser: argparse.ArgumentParser) -> None:
    """Time whole builds: Roller's first, its second with what that kept, and an untuned one, each in a fresh process.

        .venv/relax/bin/python -m roller_bench build-time --models squeezenet,recognition

    In turns. From the start of the process to a model that is ready to run, the import included; wall time, CPU time
    and peak resident memory. Other work on the machine changes the wall time most: CPU time stands beside it. Medians
    over the rounds; the same command goes on where it was stopped.
    """
    parser.add_argument("--models", default=MODELS,
                        help="names from 'roller-tvm compare --list', or files; default %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="builds of each kind; default 3")
    parser.add_argument("--folder", type=Path, default=NETWORKS,
                        help="folder of models and results; default %(default)s")
    add_out(parser)
    parser.set_defaults(run=_run)


def built(code: str, model: Any, cache: Path) -> dict[str, float]:
    """Build a model in a fresh process; return its wall and CPU seconds and its peak resident MiB."""
    shapes = json.dumps({name: list(array.shape) for name, array in model.inputs.items()})
    start = time.perf_counter()
    process = subprocess.Popen(
        python("-c", code, str(model.path), shapes),
        env=environment({"XDG_CACHE_HOME": str(cache), "PYTHONDONTWRITEBYTECODE": ""}),
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise MeasureError(f"the build ended with code {process.returncode}", model.title, "see its message above")
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss / 1024}


def rounds_of(model: Any, rounds: int, here: str) -> Iterator[dict[str, Any]]:
    """Yield the results of each round of builds."""
    for _ in range(rounds):
        with work_folder() as folder:
            cache = Path(folder, "roller_tvm")
            cache.mkdir(mode=0o700)
            for profile in cache_folder().glob("cpu-*.json"):  # the machine is known, its operators are not
                shutil.copy(profile, cache)
            first, untuned, second = (built(c, model, Path(folder)) for c in (OURS, UNTUNED[here], OURS))
        yield {FIRST: first, SECOND: second, TVM: untuned}


def words(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return a table of medians and of ratios, which are taken round by round."""
    keys, pairs = ("wall", "cpu", "memory"), ((FIRST, TVM), (SECOND, TVM))
    rows = [["model", *(f"{kind} {unit}" for kind in (FIRST, SECOND, TVM) for unit in ("s", "CPU s", "MiB")),
             *(f"{kind}/{other} {key}" for kind, other in pairs for key in keys)]]  # fmt: skip
    for name, rounds in results.items():
        row = [name]
        for kind in (FIRST, SECOND, TVM):
            row += [f"{statistics.median(r[kind][k] for r in rounds):.{0 if k == 'memory' else 1}f}" for k in keys]
        for kind, other in pairs:
            row += [f"{statistics.median(r[kind][k] / r[other][k] for r in rounds):.2f}" for k in keys]
        rows.append(row)
    return "\n".join(table(rows, left=1, indent=""))


def _run(args: argparse.Namespace) -> int:
    here, found = line() or "relax", find_tvm()
    args.folder.mkdir(parents=True, exist_ok=True)
    device, results = cpu_device(), {}
    for name in names(args.models):
        model = onnx_model(name, args.folder)
        kept = args.folder / f"{model.path.stem}.{here}.build-time.jsonl"
        known = read_lines(kept)
        results[name] = [*known, *append_lines(kept, rounds_of(model, args.rounds - len(known), here))]
        print(words({name: results[name]}), flush=True)
    head = f"{device}; TVM {found.version if found else '?'}; {args.rounds} rounds; python -m roller_bench build-time"
    tell(f"{head}\n{words(results)}", args.out)
    return 0
