"""Worker processes: what they leave behind, and what a fault of one does to the others' calls. No TVM."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from roller_tvm.errors import MeasureError
from roller_tvm.tuning.remote import RemotePool
from roller_tvm.tuning.supervise import Pool, Worker

MODULE = "tests.tuning.plain_worker"

#: Starts two workers, tells their numbers, stops one, leaves the other in a call that never ends.
PARENT = f"""
import signal, sys, time
from roller_tvm.tuning.supervise import Pool
pool = Pool(2, 1, {MODULE!r})
pids = [w.call("hello", (), 60).value for w in pool.workers]
pool.workers[0].send("echo", ("late", 600.0), 600)
pool.workers[1].signal(signal.SIGSTOP)
print(*pids, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path])


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux ties processes to their parent")
def test_no_worker_outlives_a_tuner_that_was_killed():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment)
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(map(alive, pids))
    parent.kill()
    parent.wait()
    end = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, pids)), "one in a call without end, one stopped"


@pytest.mark.parametrize("measuring", [False, True])
def test_four_servers_work_at_the_same_time_while_one_measures_too(measuring):
    """Of builds that sleep four are under way at once: a server more takes its share of the time away."""
    with RemotePool(4, 1, MODULE) as pool:
        pool.start()
        assert all(worker.call("hello", (), 60).ok for worker in pool.workers)
        with pool.alone(pool.workers[0]) if measuring else contextlib.nullcontext():
            naps = [reply.value for _, _, reply in pool.map([("nap", (0.3,), 60)] * 12)]
    under_way = [sum(began <= at < ended for began, ended in naps) for at, _ in naps]
    assert len(naps) == 12 and max(under_way) == 4


@pytest.mark.skipif(not os.path.exists("/proc/self/oom_score_adj"), reason="Linux")
def test_a_worker_goes_first_where_memory_runs_out():
    with Pool(1, 1, MODULE) as pool:
        assert pool.workers[0].call("score", (), 60).value == 1000


def test_a_failing_worker_leaves_no_reply_that_another_call_would_take():
    with Pool(2, 1, MODULE) as pool:
        slow, broken = pool.workers
        broken.prepare([("fail", (), 60.0)])
        with pytest.raises(MeasureError, match="fails at 'fail'"):
            pool.map([("echo", ("old", 1.0), 60.0), ("echo", ("never",), 60.0)])
        assert slow.call("echo", ("new",), 60).value == "new"


@pytest.mark.parametrize("where", ["_send", "_receive"])
def test_an_interrupted_call_leaves_no_reply_that_the_next_would_take(monkeypatch, where):
    """Ctrl-C as a call has been sent, or while it is waited for."""
    with Pool(1, 1, MODULE) as pool:
        (worker,) = pool.workers
        assert worker.call("echo", ("first",), 60).value == "first"
        own = getattr(worker, where)

        def interrupted(*args):
            if where == "_send":
                own(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(worker, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.call("echo", ("late",), 60)
        monkeypatch.undo()
        assert worker.call("echo", ("next",), 60).value == "next" and worker.generation == 2


def test_a_wall_clock_that_jumps_is_not_looked_at(monkeypatch):
    jumps = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
    with Pool(2, 1, MODULE) as pool:
        replies = pool.map([("echo", (n, 0.05), 30.0) for n in range(6)])
    assert [r.value for _, _, r in replies] == list(range(6))


def test_a_process_that_cannot_start_says_why(monkeypatch):
    def none_left(*args, **kwargs):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    worker = Worker(1, MODULE)
    monkeypatch.setattr(subprocess, "Popen", none_left)
    with pytest.raises(MeasureError, match="Cannot allocate memory") as caught:
        worker.call("hello", (), 60)
    assert caught.value.kind == "worker" and caught.value.remedy
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path])
    try:
        assert worker.call("hello", (), 60).ok, "and it is tried again"
    finally:
        worker.kill()


@pytest.mark.parametrize("number, told", [(signal.SIGKILL, "SIGKILL"), (signal.SIGILL, "that this CPU lacks")])
def test_a_crash_gives_the_signal_and_the_next_call_a_new_process(number, told):
    with Pool(1, 1, MODULE) as pool:
        (worker,) = pool.workers
        pid = worker.call("hello", (), 60).value
        worker.send("echo", ("x", 30.0), 60)
        os.kill(pid, number)
        reply = worker.receive()
        assert reply.kind == "crash" and told in reply.text
        assert worker.call("hello", (), 60).value != pid and worker.generation == 2


def test_a_worker_that_ended_while_idle_is_started_anew():
    """The kernel ends it with the thread that started it, though the process lives on."""
    import threading

    with Pool(1, threads=1, module="tests.tuning.plain_worker") as pool:
        worker = pool.workers[0]
        replies = []
        thread = threading.Thread(target=lambda: replies.append(worker.call("hello", (), 60)))
        thread.start()
        thread.join()
        if worker.process is not None:
            worker.process.kill()  # where the kernel does not
            worker.process.wait()
        assert replies[0].ok and not worker.alive
        assert worker.call("hello", (), 60).ok and worker.generation == 2
