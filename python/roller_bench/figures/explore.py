"""Exploring in runs of the model beside tuning operator by operator: seconds, and the latency that both end with."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from roller_bench.figures import NETWORKS, add_out, append_lines, names, read_lines, tell
from roller_bench.jobs import run_job
from roller_bench.latency import in_turns
from roller_bench.run import WHOLE_MODELS
from roller_bench.running import Runnable, keep_inputs
from roller_bench.timing import medians_of
from roller_bench.whole import MODELS, written
from roller_bench.zoo import onnx_model
from roller_tvm.device import cpu_device, default_cpu_target
from roller_tvm.explore.running import SPENT
from roller_tvm.models.line import model_line
from roller_tvm.planner.explain.words import table
from roller_tvm.stats import geomean
from roller_tvm.tvm_env.locate import usable_line

#: Rounds of the comparison with and without sites, in turns, and runs of a round.
ROUNDS, RUNS = 15, 5
#: Status of the command while pieces are left: that of a temporary failure (sysexits.h).
AGAIN = 75
#: Pieces of a model, in order.
PIECES = ("explore", "tune", "search", "time", "serve")
#: The search of each line's TVM, and the trials that TVM's tutorials tune a network with.
SEARCHES = {"relay": "ansor", "relax": "metaschedule"}
TRIALS = 200
#: Seconds in which a search starts and a model is built.
START_S = 600.0


def explore(parser: argparse.ArgumentParser) -> None:
    """Explore and tune models, let TVM's own search tune them, then time their runs in turns, a piece a call.

        until .venv/relay/bin/python -m roller_bench explore --models squeezenet --pieces 1; do :; done

    Exploring and tuning choose from the same plans and see the same inputs. A piece takes `--seconds` and what it takes
    to start; the next call goes on. Seconds of exploring are those of its phases, each counted once, and of the runs of
    all pieces. With `--search` Ansor (Relay line) or MetaSchedule (Relax line) searches with its defaults for so many
    seconds, or till its trials are done; a larger number goes on. Its row says what was built of the records so far:
    trials done, operators without a record. `reached` is the time after which exploring was as fast: 0 for the plans to
    start from. Latencies are medians of runs in turns, each model in processes of its own. `serving` is the median
    request while it explores, over a run of the model as built; `sites` is the same with variants that stay unused. The
    load of the machine stands beside them.
    """
    parser.add_argument("--models", default="direction,recognition,squeezenet,mobilenet_v2,detection",
                        help="names from 'roller-tvm compare --list', or files; default %(default)s")
    parser.add_argument("--plans", type=int, default=10, help="plans of an operator; default %(default)s")
    told = "of exploring or tuning in a piece, more than workers take to start; default %(default)s"
    parser.add_argument("--seconds", type=float, default=30, help=told)
    told = "let TVM's own search run so long; default not at all"
    parser.add_argument("--search", type=float, default=0, metavar="SECONDS", help=told)
    told = "trials of the search, in all; TVM recommends 20000 (Ansor) and 8000; default %(default)s, as its tutorials"
    parser.add_argument("--trials", type=int, default=TRIALS, help=told)
    parser.add_argument("--timing", type=float, default=6.0, help="seconds of timing a model; default %(default)s")
    parser.add_argument("--only", type=names, default=[], help=f"only these of {', '.join(PIECES)}, and no table")
    parser.add_argument("--pieces", type=int, default=0, help=f"stop after so many, with status {AGAIN}; default all")
    parser.add_argument("--folder", type=Path, default=NETWORKS,
                        help="folder of models and results; default %(default)s")
    add_out(parser)
    parser.set_defaults(run=_run)


class Comparison:
    """A model's comparison, done in pieces that are kept.

    Parameters
    ----------
    model : object
        Has a `path` and `inputs`.
    folder : Path
        For records, states, and the pieces.
    search_s, trials : float, int
        Of TVM's own search.
    timing_s : float
        Of timing.
    only : sequence of str
        Pieces to do; () for all.
    """

    def __init__(
        self, model: Any, folder: Path, plans: int, seconds: float, search_s: float = 0.0, trials: int = TRIALS,
        timing_s: float = 6.0, only: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.model, self.plans, self.seconds, self.folder = model, plans, seconds, folder
        self.search_s, self.trials, self.timing_s, self.only = search_s, trials, timing_s, only or PIECES
        folder.mkdir(parents=True, exist_ok=True)
        self.kept = folder / "pieces.jsonl"
        self.done = list(read_lines(self.kept))

    @property
    def next(self) -> str:
        """The piece to be done, or ''."""
        last = {row["piece"]: n for n, row in enumerate(self.done) if row["ended"]}
        found = self.done[last["search"]] if "search" in last else {}
        more = found.get("trials", 0) < self.trials and found.get("asked_s", 0.0) < self.search_s
        left = [name for name in PIECES if (more if name == "search" else name not in last)]
        stale = last.get("time", -1) < last.get("search", -1)
        return next((name for name in (*left, *(["time"] if stale else ())) if name in self.only), "")

    def step(self) -> None:
        """Do a piece and keep it."""
        name = self.next
        row = {"piece": name, "load": os.getloadavg()[0], **getattr(self, f"_{name}")()}
        list(append_lines(self.kept, [row]))
        self.done.append(row)

    def _compiled(self, records: str = "") -> Any:
        import roller_tvm

        shapes = {name: tuple(array.shape) for name, array in self.model.inputs.items()}
        place = self._place(records) if records else None
        taken = place if place is not None and place.exists() else None
        return roller_tvm.compile(str(self.model.path), shapes=shapes, records=taken)

    def _place(self, name: str) -> Path:
        return self.folder / f"{name}.json"  # a file or a folder, as the line has it

    def _explore(self) -> dict[str, Any]:
        result = self._compiled().explore(
            self.model.inputs, top=self.plans, budget=self.seconds, records=self._place("explored")
        )
        first = not any(row["piece"] == "explore" for row in self.done)
        own = ("explore", "record", "forms", "link")  # the rest was counted with the first piece
        seconds = {phase: s for phase, s in result.seconds.items() if first or phase in own}
        before = sum(s for phase, s in seconds.items() if phase not in own)
        ended = result.done and not any(SPENT in note for note in result.notes)
        walls, known = result.wall_s, result.history[len(result.history) - len(result.wall_s):]
        steps = [[before + spent, us] for spent, us in zip(accumulate(walls), known, strict=True)]
        curve = [step for n, step in enumerate(steps) if not n or step[1] != steps[n - 1][1]]
        return {"ended": ended, "seconds": sum(seconds.values()), "phases": seconds, "curve": curve,
                "runs": result.runs, "notes": list(result.notes), "left_out": len(result.failed)}  # fmt: skip

    def _tune(self) -> dict[str, Any]:
        model = self._compiled()
        tasks = len(model._session.tasks())
        began = time.perf_counter()
        result = model.tune(self.plans, self._place("tuned"), seconds=self.seconds)
        return {"ended": len(result.tasks) >= tasks, "seconds": time.perf_counter() - began}

    def _search(self) -> dict[str, Any]:
        """Let TVM's search go on until it has had its seconds; build the model with the records that it has then."""
        line = usable_line("comparing").value
        peer, threads = SEARCHES[line], cpu_device().units
        spent = sum(row["wall_s"] for row in self.done if row["piece"] == "search")
        place = self.folder / "search"
        (place / MODELS).mkdir(parents=True, exist_ok=True)
        case, file = written(self.model, self.model.path.stem, str(self.model.path), None, place / MODELS)
        arguments = {"task": str(file), "case": case.to_json(), "tuner": peer, "trials": self.trials,
                     "target": default_cpu_target(threads), "folder": str(place),
                     "edge": f"roller_bench.{line}"}  # fmt: skip
        began = time.perf_counter()
        run_job(WHOLE_MODELS, "tune", arguments, max(1.0, self.search_s - spent), threads, place / "log")
        wall_s = time.perf_counter() - began
        found = run_job(WHOLE_MODELS, "tune", {**arguments, "search": False}, START_S, threads, place / "log")
        if found.status != "ok":
            return {"ended": True, "asked_s": self.search_s, "wall_s": wall_s, "why": found.reason}
        told = {name: found.value.get(name, "") for name in ("trials", "seconds", "schedule", "reason", "status")}
        return {"ended": True, "peer": peer, "of": self.trials, "asked_s": self.search_s, "wall_s": wall_s, **told,
                "kernel": str(place / found.value["kernel"])}  # fmt: skip

    def _time(self) -> dict[str, Any]:
        """Time the models in turns, each in processes of its own."""
        inputs, threads = self.folder / "inputs.npz", cpu_device().units
        keep_inputs(self.model.inputs, inputs)
        files, built_s = {}, {}
        for name, records in (("start", ""), ("explored", "explored"), ("tuned", "tuned")):
            began = time.perf_counter()
            model = self._compiled(records)
            path = model.save(self.folder / f"{name}.{model_line(usable_line('comparing')).output}")
            built_s[name] = time.perf_counter() - began
            runnable = Runnable("roller_bench.running:open_built", str(path), str(inputs), model.threads or threads)
            files[name] = runnable.write(self.folder / f"{name}.runnable.json")
        if kernel := next((row.get("kernel") for row in reversed(self.done) if row["piece"] == "search"), None):
            files["search"] = Path(kernel)
        taken = in_turns(list(files.values()), self.timing_s)
        medians = {name: statistics.median(s for block in own for s in block)
                   for name, own in zip(files, taken, strict=True)}  # fmt: skip
        return {"ended": True, "build_s": built_s["start"], **medians}

    def _serve(self) -> dict[str, Any]:
        """Time the start without variants, the start's plans among variants, and requests that explore."""
        start, model = self._compiled(), self._compiled()
        serving = model.explore(online=True, top=self.plans, records=self.folder / "served.json")
        made, own = serving.exploration.running, start._loaded
        arguments = serving.exploration.arguments(self.model.inputs)
        given = own.arguments(self.model.inputs)
        taken: dict[str, list[float]] = {"plain": [], "serving": []}
        end = time.monotonic() + self.seconds
        while not made.done and time.monotonic() < end:
            taken["plain"].append(_seconds(lambda: own.call(*given)))
            taken["serving"].append(_seconds(lambda: made.run(*arguments)))
        explored = {name: statistics.median(s) for name, s in taken.items()}
        made.table.choose([0] * len(made.sites))
        ways = {"plain": lambda: own.call(*given), "sites": lambda: made.call(*arguments)}
        turns = medians_of({name: partial(_runs, way) for name, way in ways.items()}, ROUNDS)
        serving.stop()
        return {"ended": True, "serving": explored["serving"] / explored["plain"],
                "sites": turns["sites"] / turns["plain"]}  # fmt: skip

    def row(self) -> dict[str, Any]:
        """Return what the pieces have found together."""
        last = {row["piece"]: row for row in self.done}
        spent = {name: sum(r["seconds"] for r in self.done if r["piece"] == name) for name in ("explore", "tune")}
        return {**last["time"], **{k: last["serve"][k] for k in ("serving", "sites")}, "runs": last["explore"]["runs"],
                "explore_s": spent["explore"], "tune_s": spent["tune"], "found": last.get("search", {}),
                "reached": self._reached(last["time"]), "load": max(row["load"] for row in self.done)}  # fmt: skip

    def _reached(self, timed: Mapping[str, Any]) -> float:
        """Return the seconds of exploring until the model was as fast as the search's; nan if never, or unknown.

        What is known of the time between is the operators' time in the runs: the start's latency, less what they gain.
        """
        goal, explored = timed.get("search", math.nan), [row for row in self.done if row["piece"] == "explore"]
        if timed["start"] <= goal:
            return 0.0
        before, first = 0.0, next((step[1] for row in explored for step in row["curve"] if step[1]), math.nan)
        for row in explored:
            for seconds, operators in row["curve"]:
                if operators and timed["start"] - first + operators <= goal:
                    return before + float(seconds)
            before += row["seconds"]
        return before if timed["explored"] <= goal else math.nan


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _runs(call: Any) -> list[float]:
    return [_seconds(call) for _ in range(RUNS)]


