"""A task in a job of a comparison, whatever the line: where its kernels and what tuners go on with are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_tvm.compare.keeping import unrun, why_wrong
from roller_tvm.compare.suite import Case
from roller_tvm.compare.theirs import Thought
from roller_tvm.compare.tuner import OBJECTIVE

#: Below the folder of a comparison.
TASKS, KERNELS, WORK = "tasks", "kernels", "work"
#: Of a task's file; one of another version is made anew.
TASK_VERSION = 2
#: Tuners whose kernels are built as Roller builds them; the peers' are built as TVM does.
OURS = ("roller", "ranked", *OBJECTIVE)
#: What stands for a schedule where a kernel is TVM's own.
DEFAULT = "TVM's default"


@dataclass
class OpenedTask:
    """What every line's task has.

    Parameters
    ----------
    case : Case
    target : Target
    device : DeviceSpec
    key : str
        Of the task in the line's records.
    folder : Path
        Of the comparison.
    """

    case: Case
    target: Any
    device: Any
    key: str
    folder: Path

    @property
    def kernels(self) -> Path:
        """Where kernels are kept."""
        return made(self.folder / KERNELS)

    def work(self, tuner: str) -> Path:
        """Where a tuner keeps what it needs to go on."""
        return made(self.folder / WORK / f"{self.case.digest}.{tuner}")

    def told(self, path: Path) -> str:
        """A kernel's file as results name it."""
        return path.relative_to(self.folder).as_posix()

    def found(
        self, kernel: Path, seconds: float, trials: int = 0, claimed_s: float = math.nan,
        curve: Sequence[tuple[float, float]] = (), schedule: str = "", tiles: str = "", predicted_s: float = math.nan,
        remark: str = "", thought: Thought | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Fields of ``results.Tuned`` for a tuner that has a kernel, which may be wrong.

        Parameters
        ----------
        kernel : Path
            Kept with what its check said.
        remark : str
            What to know about it, where it is right.
        thought : Thought, optional
            What Roller's model says of another tuner's tiles.
        """
        wrong, only_built = why_wrong(kernel), unrun(kernel)
        reason = "; ".join(filter(None, (only_built, remark)))
        return {
            "status": "wrong answer" if wrong else "ok", "reason": wrong or reason, "seconds": seconds,
            "trials": trials, "claimed_s": claimed_s, "predicted_s": predicted_s, "curve": list(curve),
            "kernel": "" if only_built else self.told(kernel), "schedule": schedule, "tiles": tiles,
            **({} if thought is None else {"predicted_s": thought.seconds, "thought": str(thought)}),
        }  # fmt: skip

    def found_default(self, kernel: Path, seconds: float, trials: int, claimed_s: float) -> dict[str, Any]:
        """Fields of ``results.Tuned`` for Roller where TVM's own kernel measures faster than its plans."""
        return self.found(kernel, seconds, trials, claimed_s, [(seconds, claimed_s)], DEFAULT,
                          remark="TVM's own kernel stays")  # fmt: skip


def remarked(found: dict[str, Any], remark: str) -> dict[str, Any]:
    """Fields of ``results.Tuned`` with something more to know about the kernel, where it is right."""
    if found.get("status", "ok") != "ok":
        return found
    return {**found, "reason": "; ".join(filter(None, (found.get("reason"), remark)))}


def made(folder: Path) -> Path:
    """A folder that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_task(case: Case, data: dict[str, Any], folder: Path) -> str:
    """Keep what a line needs to open a case's task again; its file below the folder of the comparison."""
    path = made(folder / TASKS) / f"{case.digest}.json"
    path.write_text(json.dumps({"version": TASK_VERSION, **data}))
    return path.relative_to(folder).as_posix()


def readable(path: Path) -> bool:
    """Whether what was kept of a case is there, and a task's file one that this version wrote."""
    if not path.exists():
        return False
    return path.parent.name != TASKS or json.loads(path.read_text()).get("version") == TASK_VERSION


def model_told(file: str, shapes: dict[str, list[int]] | None, layout: str | None) -> str:
    """A model with what shapes it, as cases of its tasks name it."""
    return f"{file} {shapes or ''} {layout or ''}".strip()


def first_right(
    candidates: Iterable[Any], build: Callable[[Any], Path], failed: type[Exception] | tuple[type[Exception], ...]
) -> tuple[Any, Path | None, str]:
    """The first candidate whose kernel builds and is right, its kernel, and what was wrong with the last before it."""
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
