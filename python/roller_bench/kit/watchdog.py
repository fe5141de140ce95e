"""Worker processes that may hang or die: asked line by line, killed if they stay silent, replaced if they are lost."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from roller_tvm.errors import RollerError
from roller_tvm.tuning.lifeline import tie_to_parent

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
    """A process that answers tasks, each as one line of JSON; started for a task if it is not there.

    A process that says nothing for too long is killed. After an error the next task gets a new one.

    Parameters
    ----------
    log : Path
        File to which its other output is appended.
    silence_s : float
        Seconds without a message after which the process is killed.

    Examples
    --------
    >>> hello = "import json, sys; print(json.dumps(dict(facts={})), flush=True); "
    >>> echo = hello + "[print(line, flush=True) for line in sys.stdin]"
    >>> worker = Worker([sys.executable, "-c", echo], Path("/dev/null"))
    >>> next(worker.ask({"result": {"a": 1}}, time.monotonic() + 60))
    {'a': 1}
    >>> worker.close()
    """

    def __init__(self, command: Sequence[str], log: Path, silence_s: float = SILENCE_S) -> None:
        self._command, self._log, self._silence_s = list(command), log, silence_s
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._at = ""
        self.facts: dict[str, Any] = {}

    def start(self, until: float) -> None:
        """Start the process if there is none, and wait for its facts; raises WorkerLost or TimeIsUp."""
        if self._process is not None:
            return
        self._at, self._lines = "its start", queue.SimpleQueue()
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.path.abspath(p) for p in sys.path if p))
        with self._log.open("ab") as errors:
            # In a session of its own: a Ctrl-C at the keyboard is for the parent, which writes the report.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=_listen, args=(self._process.stdout, self._lines), daemon=True).start()
        for message in self._messages(until, max(START_S, self._silence_s)):
            if "facts" in message:
                self.facts = message["facts"]
                return

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
            The process died, hung or gave up.
        TimeIsUp
            The time is over; the process was killed.
        """
        self.start(until)
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._lost() from None
        for message in self._messages(until, silence_s or self._silence_s):
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
                raise TimeIsUp(self._at)
            if looks * _LOOK_S >= limit:
                self.close()
                raise WorkerLost(f"hung: no word for {limit:.0f} s, killed", self._at)

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
                raise WorkerLost(message["error"], self._at, said=True)
            self._at = message.get("at", self._at)
            yield message

    def _lost(self) -> WorkerLost:
        """Return a WorkerLost with the reason that the process is gone."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GONE_S)
        code = self._process.poll()
        self.close()
        if code is None:
            return WorkerLost("closed its output, and was killed", self._at)
        how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return WorkerLost(f"the process died: {how}", self._at)

    def close(self) -> None:
        """Kill the process; one that cannot be killed (a driver hanging in the kernel) is left behind."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GONE_S)


def _listen(output: Any, lines: queue.SimpleQueue[Any]) -> None:
    for line in output:
        lines.put(line)
    lines.put(_END)


# In the worker's process -------------------------------------------------------------------------------


def begin(words: Sequence[str] | None = None) -> tuple[argparse.Namespace, Callable[[dict[str, Any]], None]]:
    """Return a worker's arguments, and the function that sends a message; the process ends when its parent does."""
    parser = argparse.ArgumentParser(description="Used by gpu_kit.py.")
    parser.add_argument("--card", type=int, default=0)
    parser.add_argument("--parent", type=int, help="id of the parent process; this process ends when it does")
    parser.add_argument("--driver", default="", help="path of the CUDA driver's library (default: search for it)")
    args = parser.parse_args(words)
    if args.parent is not None:
        tie_to_parent(args.parent)
    said, sys.stdout = sys.stdout, sys.stderr  # what else prints must not stand between the answers

    def say(message: dict[str, Any]) -> None:
        said.write(json.dumps(message) + "\n")
        said.flush()

    return args, say
