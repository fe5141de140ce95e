"""A job in a process of its own: it may crash, hang or write nonsense, and the comparison goes on."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_tvm.errors import RollerError, UnsupportedOperator, last_line
from roller_tvm.folders import work_folder
from roller_tvm.tuning import supervise
from roller_tvm.tuning.lifeline import tie_to_parent
from roller_tvm.tuning.supervise import Failed, child_environment, kill_session, obituary

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
    with work_folder() as folder:
        job, reply = Path(folder, "job.json"), Path(folder, "reply.json")
        job.write_text(json.dumps({"edge": edge, "function": function, "arguments": dict(arguments)}))
        with (log or Path(folder, "log")).open("ab") as said:
            # Workers of peers inherit it: all that is compared has the same threads, none waits for a download, and
            # what a killed process leaves lying goes with the folder.
            env = child_environment(threads) | {"TOPHUB_LOCATION": "NONE", "TMPDIR": folder}
            process = supervise.spawn(["-m", "roller_bench.jobs", str(job), str(reply), str(os.getpid())], said, env)
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return Done("timeout", reason=f"took more than {limit_s:.0f} s")
            finally:  # also Ctrl-C: what it started dies with it
                kill_session(process)
        try:
            answer = json.loads(reply.read_text())
            return Done(str(answer["status"]), answer["value"], str(answer["reason"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Done("crash", reason=obituary(code, Path(said.name).read_bytes()[-SHOWN:]))


def main(job: Path, reply: Path) -> None:
    """Run the job described in the file `job`, and write its outcome to the file `reply`."""
    wanted = json.loads(job.read_text())
    value, status, reason = None, "ok", ""
    try:
        value = getattr(importlib.import_module(wanted["edge"]), wanted["function"])(**wanted["arguments"])
    except UnsupportedOperator as error:
        status, reason = "unsupported", error.what
    except RollerError as error:
        status, reason = "failed", str(error)
    except Failed as error:
        status, reason = "failed", f"{error.kind}: {error}"
    except Exception as error:  # the job's own, of a kind that nobody foresaw: it is a row of the results
        traceback.print_exc()
        status, reason = "failed", f"{type(error).__name__}: {last_line(error)}"
    text = json.dumps({"status": status, "value": value, "reason": reason})
    half = reply.with_suffix(".part")
    half.write_text(text)
    half.replace(reply)  # whole, or not there


if __name__ == "__main__":
    tie_to_parent(int(sys.argv[3]))
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads and pools of a peer may not end
