"""Planning time of this checkout beside that of another commit."""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from roller_bench.figures import NETWORKS, OPERATORS, ROOT, names
from roller_bench.zoo import Prepared, onnx_model
from roller_tvm.children import python
from roller_tvm.errors import BadInput
from roller_tvm.stats import geomean

#: Begins a process of another tree, to which an editable installation would lend this checkout's folders.
WITHOUT_THIS_CHECKOUT = """
import json, sys, time
sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
"""
#: Plans what it is asked for, a line each: in today's folders, or those of earlier commits.
PLANNER = """
from roller_tvm.device import device_for_target, load_device
try:
    from roller_tvm.ir.operators import operator, parse_params
    from roller_tvm.planner import construct
except ImportError:
    from roller_tvm.expr.operators import operator, parse_params
    from roller_tvm.plan import construct

def expression_of(operator_name=None, params="", function="", constants=()):
    if operator_name:
        return operator(operator_name, **parse_params(params))
    import tvm
    from roller_tvm.tir.read import read_prim_func
    return read_prim_func(tvm.ir.load_json(function), constants=constants).expression

for line in sys.stdin:
    asked, device, top = json.loads(line)
    device = device_for_target(device) if " " in device else load_device(device)
    try:
        expression = expression_of(**asked)
        start = time.process_time()
        found = construct(expression, device, top)
        seconds = time.process_time() - start
        print(json.dumps([seconds, [(str(ranked.plan), ranked.seconds) for ranked in found.plans]]), flush=True)
    except Exception as error:  # whatever a planner of another commit raises
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
"""


def plan_against(parser: argparse.ArgumentParser) -> None:
    """Time the planning of operators in this checkout and at another commit, in turns.

        .venv/relay/bin/python -m roller_bench plan-against c825e0f
        ... plan-against c825e0f --devices "llvm -mcpu=haswell -num-cores=2,v100" --each 6
        .venv/relax/bin/python -m roller_bench plan-against c825e0f --models detection,resnet18.onnx

    A model's operators are its distinct functions as TVM's pipeline "zero" fuses them, with its weights as constants.
    CPU time of one process a tree; of several repeats the least counts. Prints median and maximum of both, the ratio of
    the totals, the geometric mean of the ratios, and each operator with another best plan: the predictions of this
    checkout's model for it and for the former one, if that is among its plans. Exit code 1 if an operator is planned no
    more.
    """
    parser.add_argument("commit", help="commit of this repository")
    parser.add_argument("operators", type=Path, nargs="?", default=OPERATORS, help="CSV file; default the paper's")
    parser.add_argument(
        "--models",
        type=names,
        help="operators of these models in place of a file's: names from "
        "'roller-tvm compare --list', or ONNX files (Relax line)",
    )
    parser.add_argument("--folder", type=Path, default=NETWORKS, help="folder of models; default %(default)s")
    parser.add_argument(
        "--devices",
        default="v100,h200,llvm -mcpu=haswell -num-cores=2",
        help="names of devices or targets, with commas; default %(default)s",
    )
    parser.add_argument("--top", type=int, default=10, help="plans per operator; default 10")
    parser.add_argument("--repeat", type=int, default=2, help="times to plan each operator; default 2")
    parser.add_argument("--each", type=int, default=1, metavar="N", help="take every Nth operator; default all")
    parser.set_defaults(run=_run)


def rows_of(file: Path) -> dict[str, dict[str, Any]]:
    """Return the operators of a CSV file as the planners are asked for them, by their names."""
    return {r["id"]: {"operator_name": r["operator"], "params": r["params"]} for r in csv.DictReader(file.open())}


