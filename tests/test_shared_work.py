"""Work on all cores by forks: the same results whatever becomes of the forks, and no process left behind."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from roller_tvm import forks
from roller_tvm.disk_cache import DiskCache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache, in a process that may fork: two cores, no other thread."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(forks, "LONG_S", 0.0)
    return DiskCache(tmp_path / "work.sqlite", "results", "made again", 2**20, lambda: "1")


def kept(cache, made):
    """Return a function that looks into the cache first, and the processes that made something."""

    def function(item):
        if (known := cache.get(str(item))) is not None:
            return int(known.partition(b" ")[0])
        value = made(item)
        cache.put(str(item), f"{value} {os.getpid()}".encode())
        return value

    return function


def makers(cache, items):
    return {int(cache.get(str(item)).partition(b" ")[2]) for item in items}


def children():
    """Processes of which this one is the parent, waited for or not."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(stat.parent.name)
    return found


@pytest.fixture(autouse=True)
def no_child():
    """No fork is left behind; other tests may have left a server."""
    before = children()
    yield
    assert children() <= before


def test_each_item_is_made_once_in_order_of_the_items(cache, tmp_path):
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def square(item):
        os.write(log, f"{item}\n".encode())
        time.sleep(0.01)
        return item * item

    assert forks.shared(kept(cache, square), range(20), cache) == [n * n for n in range(20)]
    os.close(log)
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(20))
    assert len(makers(cache, range(20))) == 2


@pytest.mark.parametrize("end", ["raises", "is killed", "hangs"])
def test_what_a_fork_does_not_make_is_made_here(cache, monkeypatch, end):
    here = os.getpid()
    monkeypatch.setattr(forks, "PATIENCE_S", 0.2)

    def made(item):
        if os.getpid() != here:
            if end == "raises":
                raise ValueError("in a fork")
            if end == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        time.sleep(0.005)
        return -item

    assert forks.shared(kept(cache, made), range(8), cache) == [-n for n in range(8)]
    assert makers(cache, range(8)) == {here}


def test_an_error_is_told_by_this_process(cache):
    def made(item):
        if item == 5:
            raise ValueError("no result")
        return item

    with pytest.raises(ValueError, match="no result"):
        forks.shared(kept(cache, made), range(8), cache)


def test_ctrl_c_ends_the_forks(cache):
    here = os.getpid()

    def made(item):
        if os.getpid() != here:
            time.sleep(60)
        elif item:
            raise KeyboardInterrupt
        return item

    with pytest.raises(KeyboardInterrupt):
        forks.shared(kept(cache, made), range(8), cache)


@pytest.mark.parametrize("why", ["one core", "another thread", "no cache", "a cache that cannot be written"])
def test_no_fork_where_it_is_no_use_or_not_safe(cache, monkeypatch, why):
    forked = []
    monkeypatch.setattr(os, "fork", lambda: forked.append(1) or os._exit(1))
    if why == "one core":
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    if why == "another thread":
        monkeypatch.setattr(threading, "active_count", lambda: 2)
    if why == "a cache that cannot be written":
        cache.path.mkdir()
        with pytest.warns(RuntimeWarning, match="cannot be used"):
            cache.put("key", b"value")
    assert forks.shared(abs, [-1, -2, -3], None if why == "no cache" else cache) == [1, 2, 3]
    assert not forked


def test_what_the_cache_holds_needs_no_fork(cache, monkeypatch):
    monkeypatch.setattr(forks, "LONG_S", 10.0)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a fork"))
    assert forks.shared(kept(cache, abs), range(-3, 0), cache) == [3, 2, 1]


def test_a_function_that_ends_its_process(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert forks.deadly(lambda: os.kill(os.getpid(), signal.SIGSEGV)) == "SIGSEGV"
    assert forks.deadly(lambda: os._exit(3)) == "exit code 3" and forks.deadly(lambda: 1 / 0) == ""
