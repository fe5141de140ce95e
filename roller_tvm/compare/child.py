"""The process of a job (see ``jobs``): call a function of an edge, and write the outcome to a file."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from roller_tvm.errors import RollerError, UnsupportedOperator, last_line
from roller_tvm.tuning.lifeline import tie_to_parent
from roller_tvm.tuning.supervise import Failed


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
    except Exception as error:
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
