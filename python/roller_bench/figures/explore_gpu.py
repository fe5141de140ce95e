"""Exploring on an NVIDIA GPU in two halves: folders made without a card, runs on a machine without a compiler."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import NETWORKS, add_out, names, tell
from roller_bench.timing import medians_of
from roller_tvm.errors import RollerError
from roller_tvm.planner.explain.words import table

#: Rounds of the final comparison, in turns, and runs of a round.
ROUNDS, RUNS = 15, 10
#: Largest error of an output, relative to the largest value of that output.
ALLOWED = 1e-3
#: Files beside the library: inputs, and what onnxruntime makes of them.
INPUTS, EXPECTED, RESULT = "inputs.npz", "expected.npz", "result.json"
#: File that makes a folder one of these (`relax.carried`), and seconds that the check of an operator may take.
TOLD, LIMIT_S = "explore.json", 30.0


def explore_gpu(parser: argparse.ArgumentParser) -> None:
    """Explore ONNX models on an NVIDIA GPU: `--prepare` here, the folder carried there, `--finish` here again.

        .venv/relax/bin/python -m roller_bench explore-gpu build/explore-gpu --prepare --models squeezenet,direction
        python3 -m roller_bench explore-gpu build/explore-gpu --budget 30      # there: TVM's runtime, numpy, the card
        .venv/relax/bin/python -m roller_bench explore-gpu build/explore-gpu --finish

    Preparing plans each model, compiles all plans of its operators, and computes the answers of each operator (TVM's
    plain loops) and of the model (onnxruntime). There each kernel is compared with them before it may run in the
    model. Latencies are medians of runs in turns: one call and the wait for its end. `events` is the same plan with and
    without the events by which kernels are timed; `graph` has the kernels captured in CUDA graphs. Finishing writes the
    winners' records into the folder and builds the model with them.
    """
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prepare", action="store_true", help="make the folders of the models")
    parser.add_argument("--finish", action="store_true", help="write records, build the models with them")
    parser.add_argument("--models", default="direction,squeezenet", help="models to prepare; default %(default)s")
    parser.add_argument("--target", default="cuda -arch=sm_90", help="target to prepare for; default %(default)s")
    parser.add_argument("--plans", type=int, default=5, help="plans of an operator; default %(default)s")
    parser.add_argument("--networks", type=Path, default=NETWORKS, help="folder of models; default %(default)s")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of runs a model; default %(default)s")
    add_out(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.prepare:
        for name in names(args.models):
            prepare(name, args.folder, args.target, args.plans, args.networks)
        return 0
    rows, wrong = {}, 0
    places = [args.folder] if (args.folder / TOLD).exists() else [p.parent for p in args.folder.glob(f"*/{TOLD}")]
    for folder in sorted(places):
        try:
            if args.finish:
                print(finish(folder, args.target), flush=True)
                continue
            rows[folder.name] = on_card(folder, args.budget)
        except RollerError as error:  # the other models are explored all the same
            print(f"{folder.name}: {error}", file=sys.stderr, flush=True)
            wrong = error.exit_code
    if rows:
        tell(words(rows), args.out)
    return wrong


# -- here --------------------------------------------------------------------------------------------------------------


def _session(path: Path, inputs: Mapping[str, Any], target: str, records: Path | None = None) -> Any:
    from roller_tvm.models.line import Request, model_line
    from roller_tvm.session import Session
    from roller_tvm.tvm_env.locate import usable_line

    shapes = {name: tuple(array.shape) for name, array in inputs.items()}
    request = Request(target, shapes, records=records)
    return Session(model_line(usable_line("exploring a model")), request).read(str(path))


def prepare(name: str, folder: Path, target: str, plans: int, networks: Path) -> None:
    """Make the folder of a model."""
    import shutil

    import onnxruntime

    from roller_bench.zoo import onnx_model
    from roller_tvm.relax.carrying import carry

    model = onnx_model(name, networks)
    own, began = folder / Path(name).stem, time.perf_counter()

    def told(step: str) -> None:
        print(f"{name}: {step}, after {time.perf_counter() - began:.0f} s", flush=True)

    own.mkdir(parents=True, exist_ok=True)
    made = onnxruntime.InferenceSession(str(model.path), providers=["CPUExecutionProvider"]).run(None, model.inputs)
    np.savez_compressed(own / INPUTS, **model.inputs)
    np.savez_compressed(own / EXPECTED, **{str(n): value for n, value in enumerate(made)})
    shutil.copyfile(model.path, own / "model.onnx")
    carried, _ = carry(_session(model.path, model.inputs, target).job, own, top=plans, threads=2, tell=told)
    kernels = sum(len(site.variants) for site in carried.sites)
    told(f"{len(carried.sites)} sites with {kernels} plans, {len(carried.failed)} left out")


def finish(folder: Path, target: str, plans: int = 5) -> str:
    """Write the records of what was learnt on the card, and build the model with them; return a line about it."""
    from roller_tvm.explore import Explorer
    from roller_tvm.explore.running import PLAN, tree_of
    from roller_tvm.relax.carried import STATE, Carried
    from roller_tvm.relax.explored_plans import plan
    from roller_tvm.relax.line import LINE
    from roller_tvm.tuning.explorable import Explorable

    carried, inputs = Carried.load(folder), dict(np.load(folder / INPUTS))
    session = _session(folder / "model.onnx", inputs, target)
    planned = plan(session.job, None, plans, lambda name: 1.0, 0.0)
    result = json.loads((folder / RESULT).read_text())
    failed = {(key, label): why for key, label, why in result["failed"]}
    out = {key: [((PLAN, label),) for own, label in failed if own == key] for key, _ in failed}
    state = json.loads((folder / STATE).read_text())
    explorer = Explorer(tree_of(carried.sites, carried.classes), None, out, state)
    nothing: Any = None
    made = Explorable(nothing, nothing, planned.keys, planned.known, failed, LINE, session.aim.target)
    written, notes = made.write(explorer, folder / "records", result["explore_s"])
    built = _session(folder / "model.onnx", inputs, target, folder / "records").built()
    where = session.line.save(built, folder / "final.so")
    return f"{folder.name}: {written} records, {where}" + "".join(f"\n  {note}" for note in notes)


# -- on the machine with the card --------------------------------------------------------------------------------------


def on_card(folder: Path, budget_s: float) -> dict[str, Any]:
    """Check, explore and time a model; return what was found, which is in the folder too."""
    from roller_tvm.relax.carried import Carried, captured_run

    carried, began = Carried.load(folder), time.perf_counter()
    inputs, expected = dict(np.load(folder / INPUTS)), list(np.load(folder / EXPECTED).values())
    loaded = carried.opened(folder)
    failed = carried.checked(folder, limit_s=LIMIT_S)
    found: dict[str, Any] = {"check_s": time.perf_counter() - began, "failed": [[*k, w] for k, w in failed.items()]}
    running: Any = carried.exploration(folder, loaded, failed)
    timed, given = running.table, loaded.arguments(inputs)
    running.warm_up(*given)
    found["errors"] = {"start": _error(loaded.outputs(running.call(*given)), expected)}
    at = time.perf_counter()

    def told(_: Any) -> None:
        print(f"{folder.name}: {running.explorer.runs} runs, {running.explorer.seconds() * 1e6:.1f} us in kernels, "
              f"{sum(not row.done for row in running.explorer.rows())} operators left", flush=True)  # fmt: skip

    running.explore(given, budget_s, progress=told)
    explorer = running.explorer
    found |= {"explore_s": time.perf_counter() - at, "runs": explorer.runs, "ended": explorer.done,
              "hold_us": timed.hold_s * 1e6, "kernels_start_us": explorer.seconds(start=True) * 1e6,
              "kernels_us": explorer.seconds() * 1e6,
              "changed": sum(row.best_s < row.start_s and row.options > 1 for row in explorer.rows())}  # fmt: skip
    start, best = [0] * len(running.sites), list(timed.chosen)
    ways = {
        "start": _way(running, start, given, events=False), "explored": _way(running, best, given, events=False),
        "events": _way(running, best, given, events=True),
    }  # fmt: skip
    found["errors"]["explored"] = _error(loaded.outputs(ways["explored"]()), expected)
    for name, chosen in (("start graph", start), ("explored graph", best)):
        try:  # a card or a driver that captures nothing loses nothing else
            ways[name] = _way(running, chosen, given, False, captured_run(loaded, timed))
            found["errors"][name] = _error(loaded.outputs(ways[name]()), expected)
        except Exception as error:  # whatever TVM raises
            ways.pop(name, None)
            found["errors"][name] = str(error).strip().splitlines()[-1][:200]
    found["us"] = {name: s * 1e6 for name, s in in_turns(ways).items()}
    rows = [[carried.names[r.name], r.share, r.start_s * 1e6, r.best_s * 1e6, r.tried] for r in explorer.rows()]
    found["rows"] = rows
    (folder / RESULT).write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(json.dumps({k: v for k, v in found.items() if k not in ("rows", "failed")}), flush=True)
    return found


@dataclass(frozen=True)
class Way:
    """A way to run the model.

    Parameters
    ----------
    prepare : function
        Chooses the plans; it is no part of the time.
    run : function
        Runs it to the end.
    """

    prepare: Callable[[], Any]
    run: Callable[[], Any]

    def __call__(self) -> Any:
        """Prepare and run; return the result."""
        self.prepare()
        return self.run()


def _way(
    running: Any, chosen: list[int], given: list[Any], events: bool, call: Callable[..., Any] | None = None
) -> Way:
    run = call or running.call

    def prepare() -> None:
        running.table.choose(chosen)
        running.table.timing(events)

    return Way(prepare, lambda: run(*given))


def in_turns(ways: Mapping[str, Way], rounds: int = ROUNDS, runs: int = RUNS) -> dict[str, float]:
    """Return the median seconds of a call of each way."""

    def seconds(way: Way) -> Iterator[float]:
        way()  # what the way before left in caches
        for _ in range(runs):
            began = time.perf_counter()
            way.run()
            yield time.perf_counter() - began

    return medians_of({name: partial(seconds, way) for name, way in ways.items()}, rounds)


def _error(outputs: list[Any], expected: list[Any]) -> float:
    """Return the largest error relative to the largest value of its output."""
    errors = [float(np.abs(np.asarray(got, np.float64) - right).max() / max(1e-30, float(np.abs(right).max())))
              for got, right in zip(outputs, expected, strict=True)]  # fmt: skip
    return max(errors)


def words(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table."""
    rows = [["model", "kernels us", "explored", "gain", "run us", "explored", "gain", "graph us", "explored", "events",
             "left out", "changed", "runs", "explore s", "check s", "error"]]  # fmt: skip
    for name, one in found.items():
        us, nothing = one["us"], float("nan")
        worst = max(e if isinstance(e, float) else float("inf") for e in one["errors"].values())
        rows.append([
            name, f"{one['kernels_start_us']:.1f}", f"{one['kernels_us']:.1f}",
            f"{one['kernels_start_us'] / max(one['kernels_us'], 1e-9):.3f}", f"{us['start']:.1f}",
            f"{us['explored']:.1f}", f"{us['start'] / us['explored']:.3f}", f"{us.get('start graph', nothing):.1f}",
            f"{us.get('explored graph', nothing):.1f}", f"{us['events'] / us['explored']:.3f}",
            str(len(one["failed"])), str(one["changed"]), f"{one['runs']}{'' if one['ended'] else ' (not ended)'}",
            f"{one['explore_s']:.1f}", f"{one['check_s']:.1f}", f"{worst:.1e}" + (" WRONG" if worst > ALLOWED else ""),
        ])  # fmt: skip
    return "\n".join(table(rows, left=1, indent=""))
