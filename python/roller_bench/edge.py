"""A line of TVM in a comparison: what its jobs do, each in a process of its own, and Roller as a tuner on it."""

from __future__ import annotations

import math
import time as clock
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from roller_bench.cases import Case
from roller_bench.files import build_seconds
from roller_bench.learned import learned_order
from roller_bench.results import Prepared
from roller_bench.search import search
from roller_bench.task import DEFAULT, OURS, OpenedTask, Order, first_right, remarked
from roller_bench.timing import Timer, rounds_in_turns
from roller_tvm.errors import RollerError, last_line
from roller_tvm.ir import TensorExpression
from roller_tvm.tuning.supervise import Failed

#: Name of a model's input -> its shape.
Shapes = dict[str, tuple[int, ...]]


class Edge(ABC):
    """Jobs of a line of TVM; its module offers the bound methods under their names, for ``jobs.run_job``."""

    line: ClassVar[str]
    #: Remark on Roller's kernels for a CPU: how they are built.
    built: ClassVar[str]
    #: Peers by name: functions of (opened task, trials) that return the fields of ``results.Tuned``.
    tuners: ClassVar[Mapping[str, Callable[[Any, int], dict[str, Any]]]]
    #: Peers whose schedules are no records: functions of (opened task, schedule) that build the kernel again.
    rebuilt: ClassVar[Mapping[str, Callable[[Any, str], Path]]] = {}

    # -- a line's own -------------------------------------------------------------------------------------------

    @abstractmethod
    def tvm(self) -> Any:
        """Import the line's TVM."""

    @abstractmethod
    def target(self, target: str) -> Any:
        """Return a target that TVM accepts."""

    @abstractmethod
    def prepared(self, case: Case, expression: TensorExpression, target: str, folder: Path) -> Prepared:
        """Write a named operator as a task."""

    @abstractmethod
    def model_tasks(
        self, file: Path, shapes: Shapes | None, layout: str | None, params: Path | None, target: str, trusted: bool
    ) -> Iterable[Any]:
        """Return the tasks of a model; each has `id`, `name`, `weight`, `key`; `trusted` reads programs, too."""

    @abstractmethod
    def prepared_task(self, case: Case, task: Any, folder: Path) -> Prepared | None:
        """Write a model's task; return None if it computes nothing."""

    @abstractmethod
    def open(self, task: Path, case: Case, target: str, folder: Path) -> OpenedTask:
        """Open a task from its file."""

    @abstractmethod
    def building(self, opened: OpenedTask, ours: bool) -> AbstractContextManager[OpenedTask]:
        """Return a context in which the task's kernels are built as Roller builds them, or as TVM does."""

    @abstractmethod
    def timers(self, kernels: Sequence[Path], target: str) -> list[Timer]:
        """Open kernels that compute the same as timers, on random arguments."""

    # -- jobs ---------------------------------------------------------------------------------------------------

    def facts(self, target: str) -> dict[str, Any]:
        """Return the versions of TVM and LLVM, after checking that TVM accepts the target."""
        tvm = self.tvm()
        self.target(target)
        return {"tvm": tvm.__version__, "llvm": str(tvm.target.codegen.llvm_version_major())}

    def prepare(self, cases: list[dict[str, Any]], target: str, folder: str) -> list[dict[str, Any]]:
        """Prepare named operators as tasks, each in a file; one that fails gets a reason instead."""
        self.tvm()
        found = []
        for data in cases:
            case = Case.from_json(data)
            try:
                prepared = self.prepared(case, case.expression(), target, Path(folder))
            except RollerError as error:
                prepared = Prepared(case, reason=error.what)
            except Exception as error:  # TVM's own, of one operator
                prepared = Prepared(case, reason=last_line(error))
            found.append(asdict(prepared))
        return found

    def tasks(
        self, file: str, shapes: dict[str, list[int]] | None, layout: str | None, params: str | None, target: str,
        folder: str, trusted: bool = False,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Prepare the tasks of a model that compute something, each in a file."""
        self.tvm()
        stem, told = Path(file).stem, f"{file} {shapes or ''} {layout or ''}".strip()
        sizes = {n: tuple(s) for n, s in shapes.items()} if shapes else None
        found = []
        for task in self.model_tasks(Path(file), sizes, layout, Path(params) if params else None, target, trusted):
            case = Case(f"{stem}.{task.id}", group=stem, weight=task.weight or 1, title=f"{stem} {task.name}",
                        model=told, task=task.key)  # fmt: skip
            try:
                prepared = self.prepared_task(case, task, Path(folder))
            except RollerError as error:
                prepared = Prepared(case, reason=error.what)
            if prepared is not None:
                found.append(asdict(prepared))
        return found

    def tune(
        self, task: str, case: dict[str, Any], tuner: str, trials: int, target: str, folder: str
    ) -> dict[str, Any]:
        """Run one tuner on one task; return the fields of ``results.Tuned``."""
        self.tvm()
        plain, ours = self.open(Path(task), Case.from_json(case), target, Path(folder)), tuner in OURS
        with self.building(plain, ours) as opened:
            found = self.tuned(tuner, opened, trials)
        return remarked(found, self.built) if ours and opened.target.kind.name == "llvm" else found

    def build_again(
        self, task: str, case: dict[str, Any], tuner: str, trials: int, schedule: str, target: str, folder: str
    ) -> str:
        """Build the kernel of a schedule from the results of ``tune``; return its file below the folder."""
        self.tvm()
        plain, ours = self.open(Path(task), Case.from_json(case), target, Path(folder)), tuner in OURS
        with self.building(plain, ours) as opened:
            if tuner in self.rebuilt:
                return opened.told(self.rebuilt[tuner](opened, schedule))
            if schedule == DEFAULT and not ours:
                return str(self.tuned(tuner, opened, trials)["kernel"])
            return opened.told(opened.default_kernel() if schedule == DEFAULT else opened.build(schedule))

    def time(self, kernels: list[str], target: str, rounds: int) -> list[list[float]]:
        """Return typical seconds of kernels that compute the same, round by round, timed in turns."""
        self.tvm()
        timers = self.timers([Path(kernel) for kernel in kernels], target)
        return [[median(times) for times in taken] for taken in rounds_in_turns(timers, rounds)]

    def tuned(self, tuner: str, opened: OpenedTask, trials: int) -> dict[str, Any]:
        """Run a tuner on an open task; return the fields of ``results.Tuned``."""
        if tuner == "roller":
            return roller(opened, trials)
        if tuner == "ranked":  # the time of training is not counted
            return roller(opened, 1, learned_order(opened.folder, opened.case.title, opened.device))
        if tuner == "xgboost":
            return search(opened, trials)
        return self.tuners[tuner](opened, trials)


# -- Roller as a tuner ------------------------------------------------------------------------------------------------


def roller(opened: OpenedTask, trials: int, order: Order | None = None) -> dict[str, Any]:
    """Construct plans, measure them if `trials` > 1, and return the fields of ``results.Tuned``.

    `order` ranks the plans instead of the model.
    """
    can_run, start = opened.worker.device_present(opened.target.kind.name), clock.perf_counter()
    if trials == 1 or not can_run:
        return _first(opened, opened.candidates(max(trials, 10), order), start)
    plans = list(opened.candidates(max(trials, 10), order, trials))
    return _measured(opened, plans, trials, clock.perf_counter() - start)


def _first(opened: OpenedTask, candidates: Iterator[tuple[Any, Any]], start: float) -> dict[str, Any]:
    """Build the first plan that is right, as a build without records does; the check is not counted.

    If no device runs the kernels, the first plan that builds.
    """
    told: dict[int, tuple[str, float]] = {}

    def build(candidate: Any) -> Path:
        plan, schedule = candidate
        line = opened.record(schedule)
        told[id(plan)] = line, clock.perf_counter() - start
        return opened.build(line)

    chosen, path, reason = first_right(candidates, build, Failed)
    if path is None:
        return {"status": "failed", "reason": f"no plan works: {reason or (opened.failures or ['none made'])[0]}"}
    plan, (line, planned) = chosen[0], told[id(chosen[0])]
    spent = planned + build_seconds(path)
    return _found(opened, path, line, plan, spent, 0, math.nan, [(spent, plan.seconds)])


def _measured(opened: OpenedTask, plans: list[tuple[Any, Any]], trials: int, spent: float) -> dict[str, Any]:
    """Measure the plans and build the fastest, or TVM's own kernel where none of them beats it."""
    with opened.pool(min(opened.device.units, trials)) as pool:
        pool.start()
        for worker in pool.workers:  # imports are not tuning
            worker.call("hello", (), 120.0)
        began = clock.perf_counter()
        measured = opened.measured(pool, [schedule for _, schedule in plans])
        spent += clock.perf_counter() - began
    tried = sum(bool(o.repeats) for o in measured.outcomes)
    if measured.winner is None and measured.default_wins:
        claimed = measured.default.seconds if measured.default is not None else math.nan
        return opened.found(opened.default_kernel(), spent, tried, claimed, [(spent, claimed)], DEFAULT,
                            remark="TVM's own kernel stays")  # fmt: skip
    if measured.winner is None:
        kinds = ", ".join(f"{n} {kind}" for kind, n in measured.failures().items())
        return {"status": "failed", "reason": f"no plan works ({kinds})", "seconds": spent}
    plan, schedule = plans[measured.winner]
    line, seconds = opened.record(schedule), measured.outcomes[measured.winner].seconds
    return _found(opened, opened.build(line), line, plan, spent, tried, seconds, [(spent, seconds)])


def _found(
    opened: OpenedTask, path: Path, line: str, plan: Any, spent: float, trials: int, claimed: float, curve: list[Any]
) -> dict[str, Any]:
    return opened.found(path, spent, trials, claimed, curve, line, plan.plan.words(whole=True), plan.seconds)
