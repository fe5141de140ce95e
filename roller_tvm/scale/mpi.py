"""Ranks of MPI, by mpi4py: messages that are counted, and no wait without a limit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from ..children import python
from ..errors import RollerError, UsageError, last_line

#: Seconds that a rank waits for another one by default.
LIMIT = 60.0
#: Seconds in which a rank that waits gives its core away and looks again; then it sleeps between two looks.
AWAKE, NAP = 1e-3, 2e-4
#: Seconds between two looks for a farewell, and those that the others have to tell it before all ranks end.
LISTEN, GRACE = 0.1, 0.5
#: The largest tag that every MPI has, of the message of a rank that gives up.
FAREWELL = 32767
OTHERS = "look at the other ranks' output"
#: Variables that launchers of MPI set for a rank.
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
LOCAL = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
#: Bytes in which a rank tells what it has.
_TOLD = 1 << 12
INSTALL = "pip install 'roller-tvm[mpi]'"


class NoMpi(RollerError):
    """Several machines were asked for, and mpi4py or a library of MPI is not installed."""


class RankError(RollerError):
    """A rank is gone or late."""


class Disagreement(RankError):
    """A rank has a fault, or something else than the others; all ranks raise it at the same time."""


def library() -> ModuleType:
    """Return mpi4py's MPI, initialised.

    Raises
    ------
    NoMpi
        mpi4py, or a library of MPI, is not installed.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        told = "several machines need mpi4py and a library of MPI"
        raise NoMpi(f"{told}: {last_line(error)}", "mpi", INSTALL) from error
    return MPI


def launched() -> bool:
    """Return True in a process that mpirun has started."""
    return any(name in os.environ for name in LAUNCHED)


def ranks_here() -> int:
    """Return how many ranks run on this machine, as the launcher tells."""
    return next((int(os.environ[name]) for name in LOCAL if os.environ.get(name, "").isdigit()), 1)


