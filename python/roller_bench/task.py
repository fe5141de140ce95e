"""A task opened in a job of a comparison: its kernels as checked files, and the fields of its tuners' results."""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from roller_bench.cases import Case
from roller_bench.files import keep_kernel, unrun, why_not_run, why_wrong, why_wrong_now
from roller_tvm.tuning.session import PLAIN
from roller_tvm.tuning.supervise import Pool

#: Subfolders of a comparison's folder.
TASKS, KERNELS, WORK = "tasks", "kernels", "work"
#: Version of a task's file; a file of another version is made anew.
TASK_VERSION = 2
#: Tuners whose kernels are built as Roller builds them; those of other tuners are built as TVM does.
OURS = ("roller", "ranked", "xgboost")
#: Schedule text of TVM's own kernel.
DEFAULT = "TVM's default"

#: Function that returns plans in an order of its own instead of by predicted time.
Order = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class Searched:
    """Access of a search to a task: the space of its plans, and how workers measure one.

    Parameters
    ----------
    expression : TensorExpression
    features : Features
    opening : tuple
        Arguments of the workers' ``open_task``.
    mode : int
        Layout of the weights, packed or not (``measure.session``).
    record : function of a plan
        Returns the plan's record; raises if its steps do not apply.
    """

    expression: Any
    features: Any
    opening: tuple[Any, ...]
    mode: int
    record: Callable[[Any], str]