def functions_of(models: Sequence[Prepared]) -> dict[str, dict[str, Any]]:
    """Return the distinct functions of models as the planners are asked for them, by their names."""
    import tvm
    from tvm.relax import get_pipeline, transform

    from roller_tvm.relax.importers import load_model
    from roller_tvm.relax.tasks import extract_tasks

    passes = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings(), get_pipeline("zero")]
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for model in models:
        shapes = {name: array.shape for name, array in model.inputs.items()}
        with tvm.target.Target("llvm"):
            mod = tvm.transform.Sequential(passes)(load_model(model.path, shapes).mod)
        for task in extract_tasks(mod):
            asked = {"function": tvm.ir.save_json(task.func), "constants": list(task.constants)}
            found.setdefault(task.key, (f"{model.title}: {task.name}", asked))
    return dict(found.values())


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Give a folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(["git", "archive", commit, "roller_tvm"], cwd=ROOT, capture_output=True)
        if packed.returncode:
            raise BadInput(packed.stderr.decode().strip(), commit, "name a commit of this repository")
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        yield Path(folder)


@contextmanager
def process_in(tree: Path, code: str) -> Iterator[Any]:
    """Give a function that asks a process of a tree: a line of JSON for a line of JSON."""
    words, env = python("-c", WITHOUT_THIS_CHECKOUT + code), {**os.environ, "PYTHONPATH": str(tree)}
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree, env=env
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout
        asks, answers = process.stdin, process.stdout

        def ask(*question: Any) -> Any:
            print(json.dumps(question), file=asks, flush=True)
            if not (line := answers.readline()):
                raise BadInput("its process ended", f"{tree}: {str(question)[:200]}", "see its message above")
            return json.loads(line)

        yield ask
        asks.close()


def _run(args: argparse.Namespace) -> int:
    if args.models:
        operators = functions_of([onnx_model(name, args.folder) for name in args.models])
    else:
        operators = rows_of(args.operators)
    operators = dict([*operators.items()][:: args.each])
    lost = 0
    with ExitStack() as stack:
        tree = stack.enter_context(tree_of(args.commit))
        then, now = (stack.enter_context(process_in(path, PLANNER)) for path in (tree, ROOT))
        for device in names(args.devices):
            times: list[tuple[float, float]] = []
            changed = 0
            for name, asked in operators.items():
                pairs = [(then(asked, device, args.top), now(asked, device, args.top)) for _ in range(args.repeat)]
                old, new = pairs[0]
                if isinstance(old, str) or isinstance(new, str):
                    lost += isinstance(new, str) and not isinstance(old, str)
                    print(f"  {name}: then {_said(old)}; now {_said(new)}")
                    continue
                times.append((min(old[0] for old, _ in pairs), min(new[0] for _, new in pairs)))
                if told := _change(old[1], new[1]):
                    changed += 1
                    print(f"  {name}: {told}")
            print(f"{device}: top-{args.top}, {_summary(times)}; {changed} best plans changed", flush=True)
    return 1 if lost else 0


def _said(answer: Any) -> str:
    return answer if isinstance(answer, str) else f"{len(answer[1])} plans"


def _change(old: Sequence[Any], new: Sequence[Any]) -> str:
    """Return how the best plan changed, by the predictions of `new`; nothing where it did not."""
    (former, _), (latter, seconds) = old[0], new[0]
    if former == latter:
        return ""
    known = dict(new).get(former)
    told = f"{known * 1e6:.2f} us" if known else "not among today's plans"
    return f"{_line(former)} ({told}) now {_line(latter)} ({seconds * 1e6:.2f} us)"


def _line(plan: str) -> str:
    return " ".join(plan.split()[3:])  # without the operator's and the device's names


def _summary(times: Sequence[tuple[float, float]]) -> str:
    if not times:
        return "no operator that both plan"
    before, after = ([t * 1e3 for t in side] for side in zip(*times, strict=True))
    mean = geomean(a / b for a, b in times)
    median, most = (tuple(f"{of(side):.1f}" for side in (before, after)) for of in (statistics.median, max))
    return (
        f"{len(times)} operators, CPU time: median {' to '.join(median)} ms, most {' to '.join(most)} ms; "
        f"total {sum(before) / sum(after):.1f} times less, geometric mean {mean:.1f}"
    )