def launcher() -> str:
    """Return the mpirun beside this Python, else that of the path.

    Raises
    ------
    NoMpi
        There is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.is_file() else shutil.which("mpirun")
    if found is None:
        raise NoMpi("there is no mpirun", "mpi", INSTALL)
    return found


def command(ranks: int, *words: str) -> list[str]:
    """Return the command that starts so many ranks of `python -m WORDS` on this machine."""
    mpirun = launcher()
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    # Its fault tolerance (ULFM) would tell ranks that live of one that does not, but mpirun itself may then never end.
    options = ["--map-by", ":OVERSUBSCRIBE"] if re.search(r"Open ?MPI", version) else []
    return [mpirun, *options, "-n", str(ranks), *python("-m", *words)]


class Ranks:
    """All ranks, seen from one of them.

    Parameters
    ----------
    limit : float
        Seconds that it waits for another rank.

    Attributes
    ----------
    rank, count : int
    sent, received : int
        Bytes of messages so far, as MPI took and gave them.
    """

    def __init__(self, limit: float = LIMIT) -> None:
        self.mpi = library()
        self.comm = self.mpi.COMM_WORLD
        self.rank, self.count, self.limit = self.comm.Get_rank(), self.comm.Get_size(), limit
        self.sent = self.received = 0

    @property
    def name(self) -> str:
        return f"rank {self.rank} of {self.count}"

    def send(self, array: Any, peer: int, tag: int) -> Any:
        """Start to send an array; the request keeps it."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.sent += data.nbytes
        return self._asked(lambda: (self.comm.Isend([data, self.mpi.BYTE], peer, tag), data), peer)

    def receive(self, array: Any, peer: int, tag: int) -> Any:
        """Start to receive into a contiguous array."""
        data = array.reshape(-1).view(np.uint8)
        return self._asked(lambda: (self.comm.Irecv([data, self.mpi.BYTE], peer, tag), data), peer)

    def _asked(self, make: Callable[[], Any], peer: int) -> Any:
        try:
            return make()
        except self.mpi.Exception as error:  # the other rank is gone
            raise self._dead([peer], error) from error

    def wait(self, pending: Sequence[tuple[int, Any]], what: str, received: bool = True) -> None:
        """Wait for requests, each with the rank at its other end.

        Raises
        ------
        RankError
            A rank is dead, or late: it names the ranks.
        """
        left = [(peer, *request) for peer, request in pending]
        start, status = time.monotonic(), self.mpi.Status()
        while left:
            still = []
            for peer, request, data in left:
                try:
                    done = request.Test(status)
                except self.mpi.Exception as error:  # the other rank is gone
                    raise self._dead([peer], error) from error
                if not done:
                    still.append((peer, request, data))
                elif received:
                    self.received += status.Get_count(self.mpi.BYTE)
            left = still
            waited = time.monotonic() - start
            if left and waited > self.limit:
                names = ", ".join(map(str, sorted({peer for peer, _, _ in left if peer >= 0})))
                told = f"{what}: nothing from {f'rank {names}' if names else 'another rank'} for {self.limit:g} s"
                raise RankError(told, self.name, "look at that rank; --time-limit SECONDS waits longer")
            if left:
                time.sleep(0 if waited < AWAKE else NAP)

    def _dead(self, peers: Sequence[int], error: BaseException) -> RankError:
        names = ", ".join(str(p) for p in peers if p >= 0) or "another"
        return RankError(f"rank {names} is gone: {last_line(error)}", self.name, "look at that rank's output")

    def told(self, value: Any) -> list[Any]:
        """Return what each rank tells here, by rank; all of them call it."""
        text = json.dumps(value).encode()
        if len(text) > _TOLD:
            text = json.dumps({"error": "too much to tell"}).encode()
        mine = np.zeros(_TOLD, np.uint8)
        mine[: len(text)] = np.frombuffer(text, np.uint8)
        all_of_them = np.zeros((self.count, _TOLD), np.uint8)
        request = self._asked(lambda: (self.comm.Iallgather(mine, all_of_them), (mine, all_of_them)), -1)
        self.wait([(-1, request)], "agreeing with the others", received=False)
        return [json.loads(row.tobytes().rstrip(b"\0")) for row in all_of_them]

    def agree(self, mine: Mapping[str, str], words: Mapping[str, str], remedy: str) -> None:
        """Check that all ranks have the same; otherwise each raises the same error.

        Parameters
        ----------
        mine : mapping
            'error' is a fault of this rank, '' for none.
        words : mapping of key to words
            In the order in which differences are told.

        Raises
        ------
        Disagreement
        """
        known = self.told(dict(mine))
        by_fault: dict[str, list[str]] = {}
        for rank, one in enumerate(known):
            if one.get("error"):
                by_fault.setdefault(one["error"], []).append(str(rank))
        faults = [f"rank {', '.join(of)}: {fault}" for fault, of in by_fault.items()]
        if faults:
            raise Disagreement("; ".join(faults), self.name, "mend that rank; no rank has started")
        for key, what in words.items():
            values = [one.get(key) for one in known]
            if len(set(values)) > 1:
                usual = max(values, key=values.count)
                others = ", ".join(str(rank) for rank, value in enumerate(values) if value != usual)
                told = f"{what}: that of rank {others} is not that of rank {values.index(usual)}"
                raise Disagreement(told, self.name, remedy)

    def leave(self, error: RollerError) -> None:
        """Print an error, tell the other ranks, and end them all; no rank waits for this one."""
        _say(error)
        text = np.frombuffer(error.one_line().encode()[:_TOLD], np.uint8).copy()
        # Abort itself may wait for a rank that is gone.
        threading.Timer(2 * GRACE, os._exit, [error.exit_code]).start()
        requests = []
        for peer in range(self.count):
            with contextlib.suppress(self.mpi.Exception):  # it is gone
                if peer != self.rank:
                    requests.append(self.comm.Isend([text, self.mpi.BYTE], peer, FAREWELL))
        time.sleep(GRACE)
        for request in requests:
            with contextlib.suppress(self.mpi.Exception):
                request.Test()
        self.comm.Abort(error.exit_code)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Have this rank say why it ends when another one gives up, or the launcher ends it, whatever it does."""

        def stop(number: int, frame: FrameType | None) -> None:
            _say(RankError("ended by the launcher, as another rank is gone or gave up", self.name, OTHERS))
            os._exit(RollerError.exit_code)

        done = threading.Event()

        def listen() -> None:
            status = self.mpi.Status()
            while not done.wait(LISTEN):
                with contextlib.suppress(self.mpi.Exception):  # of ranks that are gone, which the main thread tells
                    if self.comm.Iprobe(self.mpi.ANY_SOURCE, FAREWELL, status):
                        told = np.zeros(status.Get_count(self.mpi.BYTE), np.uint8)
                        self.comm.Recv([told, self.mpi.BYTE], status.Get_source(), FAREWELL)
                        reason = told.tobytes().decode(errors="replace")
                        _say(RankError(f"rank {status.Get_source()} gave up: {reason}", self.name, OTHERS))
                        os._exit(RollerError.exit_code)

        before = signal.signal(signal.SIGTERM, stop)
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            signal.signal(signal.SIGTERM, before)


def _say(error: RollerError) -> None:
    """Write an error in one piece: ranks share the terminal."""
    os.write(2, f"roller-tvm: error: {error.one_line()}\n".encode())


def check_ranks(ranks: Ranks, wanted: int, path: str) -> None:
    """Refuse another number of ranks than a package is for."""
    if ranks.count != wanted:
        told = f"is for {wanted} ranks, and {ranks.count} run"
        raise UsageError(told, path, f"mpirun -n {wanted} roller-tvm run {path} --mpi")
