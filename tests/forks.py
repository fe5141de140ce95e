"""Python processes that find TVM imported: forks of a server, in milliseconds where an interpreter takes a second.

`start` and `run` take the words that follow ``python`` (``-m module`` or ``-c code``). A fork differs from a new
interpreter in the modules that it already has, so tests of importing and of the command itself start the latter.
"""

import atexit
import ctypes
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from functools import lru_cache

# Of Linux: a signal when the parent dies; orphans become children of this process.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None).prctl


class Forked:
    """A process that a server has forked and left to this one: a ``subprocess.Popen``, as far as it is asked for."""

    def __init__(self, pid, args):
        self.pid, self.args, self.returncode = pid, args, None

    def _collect(self, options):
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def poll(self):
        return self._collect(os.WNOHANG) if self.returncode is None else self.returncode

    def wait(self, timeout=None):
        if self.returncode is None and timeout is not None:
            handle = os.pidfd_open(self.pid)
            try:
                if not select.select([handle], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout)
            finally:
                os.close(handle)
        return self._collect(0) if self.returncode is None else self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


@lru_cache(maxsize=1)
def _server():
    """Start the server; it ends with this process."""
    ours, theirs = socket.socketpair()
    words = [sys.executable, __file__, str(theirs.fileno()), str(os.getpid())]
    path = os.pathsep.join(dict.fromkeys(map(os.path.abspath, sys.path)))
    subprocess.Popen(words, pass_fds=[theirs.fileno()], start_new_session=True, env={**os.environ, "PYTHONPATH": path})
    theirs.close()
    return ours


def start(words, stdin, stdout, stderr, pass_fds=(), env=None, cwd=None, new_session=False):
    """Start a process; the streams are file descriptors, `pass_fds` keep their numbers."""
    server = _server()
    what = {"words": list(words), "env": dict(os.environ if env is None else env), "cwd": str(cwd or os.getcwd()),
            "fds": [0, 1, 2, *pass_fds], "session": new_session}  # fmt: skip
    data = json.dumps(what).encode()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        socket.send_fds(server, [len(data).to_bytes(4, "big")], [stdin, stdout, stderr, *pass_fds])
        server.sendall(data)
        return Forked(int.from_bytes(server.recv(4, socket.MSG_WAITALL), "big"), words)
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def run(words, env=None, cwd=None, timeout=120):
    """Run a process to its end; return a ``subprocess.CompletedProcess`` with its output as text."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as nothing:
        process = start(words, nothing.fileno(), out.fileno(), err.fileno(), env=env, cwd=cwd)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        texts = [(file.seek(0), file.read().decode(errors="replace"))[1] for file in (out, err)]
    return subprocess.CompletedProcess(words, code, *texts)


def _serve(connection, parent):
    """Fork as asked, until the parent is gone. A fork of a fork is an orphan, which the parent takes."""
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    while handle not in select.select([connection, handle], [], [])[0]:
        if not (head := socket.recv_fds(connection, 4, 16))[0]:
            return
        size, fds = int.from_bytes(head[0], "big"), head[1]
        asked = json.loads(connection.recv(size, socket.MSG_WAITALL))
        reads, writes = os.pipe()
        if (between := os.fork()) == 0:
            if os.fork():
                os._exit(0)
            if asked["session"]:  # before anybody who knows it kills the session
                os.setsid()
            os.write(writes, os.getpid().to_bytes(4, "big"))
            os.close(reads)
            os.close(writes)
            connection.close()
            _become(asked, fds, parent, handle)
        os.close(writes)
        for fd in fds:
            os.close(fd)
        pid = os.read(reads, 4)
        os.close(reads)
        os.waitpid(between, 0)
        connection.sendall(pid)


def _become(asked, fds, parent, handle):
    """Be the process that was asked for, to its end or to the parent's."""
    while os.getppid() != parent:
        if select.select([handle], [], [], 0.0005)[0]:
            os._exit(1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # of this parent: the one before has ended
    if select.select([handle], [], [], 0)[0]:
        os._exit(1)
    os.close(handle)
    above = max([*fds, *asked["fds"]]) + 1
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds]  # out of the way of the numbers asked for
    for fd, number in zip(fds, asked["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(asked["env"])
    tempfile.tempdir = None  # it follows from the environment
    os.chdir(asked["cwd"])
    here = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    first = [] if "PYTHONSAFEPATH" in os.environ else [asked["cwd"]]
    sys.path[:] = [*first, *here, *(p for p in sys.path if p not in here)]
    kind, what, *rest = asked["words"]
    code = 1
    try:
        sys.argv = ["-c" if kind == "-c" else what, *rest]
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # as Python ends a process that raises
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if "PYTHONSAFEPATH" not in os.environ:
        sys.path.pop(0)  # the tests' folder
    from roller_tvm.tuning.line import this_line, worker_side
    from tests import llvm_level

    this_line()
    worker_side().warm_up()
    llvm_level.stand_before_llvm()
    gc.set_threshold(100_000, 50, 100)
    gc.freeze()  # a collection would write to all memory, and so copy it
    _serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
