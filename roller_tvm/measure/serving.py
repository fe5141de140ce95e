"""The worker's side of ``pool``: functions called over one pipe, failures reported by kind.

The first argument is the pipe's file descriptor, the second the parent's process id. ``(function, arguments)`` come in,
``(status, value)`` go out. A crash or hang here ends only this process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from roller_tvm import errors
from roller_tvm.measure.lifeline import tie_to_parent


class Failed(Exception):
    """A failure with a kind, by which the summary groups."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def last_line(error: BaseException) -> str:
    """Return an error's message as one line.

    TVM's errors have it last, below a trace; ours end with the remedy, so their `what` is used.
    """
    return error.what[:300] if isinstance(error, errors.RollerError) else errors.last_line(error)


def serve(connection: Connection, functions: dict[str, Any]) -> None:
    """Answer calls of these functions; their exceptions are replies too."""
    while True:
        try:
            name, args = connection.recv()
        except (EOFError, OSError):
            return
        try:
            reply = ("ok", functions[name](*args))
        except Failed as error:
            reply = ("failed", (error.kind, str(error)))
        except Exception as error:
            traceback.print_exc()
            reply = ("failed", ("run error" if name == "run" else "build error", last_line(error)))
        connection.send(reply)


def main(functions: dict[str, Any]) -> None:
    """Answer calls until the parent is gone; a worker's module ends with this."""
    tie_to_parent(int(sys.argv[2]))
    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(connection, functions)
    os._exit(0)  # TVM's threads may be stuck; there is nothing here worth an orderly end
