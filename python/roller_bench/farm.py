"""A tracker of TVM's RPC and servers of one thread each, started on this machine by TVM's own commands."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from roller_tvm.children import environment, python
from roller_tvm.errors import MeasureError
from roller_tvm.tuning.remote import Tracker, servers

HOST = "127.0.0.1"
#: Seconds in which a tracker and its servers start.
START_S = 120.0
#: Ports that a server may choose from.
PORTS = 20


class Farm:
    """A tracker, which starts at once, and its servers; all are killed at the end of the block.

    Parameters
    ----------
    folder : Path
        Of their logs.
    key : str
        Of the servers.
    """

    def __init__(self, folder: Path, key: str = "board") -> None:
        self.folder, self.where = folder, Tracker(HOST, _free_port(), key)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start_tracker()

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            self.kill(process)

    @property
    def address(self) -> str:
        """Host and port of the tracker."""
        return f"{HOST}:{self.where.port}"

    def start_tracker(self) -> None:
        """Start the tracker, or another one in its place."""
        port = self.where.port
        self.tracker = self._start("rpc_tracker", "--host", HOST, "--port", str(port), "--port-end", str(port + 1))

    def start_server(self) -> subprocess.Popen[bytes]:
        """Start a server, and do not wait for it."""
        port = _free_port()
        words = ("--host", HOST, "--port", str(port), "--port-end", str(port + PORTS))
        return self._start("rpc_server", *words, "--tracker", self.address, "--key", self.where.key)

    def wait(self, count: int) -> None:
        """Wait for so many servers; MeasureError, with the log, if they do not come."""
        end = time.monotonic() + START_S
        while True:
            with contextlib.suppress(MeasureError):
                if servers(self.where) >= count:
                    return
            if time.monotonic() > end:
                log = (self.folder / "rpc_tracker.log").read_text()
                raise MeasureError(f"{count} servers did not start in {START_S:.0f} s", log[-2000:])
            time.sleep(0.2)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and its children, once: its number may be another's later."""
        if process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(python("-m", f"tvm.exec.{name}", *words), stdout=log, stderr=log,
                                       start_new_session=True, env=environment({"TVM_NUM_THREADS": "1"}))  # fmt: skip
        self.processes.append(process)
        return process


def _free_port() -> int:
    with socket.socket() as made:
        made.bind((HOST, 0))
        return int(made.getsockname()[1])
