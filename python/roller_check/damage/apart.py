"""Damaged inputs read in a forked process: one that ends by a signal, or hangs in C++, is a fault among others."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from .readers import Reader
from .rules import damaged
from .run import LIMIT_S, Tally, outcomes

#: Seconds after which the process is killed: a reader that is Python alone has ended itself before.
KILL_S = LIMIT_S + 5


def run_apart(reader: Reader, seeds: range, tally: Tally, until: float = float("inf")) -> Tally:
    """Damage a reader's file by each seed, each read in a forked process, until a time of the monotonic clock.

    TVM is imported and the whole file made before the first fork: a fork then costs milliseconds.
    """
    whole, left = reader.whole(), list(seeds)
    while left and time.monotonic() < until:
        ours, theirs = Pipe(duplex=False)
        pid = os.fork()
        if not pid:
            ours.close()
            _child(reader, whole, left, theirs, until)
        theirs.close()
        done = _collected(ours, tally)
        if done is None or not left:  # all were read
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return tally
        status = _ended(pid)
        left = left[done:]
        if left and time.monotonic() < until:
            seed = left.pop(0)
            rule, _ = damaged(whole, seed, reader.more)
            kind = "hang" if status == -signal.SIGKILL else "signal"
            text = f"more than {KILL_S:g} s" if kind == "hang" else f"the process ended with {status}"
            tally.count(seed, rule, kind, text)
    return tally


def _child(reader: Reader, whole: bytes, seeds: list[int], pipe: Connection, until: float) -> None:
    """Read damaged inputs and send what became of each; never returns."""
    try:
        log = os.open(os.devnull, os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"damaged{reader.suffix}")
            path.write_bytes(whole)
            with contextlib.suppress(Exception):  # modules that it imports are no part of an input's time
                reader.read(path)
            for told in outcomes(reader, whole, path, seeds, until):
                pipe.send(told)
        pipe.send(None)
    finally:
        os._exit(0)


def _collected(pipe: Connection, tally: Tally) -> int | None:
    """Count what a process sends; return how many inputs it read until it died, None if it came to the end."""
    count = 0
    while True:
        ready, _, _ = select.select([pipe], [], [], KILL_S)
        if not ready:
            return count
        try:
            told = pipe.recv()  # from our own fork
        except EOFError:
            return count
        if told is None:
            return None
        count += 1
        tally.count(*told)


def _ended(pid: int) -> int:
    """Return the status of a process that died or hangs: negative for a signal; SIGKILL is ours."""
    for _ in range(20):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGKILL
