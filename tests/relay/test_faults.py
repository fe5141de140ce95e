"""Tuning that is killed or doubled: what was recorded stands."""

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

from roller_tvm.relay.records import read_kept, read_records  # noqa: E402

from .test_measure import states, task  # noqa: E402, F401

TUNE = """
import json, sys
from tests.relay.small_model import model
from roller_tvm.relay import tune
from roller_tvm.tuning.session import Limits

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