def words(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables."""
    rows: list[list[str]] = [["model", "start ms", "explored ms", "tuned ms", "tuned/explored", "start/explored",
                              "explore s", "tune s", "explore/tune", "runs", "serving", "sites", "load"]]  # fmt: skip
    ratios = {name: [one["tuned"] / one["explored"], one["start"] / one["explored"], one["explore_s"] / one["tune_s"]]
              for name, one in found.items()}  # fmt: skip
    for name, one in found.items():
        tuned, start, spent = ratios[name]
        rows.append([name, *(f"{1e3 * one[k]:.3f}" for k in ("start", "explored", "tuned")), f"{tuned:.2f}",
                     f"{start:.2f}", f"{one['explore_s']:.0f}", f"{one['tune_s']:.0f}", f"{spent:.2f}",
                     str(one["runs"]), f"{one['serving']:.2f}", f"{one['sites']:.3f}", f"{one['load']:.1f}"])
    tuned, start, spent = (f"{geomean(column):.3f}" for column in zip(*ratios.values(), strict=True))
    rows.append(["geometric mean", *[""] * 3, tuned, start, "", "", spent, *[""] * 4])
    text = "\n".join(table(rows, left=1, indent=""))
    searched = {name: one for name, one in found.items() if one["found"].get("kernel")}
    if not searched:
        return text
    rows = [["model", "search", "trials", "search s", "search ms", "first plan ms", "built in s", "explored ms",
             "reached s", ""]]  # fmt: skip
    for name, one in searched.items():
        own, reached = one["found"], one["reached"]
        rows.append([name, own["peer"], f"{own['trials']}/{own['of']}", f"{own['seconds']:.0f}",
                     *(f"{1e3 * one[k]:.3f}" for k in ("search", "start")), f"{one['build_s']:.1f}",
                     f"{1e3 * one['explored']:.3f}", "never" if math.isnan(reached) else f"{reached:.1f}",
                     own["reason"]])  # fmt: skip
    return text + "\n\n" + "\n".join(table(rows, left=1, indent=""))


def _run(args: argparse.Namespace) -> int:
    left = args.pieces or -1
    found, place = {}, args.folder / f"explore-{usable_line('comparing').value}"
    for name in names(args.models):
        model = onnx_model(name, args.folder)
        one = Comparison(model, place / Path(name).stem, args.plans, args.seconds, args.search, args.trials,
                         args.timing, args.only)
        while one.next:
            if left == 0:
                return AGAIN
            one.step()
            left -= 1
            print(json.dumps({"model": name, **one.done[-1]}), flush=True)
        if not args.only:
            found[name] = one.row()
    if found:
        tell(words(found), args.out)
    return 0
