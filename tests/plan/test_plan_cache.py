"""Plans kept on disk: the same as constructed ones, whatever happens to the file."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
import warnings
import zlib
from dataclasses import replace

import pytest

from roller_tvm import disk_cache
from roller_tvm.cli import main
from roller_tvm.codegen.kernel_cache import cache_in
from roller_tvm.device import load_device
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.ir.operators import matmul, operator
from roller_tvm.planner import construct, plan_cache
from roller_tvm.planner.plan_cache import NoCache, PlanCache
from roller_tvm.roller.features import Features

DEVICE = load_device("v100")
PRODUCT = matmul(m=64, n=64, k=64)


@pytest.fixture
def cache(tmp_path):
    return PlanCache(tmp_path / "plans")


@pytest.fixture
def counted(monkeypatch):
    """Operators that were constructed."""
    asked = []

    def counting(expression, *rest):
        asked.append(expression.name)
        return construct(expression, *rest)

    monkeypatch.setattr(plan_cache, "construct", counting)
    return asked


@pytest.mark.parametrize("device", ["v100", "h200", "cpu"])
def test_kept_plans_are_the_constructed_ones(cache, counted, device):
    for expression in (PRODUCT, operator("softmax", shape=(64, 100)), operator("relu", shape=(7, 9))):
        made = construct(expression, load_device(device), 4)
        for _ in range(2):
            kept = cache.construct(expression, load_device(device), 4)
            assert kept.plans == made.plans and (kept.eps, kept.considered) == (made.eps, made.considered)
    assert len(counted) == 3


def test_another_name_is_the_same_operator(cache, counted):
    cache.construct(PRODUCT, DEVICE, 2)
    again = cache.construct(replace(PRODUCT, name="other"), DEVICE, 2)
    assert again.best.plan.expression.name == "other" and len(counted) == 1


def test_what_decides_a_plan_is_part_of_its_key(cache, counted, monkeypatch):
    cache.construct(PRODUCT, DEVICE, 2)
    cache.construct(PRODUCT, DEVICE, 3)
    cache.construct(PRODUCT, load_device("a100"), 2)
    cache.construct(PRODUCT, load_device("a100"), 2, Features.of_tensor_ir(load_device("a100")))
    cache.construct(matmul(m=64, n=64, k=65), DEVICE, 2)
    assert len(counted) == 5
    monkeypatch.setattr(plan_cache, "version", lambda: "another")
    cache.construct(PRODUCT, DEVICE, 2)
    assert len(counted) == 6
    assert (cache.disk.contents().entries, cache.disk.contents().others) == (1, 4)


def test_a_refusal_is_kept_with_the_askers_name(cache, monkeypatch):
    asked = []

    def refuse(expression, device, *rest):
        asked.append(expression.name)
        raise UnsupportedOperator("no legal plan", f"{expression.name} on {device.name}", "none")

    monkeypatch.setattr(plan_cache, "construct", refuse)
    for name in ("first", "second"):
        with pytest.raises(UnsupportedOperator, match="no legal plan") as caught:
            cache.construct(replace(PRODUCT, name=name), DEVICE)
        assert caught.value.where == f"{name} on v100"
    assert asked == ["first"]


@pytest.mark.parametrize("damage", [b"", b"not a database" * 100, None])
def test_a_damaged_file_is_deleted_and_told(cache, counted, damage):
    made = cache.construct(PRODUCT, DEVICE, 2)
    if damage is None:  # a page of the middle
        held = bytearray(cache.disk.path.read_bytes())
        held[4096:8192] = bytes(4096)
        damage = bytes(held)
    cache.disk.path.write_bytes(damage)
    fresh = PlanCache(cache.disk.path.parent)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert fresh.construct(PRODUCT, DEVICE, 2).plans == made.plans
        assert fresh.construct(PRODUCT, DEVICE, 2).plans == made.plans
    assert len(counted) in (2, 3)
    if damage:
        assert any("damaged" in str(w.message) for w in told)


@pytest.mark.parametrize("value", [b"", b"x" * 20, "text", zlib.compress(b"{}")])
def test_a_damaged_entry_is_told_and_constructed_again(cache, counted, value):
    made = cache.construct(PRODUCT, DEVICE, 2)
    with sqlite3.connect(cache.disk.path) as db:
        db.execute("UPDATE kept SET value = ?", (value,))
    with pytest.warns(RuntimeWarning, match="a damaged entry, which is deleted; plans are constructed again"):
        assert cache.construct(PRODUCT, DEVICE, 2).plans == made.plans
    assert cache.construct(PRODUCT, DEVICE, 2).plans == made.plans
    assert len(counted) == 2


@pytest.mark.parametrize("value", [b"\xff", b"{}", b"[1]", b'{"plans": []}', b'{"plans": [{"plan": 1}]}'])
def test_an_entry_that_holds_no_plan_is_constructed_again(cache, counted, value):
    made = cache.construct(PRODUCT, DEVICE, 2)
    with sqlite3.connect(cache.disk.path) as db:
        ((key,),) = db.execute("SELECT key FROM kept").fetchall()
    cache.disk.put(key, value)
    assert cache.construct(PRODUCT, DEVICE, 2).plans == made.plans
    assert cache.construct(PRODUCT, DEVICE, 2).plans == made.plans
    assert len(counted) == 2


def test_an_entry_of_another_key_is_not_taken(cache, counted):
    made = [cache.construct(matmul(m=m, n=64, k=64), DEVICE, 1).best for m in (32, 64)]
    with sqlite3.connect(cache.disk.path) as db:
        db.execute("UPDATE kept SET value = (SELECT value FROM kept LIMIT 1)")
    with pytest.warns(RuntimeWarning, match="a damaged entry"):
        again = [cache.construct(matmul(m=m, n=64, k=64), DEVICE, 1).best for m in (32, 64)]
    assert again == made and len(counted) == 3


def test_every_flipped_byte_gives_the_plan_or_constructs_it(cache, monkeypatch):
    made = cache.construct(PRODUCT, DEVICE, 1)
    monkeypatch.setattr(plan_cache, "construct", lambda *_: made)  # once is enough
    with sqlite3.connect(cache.disk.path) as db, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (value,) = db.execute("SELECT value FROM kept").fetchone()
        for at in range(0, len(value), 7):
            flipped = bytearray(value)
            flipped[at] ^= 0x10
            db.execute("UPDATE kept SET value = ?", (bytes(flipped),))
            db.commit()
            assert cache.construct(PRODUCT, DEVICE, 1).plans == made.plans


def test_the_size_is_bounded(tmp_path):
    small = PlanCache(tmp_path / "plans", limit_bytes=64 * 1024)
    small.disk.contents()
    for n in range(1, 4 * disk_cache.LOOK_EVERY):
        small._put(f"{n}", {"filling": os.urandom(600).hex()})
    assert small.disk.path.stat().st_size < 64 * 1024 + disk_cache.LOOK_EVERY * 2048
    assert small._get(f"{n}") is not None and small._get("1") is None


def test_a_folder_of_others_is_not_used(tmp_path, counted):
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans").chmod(0o777)
    cache = PlanCache(tmp_path / "plans")
    with pytest.warns(RuntimeWarning, match="its folder: others may write to it"):
        cache.construct(PRODUCT, DEVICE, 1)
    cache.construct(PRODUCT, DEVICE, 1)
    assert len(counted) == 2 and not cache.disk.path.exists()


def test_no_folder_can_be_made(tmp_path, counted):
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        PlanCache(tmp_path / "file" / "plans").construct(PRODUCT, DEVICE, 1)
    assert len(counted) == 1


WRITER = textwrap.dedent(
    """
    import sys, pathlib
    from roller_tvm.planner.plan_cache import PlanCache
    cache = PlanCache(pathlib.Path(sys.argv[1]))
    for n in range(int(sys.argv[2])):
        cache._put(f"{sys.argv[3]}-{n}", {"number": n})
        if n == 0:
            print("begun", flush=True)
    """
)


def _writer(cache, count, name):
    words = [sys.executable, "-W", "error", "-c", WRITER, str(cache.disk.path.parent), str(count), name]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_processes_share_it(cache):
    writers = [_writer(cache, 200, name) for name in "abc"]
    assert [w.wait(60) for w in writers] == [0, 0, 0]
    assert cache.disk.contents().entries == 600
    assert all(cache._get(f"{name}-{n}") == {"number": n} for name in "abc" for n in range(200))


def test_a_killed_writer_leaves_whole_entries(cache):
    for round_ in range(3):
        writer = _writer(cache, 10**6, f"w{round_}")
        assert writer.stdout.readline() == "begun\n"
        time.sleep(0.02 * round_)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = PlanCache(cache.disk.path.parent)
        kept = found.disk.contents().entries
        assert kept >= 3 and all(found._get(f"w{n}-0") == {"number": 0} for n in range(3))


def test_the_variable_switches_it_off(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(plan_cache.VARIABLE, "off")
    assert isinstance(plan_cache.plan_cache(), NoCache)
    monkeypatch.delenv(plan_cache.VARIABLE)
    assert plan_cache.plan_cache().disk.path.parent == tmp_path / "roller_tvm"


def test_the_command_shows_and_clears(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(plan_cache.VARIABLE, raising=False)
    plan_cache.plan_cache().construct(PRODUCT, DEVICE, 1)
    cache_in(tmp_path / "roller_tvm").put("key", b"a kernel")
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert "1 plans of operators" in shown and "1 functions and kernels" in shown
    assert main(["cache", "--clear", "--json"]) == 0
    assert [found["entries"] for found in json.loads(capsys.readouterr().out)] == [0, 0]
