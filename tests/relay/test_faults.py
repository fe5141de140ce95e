"""Tuning that is killed, doubled, or given candidates from hell: what was recorded stands, what is wrong never is."""

import os
import signal
import subprocess
import sys
import time
import warnings

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import auto_scheduler  # noqa: E402

from roller_tvm.relay.measure import Limits, Measurer  # noqa: E402
from roller_tvm.relay.pool import Pool  # noqa: E402
from roller_tvm.relay.records import read_kept, read_records  # noqa: E402

from .test_measure import states, task  # noqa: E402, F401

TUNE = """
import json, sys
from tests.relay.small_model import model
from roller_tvm.relay import tune
from roller_tvm.relay.measure import Limits

mod, params = model()
result = tune(mod, params, "llvm -num-cores 2", sys.argv[1], trials=1, limits=Limits(margin=1.0))
print(json.dumps([t.status for t in result.tasks]))
"""


def tuner(log):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    return subprocess.Popen([sys.executable, "-c", TUNE, str(log)], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def finished(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out.strip().splitlines()[-1]


def readable(log):
    """Records as a plain TVM reads them, each whole."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = read_records(log)
    plain = list(auto_scheduler.RecordReader(str(log)))
    assert [i.task.workload_key for i, _ in plain] == [r.workload_key for r in ours]
    return {r.workload_key for r in ours}


@pytest.mark.slow
@pytest.mark.nightly
def test_killed_whenever_a_record_comes_and_resumed_to_the_end(tmp_path):
    log = tmp_path / "r.json"
    before = set()
    for _ in range(2):
        process = tuner(log)
        size = log.stat().st_size if log.exists() else 0
        while process.poll() is None and (not log.exists() or log.stat().st_size == size):
            time.sleep(0.0005)
        process.kill()
        process.communicate()
        now = readable(log)
        assert before <= now
        before = now
    told = finished(tuner(log))
    assert before <= readable(log)
    assert told.count("resumed") + told.count("fallback") >= len(before) and "measured" in told + str(before)
    assert auto_scheduler.ApplyHistoryBest(str(log)).best_by_targetkey["cpu"]


@pytest.mark.slow
@pytest.mark.nightly
def test_two_tuners_of_one_file_share_the_work(tmp_path):
    log = tmp_path / "r.json"
    told = [finished(process) for process in [tuner(log), tuner(log)]]
    keys = [r.workload_key for r in read_records(log)]
    assert len(keys) == len(set(keys)) == len(readable(log)), "no task was tuned twice"
    shared = sum(text.count("resumed") for text in told)
    assert shared + 2 * len(read_kept(log)) >= len(keys), told


@pytest.mark.slow
@pytest.mark.nightly
def test_no_candidate_stops_the_others_or_is_believed(task, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path])
    with Pool(2, threads=1, module="tests.relay.hostile_worker") as pool:
        limits = Limits(run_s=5.0, build_s=8.0)  # a busy machine is not a hang
        tiles = (2, 4, 8, 16, 32, 64, 3, 5, 6)
        result = Measurer(pool, limits).measure(task, states(task, tiles))
    kinds = [o.kind for o in result.outcomes]
    assert kinds == ["ok", "crash", "ok", "crash", "crash", "run timeout", "crash", "build timeout", "ok"]
    texts = [o.text for o in result.outcomes]
    assert "SIGKILL" in texts[1] and "exit code 0" in texts[4] and "SIGKILL" in texts[6]
    assert "makes no sense" in texts[3]
    assert kinds[result.winner] == "ok" and result.outcomes[result.winner].checked


@pytest.mark.parametrize("trials", [0, 2])
def test_nothing_that_is_wrong_is_recorded(tmp_path, monkeypatch, trials):
    from roller_tvm.errors import NothingTuned
    from roller_tvm.relay import tune

    from .small_model import model

    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path])
    log = tmp_path / "r.json"
    mod, params = model()
    with pytest.raises(NothingTuned, match="wrong answer") as caught:
        tune(mod, params, "llvm -num-cores 2", log, trials, tasks=[0, 2], top=2, worker="tests.relay.lying_worker")
    assert read_records(log) == [] and not read_kept(log) and "doctor" in caught.value.remedy


def test_no_space_for_the_reference_is_a_reason(task, monkeypatch, tmp_path):  # noqa: F811
    from roller_tvm.errors import MeasureError

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def measure(pool):
        real = pool.workers[0].call

        def call(function, args, limit_s):
            if function == "make_reference":
                args = (args[0], "/dev/full/no")  # where nothing can be written
            return real(function, args, limit_s)

        monkeypatch.setattr(pool.workers[0], "call", call)
        return Measurer(pool).measure(task, states(task, (8,)))

    with Pool(1, threads=1) as pool, pytest.raises(MeasureError, match="no reference to check against") as caught:
        measure(pool)
    assert caught.value.remedy


def test_the_drop_in_s_records_survive_as_ours_do(task, tmp_path):  # noqa: F811
    """Killed between the two steps of a write, as test_records_killed does to ours."""
    from roller_tvm import auto_scheduler as ours
    from roller_tvm.relay import records

    log = tmp_path / "r.json"
    pairs = [(ours.MeasureInput(task, s), ours.MeasureResult([0.5], 0, "", 0.1, 17)) for s in states(task, (4, 8))]
    write = ours.RecordToFile(str(log))
    write.callback(None, *zip(*pairs, strict=True))
    process = os.fork()
    if not process:
        records._set_firsts = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write.callback(None, *zip(*pairs, strict=True))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    assert len(list(auto_scheduler.RecordReader(str(log)))) == len(read_records(log)) == 2
    write.callback(None, *zip(*pairs, strict=True))
    assert len(list(auto_scheduler.RecordReader(str(log)))) == 4
