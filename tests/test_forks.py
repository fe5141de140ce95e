"""Processes of tests end with the test run, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.relax  # once is enough

# A test run with a process of its own that never ends, and what it has started.
RUN = """
import sys, time
from tests import forks
forks.start(["-c", "import time; print(1, flush=True); time.sleep(600)"], 0, 1, 2, new_session=True)
time.sleep(600)
"""


def forks_of(parent):
    """The processes of tests/forks.py that work for `parent`: its server, and the server's forks."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if len(words) > 3 and words[1].endswith(b"tests/forks.py") and words[3] == str(parent).encode():
            found.append(int(path.parent.name))
    return found


def test_a_killed_run_leaves_no_process():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    run = subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env)
    try:
        assert run.stdout.readline() == b"1\n"
        assert len(forks_of(run.pid)) == 2
        run.kill()
        run.wait()
        until = time.monotonic() + 30
        while (left := forks_of(run.pid)) and time.monotonic() < until:
            time.sleep(0.01)
        assert not left
    finally:
        for pid in forks_of(run.pid):
            os.kill(pid, signal.SIGKILL)
        run.kill()
        run.stdout.close()
        run.wait()
