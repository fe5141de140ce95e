"""Write files so that a killed job leaves only whole ones.

A file gets its name when it is complete; half a last line is cut off.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roller_tvm.errors import last_line
from roller_tvm.folders import beside


def keep_kernel(path: Path, export: Callable[[str], object], told: dict[str, Any]) -> Path:
    """Write a kernel, completed last, and beside it a JSON file with facts about it; return the kernel's path.

    Parameters
    ----------
    path : Path
        Path of the kernel; the facts go to the same name with ``.json``.
    export : function of a file's name
        Writes the kernel to that file.
    told : dict
        Facts about the kernel, as JSON values.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> kernel = keep_kernel(Path(folder.name, "a.so"), lambda name: Path(name).touch(), {"wrong": ""})
    >>> sorted(p.name for p in kernel.parent.iterdir())
    ['a.json', 'a.so']
    """
    with beside(path) as part:
        export(str(part))
        path.with_suffix(".json").write_text(json.dumps(told))
    return path


def why_wrong(kernel: Path) -> str:
    """Return the reason that a kept kernel's answer is wrong, or ''."""
    return str(_told(kernel)["wrong"])


def build_seconds(kernel: Path) -> float:
    """Return the seconds that building a kernel took, without its check."""
    return float(_told(kernel).get("build_s", math.nan))


def unrun(kernel: Path) -> str:
    """Return the reason that a kernel was built but not run, or ''."""
    return str(_told(kernel).get("unrun", ""))


def why_not_run(worker: Any, key: str) -> str:
    """Return the reason that a task's kernels can be built but not run here, or ''; the task is open in `worker`."""
    kind = str(worker.TASKS[key].target.kind.name)
    return "" if worker.device_present(kind) else f"built, neither run nor timed: no {kind} device here"


def why_wrong_now(worker: Any, key: str, mode: int) -> str:
    """Return the reason that the kernel just built by `worker` is wrong; '' if it is right or cannot run here."""
    return "" if why_not_run(worker, key) else str(worker.run(key, 0, mode, math.inf, {})["wrong"])


def _told(kernel: Path) -> dict[str, Any]:
    return dict(json.loads(kernel.with_suffix(".json").read_text()))


def mend_lines(*paths: Path) -> None:
    """Cut off half a last line, left by a process killed while writing; else the next line would be lost too.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> log = Path(folder.name, "log")
    >>> _ = log.write_text("whole\\nha")
    >>> mend_lines(log)
    >>> log.read_text()
    'whole\\n'
    """
    for path in paths:
        if path.exists() and (data := path.read_bytes()) and not data.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)


def keep_folder(path: Path, fill: Callable[[str], object]) -> Path:
    """Return the folder `path`, filled by a function unless it exists."""
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        fill(str(part))
        part.rename(path)
    return path


class CurveFile:
    """Progress of one tuning: a line each time kernels were measured.

    Parameters
    ----------
    path : Path
        File of the curve. Lines of an earlier run are read, and their seconds counted.

    Attributes
    ----------
    trials : int
        Number of kernels measured.
    noted : float
        Seconds of tuning until kernels were last measured.
    failure : str
        Error of the last kernel that failed in this process, or ''.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> curve = CurveFile(Path(folder.name, "curve"))
    >>> curve.note([0.5, 0.2])
    >>> curve.trials, curve.best, len(curve.points)
    (2, 0.2, 1)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials = 0
        self.best = math.inf
        self.failure = ""
        self.points: list[tuple[float, float]] = []
        self.before = 0.0
        mend_lines(path)
        for line in path.read_text().splitlines() if path.exists() else []:
            self.before, self.trials, best = json.loads(line)
            self.best = math.inf if best is None else best
            self._point(self.before)
        self.noted = self.before
        self.start = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds spent on this tuning, including earlier runs."""
        return self.before + time.perf_counter() - self.start

    def _point(self, when: float) -> None:
        if math.isfinite(self.best):
            self.points.append((when, self.best))

    def leave_out(self, seconds: float) -> None:
        """Do not count `seconds` that were spent on something other than tuning."""
        self.start += seconds

    def none_worked(self) -> str:
        """Return a message for the case that no kernel worked, with the last failure."""
        return f"none of {self.trials} kernels worked{f': {self.failure}' if self.failure else ''}"

    def note(self, measured: list[float], failure: str = "") -> None:
        """Add measured kernels: their times in seconds, infinity for a failed one, whose error is `failure`."""
        self.trials += len(measured)
        self.failure = last_line(failure) if failure.strip() else self.failure
        self.best = min([self.best, *measured])
        when = self.noted = self.elapsed
        self._point(when)
        with self.path.open("a") as file:
            file.write(json.dumps([when, self.trials, self.best if math.isfinite(self.best) else None]) + "\n")
