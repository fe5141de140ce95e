"""Measuring on other machines: TVM's own RPC tracker hands out servers, a worker process here for each of them.

Kernels are built here, sent as libraries and run there, a session each, so that a server that died or hangs costs one
candidate one attempt. Servers of one key are taken for machines of one kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import MeasureError, UsageError, last_line
from ..folders import variable, work_folder
from .session import Limits
from .supervise import Pool, Worker

#: Module that the workers run, and the variable that tells them where to ask.
MODULE, VARIABLE = "roller_tvm.tuning.remote_worker", "ROLLER_TVM_RPC"
#: Seconds to wait for a tracker or a server that is away, a restart included.
WAIT_S = 30.0
#: Seconds for sending a library and its inputs.
SEND_S = 20.0
#: Seconds that a tracker may take to answer.
CONNECT_S = 5.0
#: Seconds between two questions to a tracker that does not answer.
PAUSE_S = 0.5
#: Kind of an error: there is no server any more.
LOST_SERVER = "server lost"
#: In the message of an error: the server is gone, not the kernel wrong.
LOST = ("socket", "closed", "connection", "reset", "broken pipe", "recv", "rpc", "terminated", "eof")


@dataclass(frozen=True)
class Tracker:
    """A tracker, and the key of the servers that are wanted.

    Examples
    --------
    >>> Tracker.of("board.local:9190", "rpi4").port
    9190
    """

    host: str
    port: int
    key: str

    @classmethod
    def of(cls, tracker: str | None, key: str | None) -> Tracker | None:
        """Return what a user gave as host:port and key; None for neither."""
        if not tracker and not key:
            return None
        if not tracker or not key:
            missing = "--rpc-key" if tracker else "--rpc-tracker"
            raise UsageError("a tracker and a key go together", missing, "give --rpc-tracker HOST:PORT --rpc-key KEY")
        host, _, port = tracker.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"'{tracker}' is not HOST:PORT", "tracker", "give, say, 192.168.1.4:9190")
        return cls(host.strip("[]"), int(port), key)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}, key '{self.key}'"


@dataclass(frozen=True)
class Told:
    """Facts for a worker: the tracker, a folder for libraries, and the seconds that a session may last."""

    host: str
    port: int
    key: str
    folder: str
    session_s: float
    wait_s: float

    @classmethod
    def here(cls) -> Told:
        """Return what this process was told."""
        return cls(**json.loads(os.environ[VARIABLE]))


class RemotePool(Pool):
    """Workers whose candidates run elsewhere: they need not wait for each other."""

    remote = True

    @contextlib.contextmanager
    def alone(self, worker: Worker | None) -> Iterator[None]:
        """Stop nobody."""
        yield


def require_listening(host: str, port: int) -> None:
    """Raise ``OSError`` if nothing listens there: TVM itself would try for a minute."""
    with socket.create_connection((host, port), timeout=CONNECT_S):
        pass


def servers(tracker: Tracker) -> int:
    """Return how many servers a tracker has for the key.

    Raises
    ------
    MeasureError
        The tracker does not answer, or has none.
    """
    from tvm import rpc

    try:
        require_listening(tracker.host, tracker.port)
        summary = rpc.connect_tracker(tracker.host, tracker.port).summary()
    except Exception as error:  # whatever TVM raises of a connection
        raise MeasureError(
            f"the RPC tracker does not answer: {error}", str(tracker), "start it: python -m tvm.exec.rpc_tracker",
            "server",
        ) from error  # fmt: skip
    infos = [info for info in summary.get("server_info", []) if info.get("key") == f"server:{tracker.key}"]
    waiting = summary.get("queue_info", {}).get(tracker.key, {}).get("free", 0)
    count = max(len(infos), int(waiting))
    if not count:
        known = ", ".join(sorted(summary.get("queue_info", {}))) or "none"
        raise MeasureError(
            f"the RPC tracker has no server of this key (it has: {known})", str(tracker),
            "start one: python -m tvm.exec.rpc_server --tracker HOST:PORT --key KEY", "server",
        )  # fmt: skip
    return count


def request(tracker: Tracker, wait_s: float | None = None, session_s: float = 0.0) -> Any:
    """Return a session with one of a tracker's servers, waited for: a restart may be under way.

    Parameters
    ----------
    session_s : float
        Seconds after which the server ends the session; 0 for never.

    Raises
    ------
    MeasureError
        There is no server for so long.
    """
    from tvm import rpc

    wait_s = WAIT_S if wait_s is None else wait_s
    end = time.monotonic() + wait_s
    while True:
        try:
            servers(tracker)  # without one the request would never end
            connected = rpc.connect_tracker(tracker.host, tracker.port)
            return connected.request(tracker.key, session_timeout=session_s, max_retry=1)
        except Exception as error:  # whatever TVM raises of a connection
            if time.monotonic() > end:
                what, remedy = f"no server within {wait_s:g} s: {last_line(error)}", "start one, or look at its log"
                raise MeasureError(what, str(tracker), remedy, LOST_SERVER) from error
        time.sleep(PAUSE_S)


def is_lost(error: BaseException) -> bool:
    """Return whether an error tells of a lost connection.

    Examples
    --------
    >>> is_lost(RuntimeError("rpc: Connection reset by peer")), is_lost(ValueError("a shape does not fit"))
    (True, False)
    """
    return any(word in str(error).lower() for word in LOST)


@contextlib.contextmanager
def remote_pool(
    tracker: Tracker, threads: int, limits: Limits, count: int | None = None, module: str = MODULE,
    wait_s: float = WAIT_S,
) -> Iterator[tuple[RemotePool, Limits]]:  # fmt: skip
    """Yield workers for a tracker's servers, one each, and the limits with the time that sending takes."""
    found = servers(tracker)
    with work_folder() as folder:
        told = Told(tracker.host, tracker.port, tracker.key, folder, limits.run_s + SEND_S, wait_s)
        with variable(VARIABLE, json.dumps(asdict(told))), RemotePool(count or found, threads, module) as pool:
            # Two attempts, each after a wait.
            yield pool, replace(limits, run_s=2 * (limits.run_s + SEND_S + wait_s))

