#!/usr/bin/env python3
"""Demonstration: two real models compiled, checked, tuned and timed beside onnxruntime, in a few minutes.

python python/demo.py                     # what `make demo` runs
python python/demo.py --seconds 60        # a shorter budget: fewer operators are tuned

The models are PP-OCR's text direction classifier, with its real weights, and MobileNet v2, with seeded random
ones. Every output is compared with onnxruntime's on the same input; all run on the same number of threads, in turns, in
processes of their own. A slow machine tunes fewer operators instead of taking longer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: E402
from rich.table import Table  # noqa: E402

import roller_tvm  # noqa: E402
from roller_bench.latency import medians_in_turns  # noqa: E402
from roller_bench.peers_graph import open_onnxruntime  # noqa: E402
from roller_bench.running import TOLERANCE, Runnable, keep_inputs, relative_error  # noqa: E402
from roller_bench.zoo import Prepared, find_model  # noqa: E402
from roller_tvm.errors import RollerError, WrongAnswer  # noqa: E402
from roller_tvm.svg import COLOURS, Drawing  # noqa: E402
from roller_tvm.tuning.results import busy  # noqa: E402

MODELS = ("direction", "mobilenet_v2")
#: Seconds of all phases by default; on the slowest machine tried, set-up leaves about as many of five minutes.
BUDGET_S = 180
#: Plans measured of each tuned operator, seconds of timing each model, and the least time worth tuning.
TRIALS, TIMING_S, WORTH_S = 4, 6.0, 5.0
#: Kernels shown of each model.
SHOWN = 5
console = Console(stderr=True)


@dataclass
class Clock:
    """The budget of the demonstration.

    Parameters
    ----------
    seconds : float
        Budget of all phases.
    now : function
        Clock in seconds.
    """

    seconds: float
    now: Callable[[], float] = time.perf_counter
    begun: float = field(init=False)

    def __post_init__(self) -> None:
        self.begun = self.now()

    def left(self) -> float:
        """Return the seconds left."""
        return self.seconds - (self.now() - self.begun)

    def for_tuning(self, build_s: float, models_left: int) -> float:
        """Return the seconds for tuning one model, so that it can be built again and the others get their share.

        Parameters
        ----------
        build_s : float
            Seconds that building the model took; the next models may take as long.
        models_left : int
            Models after this one.
        """
        others = models_left * (build_s + TIMING_S)
        return (self.left() - others) / (models_left + 1) - build_s - TIMING_S


@dataclass
class Row:
    """One model's figures: seconds of preparation, seconds a run by implementation, largest relative error."""

    model: Prepared
    build_s: float
    tune_s: float
    tuned: str
    latency: dict[str, float]
    error: float


class Phases:
    """The bars of one model's phases, one after the other."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._bar = Progress(disable=True)

    @contextmanager
    def phase(self, told: str) -> Iterator[None]:
        """Show a bar until the phase ends; its time stays on the screen."""
        described, step = TextColumn("{task.description:<44}"), TextColumn("{task.fields[step]}")
        with Progress(SpinnerColumn(), described, TimeElapsedColumn(), BarColumn(12), step, console=console) as bar:
            self._bar = bar
            task = bar.add_task(f"{self.title}: {told}", total=None, step="")
            yield
            bar.update(task, total=1, completed=1, step="")

    def step(self, name: str) -> None:
        """Show the step or function at work."""
        self._show(step=name)

    def tuned(self, task: object, count: int) -> None:
        """Move the bar on by one of `count` operators."""
        self._show(total=count, advance=1)

    def _show(self, **fields: Any) -> None:
        for task in self._bar.task_ids:
            self._bar.update(task, **fields)


def run(name: str, folder: Path, clock: Clock, models_left: int) -> Row:
    """Compile, check, tune and time one model."""
    prepared = find_model(name, folder)
    begun, bars = time.perf_counter(), Phases(prepared.title)
    with bars.phase("plan and build"):
        model = roller_tvm.compile(prepared.path, shapes=prepared.shapes, progress=bars.step)
    build_s = time.perf_counter() - begun
    expected = open_onnxruntime(prepared.path, prepared.inputs, model.threads or 1).outputs()
    error = checked(model, prepared, expected)
    planned = model.save(folder / f"{prepared.path.stem}.planned.so")
    seconds, tune_s, told = clock.for_tuning(build_s, models_left), 0.0, "no time left to tune"
    libraries = [planned]
    if seconds >= WORTH_S:
        begun = time.perf_counter()
        records = folder / f"{prepared.path.stem}.records"
        with bars.phase("tune, build again"):
            result = model.tune(TRIALS, records, seconds=seconds, progress=bars.tuned)
        tune_s = time.perf_counter() - begun
        told = f"{sum(t.status in ('measured', 'resumed') for t in result.tasks)} of {operators(model)} operators tuned"
        error = max(error, checked(model, prepared, expected))
        libraries.append(model.save(folder / f"{prepared.path.stem}.tuned.so"))
    inputs = folder / f"{prepared.path.stem}.inputs.npz"
    keep_inputs(prepared.inputs, inputs)
    with bars.phase("run in turns"):
        openers = {f"onnxruntime {version('onnxruntime')}": ("peers_graph:open_onnxruntime", prepared.path)}
        openers |= {name: ("running:open_built", library) for name, library in zip(
            ("Roller, as planned", "Roller, tuned"), libraries, strict=False)}  # fmt: skip
        times, _ = medians_in_turns({
            name: Runnable(f"roller_bench.{opener}", str(file), str(inputs), model.threads or 1)
            for name, (opener, file) in openers.items()
        }, TIMING_S)  # fmt: skip
    model.profile(prepared.inputs)
    console.print(f"[dim]{kernels(model)}[/dim]\n", highlight=False, soft_wrap=True)
    return Row(prepared, build_s, tune_s, told, times, error)


def checked(model: roller_tvm.Model, prepared: Prepared, expected: Sequence[object]) -> float:
    """Return the largest error relative to onnxruntime's output; raise ``WrongAnswer`` if it is too large."""
    error = relative_error(model.run(prepared.inputs), expected)
    if not error <= TOLERANCE:
        raise WrongAnswer(f"differs from onnxruntime by {error:.3g} (allowed {TOLERANCE:g})", prepared.title)
    return float(error)