@dataclass
class OpenedTask:
    """An open task; each line of TVM derives its own class, with the methods below the second heading.

    Parameters
    ----------
    case : Case
    target : Target
    device : DeviceSpec
    key : str
        Key of the task in the line's records.
    folder : Path
        Folder of the comparison.
    """

    line: ClassVar[str] = ""
    case: Case
    target: Any
    device: Any
    key: str
    folder: Path
    #: Plans whose steps did not apply.
    failures: list[str] = field(default_factory=list, kw_only=True)

    # -- files and results --------------------------------------------------------------------------------------

    @property
    def kernels(self) -> Path:
        """Folder of the kernels, created if missing."""
        return made(self.folder / KERNELS)

    def work(self, tuner: str) -> Path:
        """Return the folder in which a tuner keeps the files that it resumes from, created if missing."""
        return made(self.folder / WORK / f"{self.case.digest}.{tuner}")

    def told(self, path: Path) -> str:
        """Return the name of a kernel's file as used in results: its path below the comparison's folder."""
        return path.relative_to(self.folder).as_posix()

    def found(
        self, kernel: Path, seconds: float, trials: int = 0, claimed_s: float = math.nan,
        curve: Sequence[tuple[float, float]] = (), schedule: str = "", tiles: str = "", predicted_s: float = math.nan,
        remark: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """Return the fields of ``results.Tuned`` for a tuner that has a kernel, right or wrong.

        Parameters
        ----------
        kernel : Path
            File of the kernel, kept with the outcome of its check.
        remark : str
            Remark on the kernel, used if it is right.
        """
        wrong, only_built = why_wrong(kernel), unrun(kernel)
        reason = "; ".join(filter(None, (only_built, remark)))
        return {
            "status": "wrong answer" if wrong else "ok", "reason": wrong or reason, "seconds": seconds,
            "trials": trials, "claimed_s": claimed_s, "predicted_s": predicted_s, "curve": list(curve),
            "kernel": "" if only_built else self.told(kernel), "schedule": schedule, "tiles": tiles,
        }  # fmt: skip

    # -- a line's own -------------------------------------------------------------------------------------------

    def file_of(self, text: str) -> Path:
        """Return the path of the kernel built from a text: a record, or the name of a kernel without one."""
        raise NotImplementedError

    def open_reference(self) -> None:
        """Open the task in this process's worker, with its reference answers."""
        raise NotImplementedError

    @property
    def modes(self) -> tuple[int, int]:
        """Layouts of the weights in which a record's kernel is checked, and kept."""
        raise NotImplementedError

    def default_kernel(self) -> Path:
        """Build and check TVM's own kernel, which stays where Roller's plans do not beat it; return its path."""
        raise NotImplementedError

    def shapes_of(self, number: int, mode: int) -> list[tuple[list[int], str]]:
        """Return shapes and dtypes of the arguments of a kernel that the worker built."""
        raise NotImplementedError

    def candidates(self, top: int, order: Order | None, most: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield ranked plans with their schedules, best first; only those of the first `most` plans, if given.

        Raises
        ------
        UnsupportedOperator
            The operator has no plan.
        """
        raise NotImplementedError

    def record(self, schedule: Any) -> str:
        """Return a schedule as the line's record."""
        raise NotImplementedError

    def measured(self, pool: Pool, schedules: Sequence[Any]) -> Any:
        """Measure schedules as the line's tuner does."""
        raise NotImplementedError

    def searched(self) -> Searched:
        """Return the access of a search to this task."""
        raise NotImplementedError

    # -- building -----------------------------------------------------------------------------------------------

    @property
    def worker(self) -> ModuleType:
        """Worker of the line, whose functions build and check in this process."""
        return importlib.import_module("roller_tvm.tuning.worker")

    @property
    def options(self) -> tuple[Any, ...]:
        """Further arguments of the worker's building functions."""
        return ()

    def pool(self, count: int) -> Pool:
        """Return worker processes of the line."""
        return Pool(count, self.device.units)

    def build(self, record: str) -> Path:
        """Build and check a record's kernel; return its path. Beside it go its arguments' shapes and its fault."""
        path = self.file_of(record)
        if path.exists():
            return path
        self.open_reference()
        check, kept = self.modes
        seconds = self.worker.build(self.key, 0, record, check)  # what its user waits for
        wrong = why_wrong_now(self.worker, self.key, check)
        self.worker.build(self.key, 1, record, kept)
        return self.keep(path, 1, kept, wrong, seconds)

    def build_plain(self, text: str, name: str) -> Path:
        """Build and check TVM's own kernel of the open task from its module's text; return its path, made of `name`."""
        path = self.file_of(name)
        seconds = self.worker.build_default(self.key, 0, text, PLAIN)
        return self.keep(path, 0, PLAIN, why_wrong_now(self.worker, self.key, PLAIN), seconds)

    def keep(self, path: Path, number: int, mode: int, wrong: str, build_s: float) -> Path:
        """Write a kernel that the worker built to its file; return the path."""
        told = {"wrong": wrong, "build_s": build_s, "args": self.shapes_of(number, mode),
                "unrun": why_not_run(self.worker, self.key)}  # fmt: skip
        return keep_kernel(path, self.module_of(number, mode).export_library, told)

    def module_of(self, number: int, mode: int) -> Any:
        """Return the module of a kernel that the worker built."""
        return self.worker.TASKS[self.key].built[number, mode].module


def remarked(found: dict[str, Any], remark: str) -> dict[str, Any]:
    """Return the fields of ``results.Tuned`` with one more remark on the kernel, if it is right."""
    if found.get("status", "ok") != "ok":
        return found
    return {**found, "reason": "; ".join(filter(None, (found.get("reason"), remark)))}


def made(folder: Path) -> Path:
    """Create a folder if it is missing, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_task(case: Case, data: dict[str, Any], folder: Path) -> str:
    """Write the data with which a line reopens a case's task; return the path below the comparison's folder."""
    path = made(folder / TASKS) / f"{case.digest}.json"
    path.write_text(json.dumps({"version": TASK_VERSION, **data}))
    return path.relative_to(folder).as_posix()


def readable(path: Path) -> bool:
    """Return True if a case's file exists and, for a task's file, this version wrote it."""
    if not path.exists():
        return False
    return path.parent.name != TASKS or json.loads(path.read_text()).get("version") == TASK_VERSION


def first_right(
    candidates: Iterable[Any], build: Callable[[Any], Path], failed: type[Exception] | tuple[type[Exception], ...]
) -> tuple[Any, Path | None, str]:
    """Return the first candidate whose kernel builds and is right, its kernel, and the last earlier candidate's fault.

    Candidate and kernel are None if there is none.
    """
    reason = ""
    for candidate in candidates:
        try:
            path = build(candidate)
        except failed as error:
            reason = f"{getattr(error, 'kind', 'failed')}: {error}"
            continue
        if wrong := why_wrong(path):
            reason = f"wrong answer: {wrong}"
            continue
        return candidate, path, reason
    return None, None, reason


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    """Return an action's result and its seconds."""
    start = time.perf_counter()
    return action(), time.perf_counter() - start
