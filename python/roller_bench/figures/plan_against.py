"""Planning time of this checkout beside that of another commit."""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from roller_bench.figures import OPERATORS, ROOT, names
from roller_tvm.children import python
from roller_tvm.errors import BadInput

#: Plans what it is asked for, a line each, in the tree on its path: today's folders, or those of earlier commits.
PLANNER = """
import json, sys, time
# An editable installation would lend this checkout's folders to the other tree.
sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
from roller_tvm.device import device_for_target, load_device
try:
    from roller_tvm.ir.operators import operator, parse_params
    from roller_tvm.planner import construct
except ImportError:
    from roller_tvm.expr.operators import operator, parse_params
    from roller_tvm.plan import construct
for line in sys.stdin:
    name, params, device, top = json.loads(line)
    device = device_for_target(device) if " " in device else load_device(device)
    expression = operator(name, **parse_params(params))
    start = time.process_time()
    found = construct(expression, device, top)
    seconds = time.process_time() - start
    best = str(found.best.plan.programs[0].recipe), found.best.seconds
    print(json.dumps([seconds, len(found.plans), *best]), flush=True)
"""


def plan_against(parser: argparse.ArgumentParser) -> None:
    """Time the planning of every operator of a CSV file in this checkout and at another commit, in turns.

        .venv/relay/bin/python -m roller_bench plan-against c825e0f
        ... plan-against c825e0f --devices "llvm -mcpu=haswell -num-cores=2,v100" --each 6

    CPU time of one process a tree; of several repeats the least counts. Prints median and maximum of both, the ratio of
    the totals and the geometric mean of the ratios, and each operator whose best plan is predicted otherwise.
    Exit code 1 if a best plan is predicted slower than before.
    """
    parser.add_argument("commit", help="commit of this repository")
    parser.add_argument("operators", type=Path, nargs="?", default=OPERATORS, help="CSV file; default the paper's")
    parser.add_argument("--devices", default="v100,h200,llvm -mcpu=haswell -num-cores=2",
                        help="names of devices or targets, with commas; default %(default)s")
    parser.add_argument("--top", type=int, default=10, help="plans per operator; default 10")
    parser.add_argument("--repeat", type=int, default=2, help="times to plan each operator; default 2")
    parser.add_argument("--each", type=int, default=1, metavar="N", help="take every Nth operator; default all")
    parser.set_defaults(run=_run)


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
def planner_in(tree: Path) -> Iterator[Any]:
    """Give a function that plans in a process of a tree: seconds, plans, recipe and predicted seconds of the best."""
    words = python("-c", PLANNER)
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree, env={"PYTHONPATH": str(tree)}
    ) as process:
        assert process.stdin and process.stdout
        asks, answers = process.stdin, process.stdout

        def plan(*question: Any) -> Any:
            print(json.dumps(question), file=asks, flush=True)
            if not (line := answers.readline()):
                raise BadInput("its planner ended", f"{tree}: {question[0]}", "see its message above")
            return json.loads(line)

        yield plan
        asks.close()


def _run(args: argparse.Namespace) -> int:
    rows = list(csv.DictReader(args.operators.open()))[:: args.each]
    slower = 0
    with ExitStack() as stack:
        tree = stack.enter_context(tree_of(args.commit))
        then, now = (stack.enter_context(planner_in(path)) for path in (tree, ROOT))
        for device in names(args.devices):
            times: list[tuple[float, float]] = []
            for row in rows:
                question = row["operator"], row["params"], device, args.top
                pairs = [(then(*question), now(*question)) for _ in range(args.repeat)]
                times.append((min(old[0] for old, _ in pairs), min(new[0] for _, new in pairs)))
                old, new = pairs[0]
                if not math.isclose(old[3], new[3], rel_tol=1e-9):
                    slower += new[3] > old[3]
                    told = " now ".join(f"{recipe} {seconds * 1e6:.2f} us" for _, _, recipe, seconds in (old, new))
                    print(f"  {row['id']}: predicted {told}")
            before, after = ([t * 1e3 for t in side] for side in zip(*times, strict=True))
            mean = math.exp(statistics.mean(math.log(a / b) for a, b in times))
            median, most = (tuple(f"{of(side):.1f}" for side in (before, after)) for of in (statistics.median, max))
            print(f"{device}: {len(times)} operators, top-{args.top}, CPU time: median {' to '.join(median)} ms, most "
                  f"{' to '.join(most)} ms; total {sum(before) / sum(after):.1f} times less, geometric mean {mean:.1f}",
                  flush=True)  # fmt: skip
    return 1 if slower else 0
