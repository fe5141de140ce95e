"""Worker processes that may hang or die: asked line by line, killed if they stay silent, replaced if they are lost."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from roller_tvm.errors import RollerError

#: Seconds without a message after which a worker counts as hung.
SILENCE_S = 20.0
#: Seconds that a worker may take to start (Python, the driver, a context) even from a slow disk.
START_S = 60.0
#: Seconds of one wait for a message. Silence is counted in waits: while this process was stopped, so was the worker.
_LOOK_S = 0.25
#: Seconds that a killed process may take to end.
_GONE_S = 5.0
_END = object()


class WorkerLost(RollerError):
    """A worker is gone. `at` is the step it was doing; `said` is True if it reported the error itself."""

    def __init__(self, what: str, at: str, said: bool = False) -> None:
        super().__init__(what, at)
        self.at, self.said = at, said


class TimeIsUp(RollerError):
    """A task's time is over; the worker was killed during the step `at`."""

    def __init__(self, at: str) -> None:
        super().__init__("time is up", at)
        self.at = at


class Worker:
    """A process that answers tasks, each as one line of JSON; `close` kills it.

    Parameters
    ----------
    command : sequence of str
    log : Path
        File to which its other output is appended.
    silence_s : float
        Seconds without a message after which the process is killed.

    Examples
    --------
    >>> echo = "import sys; [print(line, flush=True) for line in sys.stdin]"
    >>> worker = Worker([sys.executable, "-c", echo], Path("/dev/null"))
    >>> next(worker.ask({"result": {"a": 1}}, time.monotonic() + 60))
    {'a': 1}
    >>> worker.close()
    """

    def __init__(self, command: Sequence[str], log: Path, silence_s: float = SILENCE_S) -> None:
        self.at, self.silence_s = "its start", silence_s
        self.facts: dict[str, Any] = {}
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.path.abspath(p) for p in sys.path if p))
        with log.open("ab") as errors:
            # In a session of its own: a Ctrl-C at the keyboard is for the parent, which writes the report.
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(_END)

    def hello(self, until: float) -> dict[str, Any]:
        """Return the facts that the process reports when it starts."""
        for message in self._messages(until, max(START_S, self.silence_s)):
            if "facts" in message:
                self.facts = message["facts"]
                return self.facts
        raise AssertionError("unreachable")

    def ask(self, task: dict[str, Any], until: float, silence_s: float = 0.0) -> Iterator[dict[str, Any]]:
        """Yield the results of a task, as they come.

        Parameters
        ----------
        until : float
            Time of ``time.monotonic()`` at which the task's time is over.
        silence_s : float
            Replaces the worker's own limit if it is not 0.

        Raises
        ------
        WorkerLost
            The worker died, hung or gave up; close it.
        TimeIsUp
            The time is over; the worker was killed.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._lost() from None
        for message in self._messages(until, silence_s or self.silence_s):
            if "result" in message:
                yield message["result"]
            elif "done" in message:
                return

    def _next(self, until: float, limit: float) -> Any:
        """Return the next line."""
        looks = 0
        while True:
            try:
                return self._lines.get(timeout=max(0.0, min(_LOOK_S, until - time.monotonic())))
            except queue.Empty:
                looks += 1
            if time.monotonic() >= until:
                self.close()
                raise TimeIsUp(self.at)
            if looks * _LOOK_S >= limit:
                self.close()
                raise WorkerLost(f"hung: no word for {limit:.0f} s, killed", self.at)

    def _messages(self, until: float, limit: float) -> Iterator[dict[str, Any]]:
        while True:
            line = self._next(until, limit)
            if line is _END:
                raise self._lost()
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a line that something else printed
            if "error" in message:
                self.close()
                raise WorkerLost(message["error"], self.at, said=True)
            self.at = message.get("at", self.at)
            yield message

    def _lost(self) -> WorkerLost:
        """Return a WorkerLost with the reason that the process is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GONE_S)
        code = self._process.poll()
        self.close()
        if code is None:
            return WorkerLost("closed its output, and was killed", self.at)
        how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return WorkerLost(f"the process died: {how}", self.at)

    def close(self) -> None:
        """Kill the process; one that cannot be killed (a driver hanging in the kernel) is left behind."""
        if self._process.poll() is None:
            self._process.kill()
        for pipe in (self._process.stdin,):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GONE_S)


class Desk:
    """Hands tasks to a worker, and starts another if it was lost.

    Parameters
    ----------
    command : sequence of str
    log : Path
    silence_s : float
    """

    def __init__(self, command: Sequence[str], log: Path, silence_s: float = SILENCE_S) -> None:
        self._command, self._log, self._silence_s = command, log, silence_s
        self._worker: Worker | None = None
        self.facts: dict[str, Any] = {}
        self.starts = 0

    def worker(self, until: float) -> Worker:
        """Return the worker, started if there is none; raises WorkerLost or TimeIsUp if it does not start."""
        if self._worker is None:
            self.starts += 1
            self._worker = Worker(self._command, self._log, self._silence_s)
            try:
                self.facts = self._worker.hello(until)
            except (WorkerLost, TimeIsUp):
                self.close()
                raise
        return self._worker

    def ask(self, task: dict[str, Any], until: float, silence_s: float = 0.0) -> Iterator[dict[str, Any]]:
        """Yield the results of a task as they come; after an error of `Worker.ask` the next task gets a new worker."""
        try:
            yield from self.worker(until).ask(task, until, silence_s)
        except (WorkerLost, TimeIsUp):
            self.close()
            raise

    def close(self) -> None:
        """Close the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
