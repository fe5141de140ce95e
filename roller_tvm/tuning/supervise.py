"""Worker processes that may crash or hang: each call has a time limit, and a dead worker is started again.

A process answers calls of functions over one pipe: ``(function, arguments)`` go in, ``(status, value)`` come out. It is
started with the pipe's file descriptor and its parent's process id, and ends in `main`. A crash or hang ends only it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import IO, TYPE_CHECKING, Any

from roller_tvm import errors
from roller_tvm.children import environment, python
from roller_tvm.errors import MeasureError
from roller_tvm.folders import check_space
from roller_tvm.tuning.lifeline import tie_to_parent

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

#: Seconds that a worker may take to start: it imports TVM, on a slow or busy machine.
START_S = 120.0
#: Module that a worker runs unless told otherwise.
WORKER = "roller_tvm.tuning.worker"

#: Name of a worker's function, its arguments, and a time limit in seconds.
Call = tuple[str, tuple[Any, ...], float]


@dataclass(frozen=True)
class Reply:
    """Outcome of a call: 'ok' with its value, or a kind of failure with its text."""

    kind: str
    value: Any = None
    text: str = ""

    @property
    def ok(self) -> bool:
        return self.kind == "ok"


class Worker:
    """One worker process. ``generation`` counts its starts; everything built by an earlier process is lost."""

    def __init__(self, threads: int, module: str = WORKER) -> None:
        self.threads = threads
        self.module = module
        self.generation = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log: Any = None
        self._greeted = False
        self._pending: tuple[str, float] | None = None
        self._setup: list[Call] = []
        self._is_set_up = False

    def prepare(self, calls: Sequence[Call]) -> None:
        """Set the calls to make before the next one, and again whenever the process is restarted."""
        self._setup, self._is_set_up = list(calls), False

    def start(self) -> None:
        """Start the process without waiting for it; restart it if it ended while idle."""
        if self.process is not None:
            if self._pending is not None or self.alive:
                return
            self.kill()  # as it dies with the thread that started it (see ``lifeline``)
        try:
            self._start()
        except OSError as error:  # no memory, too many files or processes
            raise MeasureError(
                f"a worker process cannot start: {error.strerror}", sys.executable,
                "free memory, files or processes", "worker",
            ) from error  # fmt: skip

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (kill closes it)
        self.process = spawn(
            ["-m", self.module, str(theirs.fileno()), str(os.getpid())], self._log, child_environment(self.threads),
            [theirs.fileno()])  # fmt: skip
        theirs.close()
        self._connection = Connection(ours.detach())
        self.generation += 1
        self._greeted = self._is_set_up = False
        with contextlib.suppress(OSError):  # it died just now: the first call says so
            self._connection.send(("hello", ()))

    @contextlib.contextmanager
    def _or_kill(self) -> Iterator[None]:
        """Kill the process if a call is interrupted, because the next call would receive its reply."""
        try:
            yield
        except MeasureError:
            raise
        except BaseException:  # an interrupt, or a reply that cannot be read
            self.kill()
            raise

    def send(self, function: str, args: Sequence[Any], limit_s: float) -> None:
        """Start a call; ``receive`` returns its reply."""
        with self._or_kill():
            self._set_up()
            self._send(function, args, limit_s)

    def _set_up(self) -> None:
        """Start the process if needed, wait for its greeting, and make the calls of `prepare`."""
        self.start()
        assert self._connection is not None
        if not self._greeted:
            reply = self._receive(START_S, "start")
            if not reply.ok:
                raise MeasureError(
                    f"a worker process cannot start: {reply.text}",
                    where=sys.executable,
                    remedy="run 'roller-tvm doctor'",
                    kind="worker",
                )
            self._greeted = True
        if not self._is_set_up:
            self._is_set_up = True
            for own, own_args, own_limit in self._setup:
                self._send(own, own_args, own_limit)
                reply = self.receive()
                if not reply.ok:
                    raise MeasureError(
                        f"a worker process fails at '{own}': {reply.text}",
                        kind=reply.kind,
                        remedy="leave this task to TVM's own schedule",
                    )

    def _send(self, function: str, args: Sequence[Any], limit_s: float) -> None:
        assert self._connection is not None
        self._pending = (function, time.monotonic() + limit_s)
        with contextlib.suppress(OSError):  # it died just now: receive says so
            self._connection.send((function, tuple(args)))

    def receive(self) -> Reply:
        assert self._pending is not None
        function, deadline = self._pending
        self._pending = None
        with self._or_kill():
            return self._receive(max(0.0, deadline - time.monotonic()), function)

    def call(self, function: str, args: Sequence[Any], limit_s: float) -> Reply:
        with self._or_kill():
            self.send(function, args, limit_s)
            return self.receive()

    def _receive(self, limit_s: float, function: str) -> Reply:
        assert self._connection is not None
        try:
            if not self._connection.poll(limit_s):
                self.kill()
                kind = "run timeout" if function == "run" else "build timeout"
                return Reply(kind, text=f"'{function}' took more than {limit_s:.1f} s")
            status, value = self._connection.recv()
        except (EOFError, OSError):
            told = self._obituary()
            check_space()  # LLVM ends a process that cannot write
            return Reply("crash", text=told)
        except Exception as error:  # a candidate wrote over the reply, or into the pipe
            self.kill()
            return Reply("crash", text=f"a reply that makes no sense ({type(error).__name__})")
        return Reply("ok", value) if status == "ok" else Reply(value[0], text=value[1])

    def _obituary(self) -> str:
        """Return how the process ended, with its last line of output."""
        assert self.process is not None
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            code = 0
        self._log.seek(0)
        told = obituary(code, self._log.read())
        self.kill()
        return told

    @property
    def alive(self) -> bool:
        """True if there is a process and it has not ended."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is None:
            return
        kill_session(self.process)
        if self._connection is not None:
            self._connection.close()
        self._log.close()
        self.process = self._connection = None
        self._pending = None

    @property
    def connection(self) -> Any:
        return self._connection

    @property
    def deadline(self) -> float:
        assert self._pending is not None
        return self._pending[1]


