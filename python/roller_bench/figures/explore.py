"""Exploring in runs of the model beside tuning operator by operator: seconds, and the latency that both end with."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from roller_bench.figures import NETWORKS, add_out, append_lines, names, read_lines, tell
from roller_bench.timing import medians_of
from roller_bench.zoo import onnx_model
from roller_tvm.forms import SPENT
from roller_tvm.planner.explain.words import table

#: Rounds of the final comparison, in turns, and runs of a round.
ROUNDS, RUNS = 15, 5
#: Status of the command while pieces are left: that of a temporary failure (sysexits.h).
AGAIN = 75
#: Pieces of a model, in order.
PIECES = ("explore", "tune", "time", "serve")


def explore(parser: argparse.ArgumentParser) -> None:
    """Explore and tune models, then time their runs in turns, a piece a call.

        until .venv/relay/bin/python -m roller_bench explore --models squeezenet --pieces 1; do :; done

    Both choose from the same plans and see the same inputs. A piece takes `--seconds` and what it takes to start; the
    next call goes on. Seconds of exploring are those of its phases, each counted once, and of the runs of all pieces.
    Latencies are medians of runs in turns. `serving` is the median request while it explores, over a run of the model
    as built; `sites` is the same with variants that stay unused. The load of the machine stands beside them.
    """
    parser.add_argument("--models", default="direction,squeezenet,mobilenet_v2",
                        help="names from 'roller-tvm compare --list', or files; default %(default)s")
    parser.add_argument("--plans", type=int, default=10, help="plans of an operator; default %(default)s")
    told = "of exploring or tuning in a piece, more than workers take to start; default %(default)s"
    parser.add_argument("--seconds", type=float, default=30, help=told)
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
    """

    def __init__(self, model: Any, folder: Path, plans: int, seconds: float) -> None:
        self.model, self.plans, self.seconds, self.folder = model, plans, seconds, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.kept = folder / "pieces.jsonl"
        self.done = list(read_lines(self.kept))

    @property
    def next(self) -> str:
        """The piece to be done, or ''."""
        ended = {row["piece"] for row in self.done if row["ended"]}
        return next((name for name in PIECES if name not in ended), "")

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
        own = ("explore", "record", "forms", "link")  # what comes before was counted with the first piece
        seconds = sum(s for phase, s in result.seconds.items() if first or phase in own)
        ended = result.done and not any(SPENT in note for note in result.notes)
        return {"ended": ended, "seconds": seconds, "runs": result.runs, "notes": list(result.notes),
                "left_out": len(result.failed)}  # fmt: skip

    def _tune(self) -> dict[str, Any]:
        model = self._compiled()
        tasks = len(model._session.tasks())
        began = time.perf_counter()
        result = model.tune(self.plans, self._place("tuned"), seconds=self.seconds)
        return {"ended": len(result.tasks) >= tasks, "seconds": time.perf_counter() - began}

    def _time(self) -> dict[str, Any]:
        models = {"start": self._compiled(), "explored": self._compiled("explored"), "tuned": self._compiled("tuned")}
        return {"ended": True, **medians_of({k: _timer(m, self.model.inputs) for k, m in models.items()}, ROUNDS)}

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
                "explore_s": spent["explore"], "tune_s": spent["tune"],
                "load": max(row["load"] for row in self.done)}  # fmt: skip


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _runs(call: Any) -> list[float]:
    return [_seconds(call) for _ in range(RUNS)]


def _timer(model: Any, inputs: Any) -> Any:
    return lambda: model.times(inputs, RUNS, 1)


def words(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table."""
    rows: list[Sequence[str]] = [["model", "start ms", "explored ms", "tuned ms", "tuned/explored", "start/explored",
                                  "explore s", "tune s", "runs", "serving", "sites", "load"]]  # fmt: skip
    for name, one in found.items():
        rows.append([name, *(f"{1e3 * one[k]:.3f}" for k in ("start", "explored", "tuned")),
                     *(f"{one[k] / one['explored']:.2f}" for k in ("tuned", "start")), f"{one['explore_s']:.0f}",
                     f"{one['tune_s']:.0f}", str(one["runs"]), f"{one['serving']:.2f}", f"{one['sites']:.3f}",
                     f"{one['load']:.1f}"])  # fmt: skip
    return "\n".join(table([list(row) for row in rows], left=1, indent=""))


def _run(args: argparse.Namespace) -> int:
    from roller_tvm.tvm_env import line

    left = args.pieces or -1
    found = {}
    for name in names(args.models):
        model = onnx_model(name, args.folder)
        one = Comparison(model, args.folder / f"explore-{line()}" / Path(name).stem, args.plans, args.seconds)
        while one.next:
            if left == 0:
                return AGAIN
            one.step()
            left -= 1
            print(json.dumps({"model": name, **one.done[-1]}), flush=True)
        found[name] = one.row()
    tell(words(found), args.out)
    return 0