def operators(model: roller_tvm.Model) -> int:
    """Return the number of kernels of a model."""
    return len(model.report().plans)


def kernels(model: roller_tvm.Model) -> str:
    """Return the rows of a report for the kernels that take longest."""
    lines = str(model.report()).splitlines()
    return "\n".join(line[:120] for line in lines[: SHOWN + 2])


def table(rows: Sequence[Row], threads: int) -> Table:
    """Return the figures as a table."""
    made = Table(title=f"Latency in ms, median of runs in turns, threads: {threads}; ratios above 1 are faster")
    for head in ("model", "onnxruntime", "as planned", "tuned", "built in", "tuned in", "largest error"):
        made.add_column(head, justify="left" if head == "model" else "right")
    for row in rows:
        ort, *ours = row.latency.values()
        cells = [f"{seconds * 1e3:.2f} ({ort / seconds:.2f}x)" for seconds in ours]
        cells += ["-"] * (2 - len(cells))
        tuned = f"{row.tune_s:.0f} s" if row.tune_s else "-"
        made.add_row(
            f"{row.model.title}\n{row.tuned}", f"{ort * 1e3:.2f}", *cells, f"{row.build_s:.0f} s", tuned,
            f"{row.error:.1e}",
        )  # fmt: skip
    return made


def picture(rows: Sequence[Row], title: str) -> str:
    """Return a bar chart of speed relative to onnxruntime, as SVG."""
    drawing = Drawing(720, 60 + sum(26 * len(row.latency) + 34 for row in rows), title)
    drawing.text(20, 28, title, size=15)
    fastest = max(next(iter(row.latency.values())) / seconds for row in rows for seconds in row.latency.values())
    y = 60.0
    for row in rows:
        ort = next(iter(row.latency.values()))
        drawing.text(20, y, row.model.title, size=13)
        y += 10
        for colour, (name, seconds) in zip((COLOURS[7], COLOURS[5], COLOURS[0]), row.latency.items(), strict=False):
            told = f"{name}: {seconds * 1e3:.2f} ms, {ort / seconds:.2f}x"
            drawing.bar(20, y, 420 * ort / seconds / fastest, 20, colour, told)
            drawing.text(28 + 420 * ort / seconds / fastest, y + 15, told)
            y += 26
        y += 24
    return str(drawing)


def main(argv: list[str] | None = None) -> int:
    """Entry point; 0 if every output is right."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--folder", type=Path, default=Path("demo-out"), help="folder for models, records, picture")
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help=f"time budget; default {BUDGET_S}")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        return demonstrate(args.folder, Clock(args.seconds))
    except RollerError as error:
        console.print(f"demo: error: {error}", style="red", highlight=False, soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        told = f"demo: interrupted; records and models are in {args.folder}, the next run goes on with them"
        console.print(told, highlight=False, soft_wrap=True)
        return 130


def demonstrate(folder: Path, clock: Clock) -> int:
    """Run all models and show the results."""
    from roller_tvm.device import cpu_device
    from roller_tvm.tvm_env import find_tvm, use_threads

    found = find_tvm()
    console.print(
        f"Two models in about {clock.seconds / 60:.0f} minutes at most: planned and built, compared with onnxruntime, "
        "their largest operators tuned, timed.", highlight=False, soft_wrap=True,
    )  # fmt: skip
    device = cpu_device()
    threads = use_threads(otherwise=device.units)
    used = f"{threads} thread{'s' * (threads > 1)}"
    told = f"{device}; TVM {found.version if found else 'missing'}; {used}\n"
    console.print(told, highlight=False, soft_wrap=True)
    rows: list[Row] = []
    for number, name in enumerate(MODELS):
        if rows and clock.left() < rows[-1].build_s:
            console.print(f"no time left for {name}: a model takes {rows[-1].build_s:.0f} s here; give more --seconds")
            break
        rows.append(run(name, folder, clock, len(MODELS) - 1 - number))
    Console(width=max(console.width, 110)).print(table(rows, threads))
    for note in busy(threads):
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    path = folder / "demo.svg"
    title = f"Speed relative to onnxruntime, {used}, {device.title}"
    path.write_text(picture(rows, title), encoding="utf-8")
    print(f"picture: {path}\nrecords and models: {folder}; done in {clock.seconds - clock.left():.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
