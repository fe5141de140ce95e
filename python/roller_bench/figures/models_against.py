"""Whole models as this checkout builds them beside those of another commit."""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from roller_bench.figures import NETWORKS, ROOT, add_out, names, tell
from roller_bench.figures.plan_against import process_in, tree_of
from roller_bench.running import keep_inputs, read_inputs, relative_error
from roller_bench.zoo import Prepared, onnx_model
from roller_tvm.device import cpu_device
from roller_tvm.errors import MeasureError
from roller_tvm.folders import work_folder
from roller_tvm.stats import geomean

#: Builds a model, runs it for some seconds, a line each; the first call of both keeps the outputs.
RUNNER = """
import numpy as np
import tvm
from roller_tvm.relax import build, load_model
from roller_tvm.relax.targets import local_target
for line in sys.stdin:
    path, inputs, outputs, seconds = json.loads(line)
    if path:
        given = np.load(inputs)
        arrays = {str(name): given[f"arr_{n}"] for n, name in enumerate(given["names"])}
        model = load_model(path, {name: list(a.shape) for name, a in arrays.items()})
        vm = tvm.relax.VirtualMachine(build(model.mod, local_target()), tvm.cpu())
        arguments = [tvm.runtime.tensor(arrays[name]) for name in model.inputs]
        vm["main"](*arguments)
        found = vm["main"](*arguments)
        found = [found] if hasattr(found, "numpy") else list(found)
        np.savez(outputs, *[one.numpy() for one in found])
        print("null", flush=True)
        continue
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        vm["main"](*arguments)
        times.append(time.perf_counter() - start)
    print(json.dumps(sorted(times)[len(times) // 2]), flush=True)
"""
#: Most difference of two builds' outputs, of the largest output.
CLOSE = 1e-4


def models_against(parser: argparse.ArgumentParser) -> None:
    """Run models as this checkout builds them and as another commit does, in turns: do its plans run faster?

        .venv/relax/bin/python -m roller_bench models-against c825e0f --models resnet50,detection

    Relax line, nothing measured before. One process a tree and model; medians of all turns; outputs are compared.
    """
    parser.add_argument("commit", help="commit of this repository")
    parser.add_argument("--models", type=names, default=names("detection,recognition,direction"),
                        help="names from 'roller-tvm compare --list', or ONNX files; default %(default)s")
    parser.add_argument("--folder", type=Path, default=NETWORKS, help="folder of models; default %(default)s")
    parser.add_argument("--turns", type=int, default=7, help="turns of each build; default 7")
    parser.add_argument("--time", type=float, default=0.5, help="seconds of a turn; default 0.5")
    add_out(parser)
    parser.set_defaults(run=_run)


def both_times(tree: Path, model: Prepared, turns: int, seconds: float) -> tuple[float, float]:
    """Return the seconds of a run of a model as the other tree builds it, and as this checkout does."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(work_folder()))
        keep_inputs(model.inputs, given := folder / "inputs.npz")
        kept = [folder / f"outputs{n}.npz" for n in range(2)]
        both = [stack.enter_context(process_in(path, RUNNER)) for path in (tree, ROOT)]
        for ask, outputs in zip(both, kept, strict=True):
            ask(str(Path(model.path).resolve()), str(given), str(outputs), 0)
        _compare(model.title, *kept)
        times = [[ask("", "", "", seconds) for ask in both] for _ in range(turns)]
    then, now = (statistics.median(side) for side in zip(*times, strict=True))
    return then, now


def _compare(title: str, then: Path, now: Path) -> None:
    expected, found = (list(read_inputs(path).values()) for path in (then, now))
    if (error := relative_error(found, expected)) > CLOSE:
        raise MeasureError(f"outputs differ by {error:.2g} of the largest", title, "look for the wrong one")


def _run(args: argparse.Namespace) -> int:
    ratios: list[float] = []
    lines: list[str] = []
    with tree_of(args.commit) as tree:
        for name in args.models:
            model: Any = onnx_model(name, args.folder)
            then, now = both_times(tree, model, args.turns, args.time)
            ratios.append(ratio := then / now)
            lines.append(f"{model.title}: {then * 1e3:.2f} ms then, {now * 1e3:.2f} now: {ratio:.2f} times as fast")
            print(lines[-1], flush=True)
    lines.append(f"geometric mean {geomean(ratios):.2f}, least {min(ratios):.2f}")
    tell("\n".join([f"{cpu_device()}; python -m roller_bench models-against {args.commit}", *lines]), args.out)
    return 0