class Pool:
    """Workers, each with `threads` threads in TVM's pool; use it in a ``with`` statement.

    Parameters
    ----------
    count, threads : int
    module : str
        Module that a worker process runs; it ends in `main`.

    Examples
    --------
    >>> with Pool(2, 2) as pool:
    ...     pool.workers[0].call("hello", (), 60).ok
    True
    """

    def __init__(self, count: int, threads: int, module: str = WORKER) -> None:
        self.workers = [Worker(threads, module) for _ in range(max(1, count))]

    def start(self) -> None:
        """Start all workers now, so that they import TVM while the caller does something else."""
        for worker in self.workers:
            worker.start()

    def map(self, calls: Sequence[Call]) -> list[tuple[Worker, int, Reply]]:
        """Make all calls, each by the next free worker.

        Returns
        -------
        list of (worker, generation, reply)
            Replies in the order of the calls; a worker's state from a call is lost when its generation changes.
        """
        results: list[tuple[Worker, int, Reply] | None] = [None] * len(calls)
        todo = list(reversed(range(len(calls))))
        busy: dict[int, tuple[int, Worker]] = {}
        try:
            self._map(calls, todo, busy, results)
        except BaseException:  # an interrupt, or whatever a reply raises
            for _, worker in busy.values():  # the next call would receive the pending reply
                worker.kill()
            raise
        return [r for r in results if r is not None]

    def _map(
        self,
        calls: Sequence[Call],
        todo: list[int],
        busy: dict[int, tuple[int, Worker]],
        results: list[tuple[Worker, int, Reply] | None],
    ) -> None:
        while todo or busy:
            for number, worker in enumerate(self.workers):
                if todo and number not in busy:
                    job = todo.pop()
                    worker.send(*calls[job])
                    busy[number] = (job, worker)
            limit = min(w.deadline for _, w in busy.values())
            ready = wait([w.connection for _, w in busy.values()], max(0.0, limit - time.monotonic()))
            for number, (job, worker) in list(busy.items()):
                if worker.connection in ready or worker.deadline <= time.monotonic():
                    generation = worker.generation
                    results[job] = (worker, generation, worker.receive())
                    del busy[number]

    @contextlib.contextmanager
    def alone(self, worker: Worker | None) -> Iterator[None]:
        """Stop all other workers while this one, or something else, measures: TVM's idle threads spin for 0.1 s."""
        others = [w for w in self.workers if w is not worker]
        for other in others:
            other.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for other in others:
                other.signal(signal.SIGCONT)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def child_environment(threads: int) -> dict[str, str]:
    """Return the environment of a process that finds the modules that this one finds, with so many threads in TVM."""
    return {"TOPHUB_LOCATION": "NONE", **environment({"TVM_NUM_THREADS": str(threads)})}


def spawn(
    words: Sequence[str], log: IO[bytes], env: dict[str, str], inherited: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start an interpreter that inherits file descriptors.

    It leads a session of its own: Ctrl-C is for the parent to handle, and killing the session kills what it started.
    """
    return subprocess.Popen(
        python(*words), pass_fds=inherited, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True)  # fmt: skip


def kill_session(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session, with all that it started, and wait for its end."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def obituary(code: int, log: bytes) -> str:
    """Return how a process ended, and the last line that it said.

    Examples
    --------
    >>> obituary(-9, b"so far so good"), obituary(3, b"")
    ('SIGKILL so far so good', 'exit code 3')
    """
    how = f"exit code {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-code).name
    if how == "SIGILL":
        how += " (the target has instructions that this CPU lacks)"
    return " ".join([how, *log.decode(errors="replace").strip().splitlines()[-1:]])[:300]


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
        except Exception as error:  # whatever TVM raises; the trace goes to the process's log
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
