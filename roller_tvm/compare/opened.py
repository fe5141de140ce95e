"""A task opened in a job of a comparison, on either line: paths of its kernels and of the tuners' files."""

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

#: Subfolders of a comparison's folder.
TASKS, KERNELS, WORK = "tasks", "kernels", "work"
#: Version of a task's file; a file of another version is made anew.
TASK_VERSION = 2
#: Tuners whose kernels are built as Roller builds them; those of other tuners are built as TVM does.
OURS = ("roller", "ranked", *OBJECTIVE)
#: Schedule text of TVM's own kernel.
DEFAULT = "TVM's default"


@dataclass
class OpenedTask:
    """An open task; each line of TVM derives its own class.

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

    case: Case
    target: Any
    device: Any
    key: str
    folder: Path

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
        remark: str = "", thought: Thought | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the fields of ``results.Tuned`` for a tuner that has a kernel, right or wrong.

        Parameters
        ----------
        kernel : Path
            File of the kernel, kept with the outcome of its check.
        remark : str
            Remark on the kernel, used if it is right.
        thought : Thought, optional
            Roller's model on another tuner's tiles.
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
        """Return the fields of ``results.Tuned`` for Roller if TVM's own kernel measures faster than its plans."""
        return self.found(kernel, seconds, trials, claimed_s, [(seconds, claimed_s)], DEFAULT,
                          remark="TVM's own kernel stays")  # fmt: skip


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


def model_told(file: str, shapes: dict[str, list[int]] | None, layout: str | None) -> str:
    """Return the name of a model with its shapes and layout, as the cases of its tasks carry it."""
    return f"{file} {shapes or ''} {layout or ''}".strip()


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
