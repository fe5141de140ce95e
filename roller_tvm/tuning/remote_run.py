"""A model's runs on a server of TVM's RPC tracker; a lost server is replaced, and the library sent again.

The server needs TVM's runtime and no compiler: models are built and linked here.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import MeasureError, UsageError, last_line
from ..explore.dispatch import CHOOSE, READ, Table, seconds_of
from ..folders import work_folder
from .line import worker_side
from .remote import LOST_SERVER, Tracker, is_lost, remote_pool, request, servers
from .session import Limits
from .supervise import Pool

Result = TypeVar("Result")

#: Module of the workers that check a library's kernels.
MODULE = "roller_tvm.tuning.remote_linked"
#: TVM's function that sets the size of a thread pool, and its mode: fastest cores first.
_CONFIGURE, _BIG_CORES = "runtime.config_threadpool", 1
#: Names of the files of a session.
_NUMBERS = itertools.count()


def no_server(kind: str) -> UsageError:
    """Return the error for kernels of a GPU: events there are read in the process that runs the model."""
    return UsageError(f"is for {kind}, servers explore on CPUs", "tracker", "explore on that machine itself, or tune")


class Server:
    """A server, held from its first use until `close`.

    Parameters
    ----------
    tracker : Tracker

    Raises
    ------
    MeasureError
        The tracker does not answer, or has no server of the key.

    Attributes
    ----------
    turn : int
        Number of servers held so far: what was sent to earlier ones is lost.
    """

    def __init__(self, tracker: Tracker) -> None:
        servers(tracker)
        self.tracker, self.turn = tracker, 0
        self._session: Any = None
        self._threads = 0

    @property
    def session(self) -> Any:
        """The session with it."""
        if self._session is None:
            self._session = request(self.tracker)
            self.turn += 1
            self._configure()
        return self._session

    @property
    def device(self) -> Any:
        """Its CPU."""
        return self.session.cpu(0)

    def use_threads(self, count: int) -> int:
        """Have its kernels run on `count` threads; it has no more than it was started with."""
        self._threads = count
        self.retried(self._configure)
        return count

    def _configure(self) -> None:
        if self._threads:
            self.session.get_function(_CONFIGURE)(_BIG_CORES, self._threads)

    def retried(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call that uses it, made once more on another server if it is lost.

        Raises
        ------
        MeasureError
            That one is lost too.
        """
        for last in (False, True):
            try:
                return call()
            except Exception as error:  # whatever TVM raises of a connection
                if not is_lost(error) or isinstance(error, MeasureError):
                    raise
                if last:
                    what, remedy = f"servers are lost: {last_line(error)}", "look at their logs; the same call goes on"
                    raise MeasureError(what, str(self.tracker), remedy, LOST_SERVER) from error
            self._session = None
        raise AssertionError

    def close(self) -> None:
        """Free it for others."""
        self._session = None

    @contextlib.contextmanager
    def checkers(self, threads: int) -> Iterator[Pool]:
        """Yield workers that check kernels on the tracker's servers, each in a session of its own."""
        self.close()
        with remote_pool(self.tracker, threads, Limits(), module=MODULE) as (pool, _):
            yield pool


class Sent:
    """A library on a server.

    Parameters
    ----------
    server : Server
    library : path
        It has to be there as long as this is used.
    folder : TemporaryDirectory, optional
        Of the library: kept with it.
    """

    def __init__(
        self, server: Server, library: Path, folder: tempfile.TemporaryDirectory[str] | None = None
    ) -> None:
        self.server, self.library, self._folder = server, library, folder
        self._name = f"{next(_NUMBERS)}.so"  # a file that is loaded must not be written to
        self._turn, self._module, self._opened = 0, None, None
        #: Called after each sending.
        self.when_sent: list[Callable[[], None]] = []

    @property
    def module(self) -> Any:
        """The loaded library."""
        session = self.server.session
        if self._turn != self.server.turn:
            session.upload(str(self.library), self._name)
            self._turn, self._module, self._opened = self.server.turn, session.load_module(self._name), None
            for call in self.when_sent:
                call()
        return self._module

    def opened(self, make: Callable[[Any, Any], Any]) -> Any:
        """Return what `make` has made of the loaded library and the server's CPU, once for each sending."""
        module = self.module
        if self._opened is None:
            self._opened = make(module, self.server.device)
        return self._opened


def written_for(server: Server, write: Callable[[Path], Any]) -> Sent:
    """Return a library that `write` writes into a temporary file."""
    folder = work_folder()
    write(path := Path(folder.name, "model.so"))
    return Sent(server, path, folder)


class SentTable(Table):
    """The table of a library on a server.

    Parameters
    ----------
    sent : Sent
    count : int
        Number of sites.
    """

    def __init__(self, sent: Sent, count: int) -> None:
        self._sent, self._variants = sent, [0] * count
        sent.when_sent.append(self._write)

    def choose(self, variants: Sequence[int]) -> None:
        self._variants = list(variants)
        self._sent.server.retried(self._write)

    def _write(self) -> None:
        values = np.asarray(self._variants, "int32")
        self._sent.module[CHOOSE](worker_side().tensor(values, self._sent.server.device))

    @property
    def chosen(self) -> list[int]:
        return list(self._variants)

    def seconds(self) -> list[float]:
        return self._sent.server.retried(self._read)

    def _read(self) -> list[float]:
        room = worker_side().tensor(np.zeros((2, len(self._variants)), "int64"), self._sent.server.device)
        self._sent.module[READ](room)
        return seconds_of(*room.numpy().tolist())
