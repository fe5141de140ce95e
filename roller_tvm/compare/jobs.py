"""A job in a process of its own: it may crash, hang or write nonsense, and the comparison goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_tvm.errors import last_line

#: Number of last characters of the child's log to show.
SHOWN = 2000


@dataclass(frozen=True)
class Done:
    """Outcome of a job: 'ok' with its value, 'failed' or 'unsupported' as the job reports, 'crash' or 'timeout'."""

    status: str
    value: Any = None
    reason: str = ""


def run_job(
    edge: str, function: str, arguments: Mapping[str, Any], limit_s: float, threads: int, log: Path | None = None
) -> Done:
    """Call a function of an edge (a module) in a fresh process and return its outcome.

    Parameters
    ----------
    edge : str
        Name of a module.
    function : str
        Name of its function; it takes the arguments as keywords and returns a JSON value.
    limit_s : float
        Seconds after which the process and its children are killed.
    threads : int
        Threads of TVM's pool.
    log : Path, optional
        File to which the process's output is appended.

    Examples
    --------
    >>> run_job("json", "dumps", {"obj": [1, 2]}, 60, 1).value
    '[1, 2]'
    """
    with tempfile.TemporaryDirectory(prefix="roller-tvm-") as folder:
        job, reply = Path(folder, "job.json"), Path(folder, "reply.json")
        job.write_text(json.dumps({"edge": edge, "function": function, "arguments": dict(arguments)}))
        with (log or Path(folder, "log")).open("ab") as said:
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(os.path.abspath(p) for p in sys.path))}
            # Workers of peers inherit it: all that is compared has the same threads, none waits for a download, and
            # what a killed process leaves lying goes with the folder.
            env |= {"TVM_NUM_THREADS": str(threads), "TOPHUB_LOCATION": "NONE", "TMPDIR": folder}
            process = subprocess.Popen(
                [sys.executable, "-m", "roller_tvm.compare.child", str(job), str(reply), str(os.getpid())],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env, start_new_session=True)  # fmt: skip
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return Done("timeout", reason=f"took more than {limit_s:.0f} s")
            finally:  # also Ctrl-C: what it started dies with it
                _kill(process)
        try:
            answer = json.loads(reply.read_text())
            return Done(str(answer["status"]), answer["value"], str(answer["reason"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Done("crash", reason=_obituary(code, Path(said.name)))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _obituary(code: int, log: Path) -> str:
    """Return how the process ended, with its last line of output."""
    how = f"exit code {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-code).name
    with contextlib.suppress(OSError):
        return f"{how} {last_line(log.read_bytes()[-SHOWN:].decode(errors='replace'))}".strip()
    return how
