"""Tuning a small model from Relay to records, and what a user's plain TVM makes of them."""

import os
import subprocess
import sys

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402

from roller_tvm.errors import BadInput, RecordError, TargetError, UsageError  # noqa: E402
from roller_tvm.relay import build, tune  # noqa: E402
from roller_tvm.relay.records import read_kept, read_records  # noqa: E402
from roller_tvm.tuning import results  # noqa: E402
from roller_tvm.tuning.selection import select  # noqa: E402
from roller_tvm.tuning.session import Limits  # noqa: E402

from .small_model import model, run  # noqa: E402

TARGET = "llvm -num-cores 2"
#: TVM's own kernel never stays for being faster: which one is, on operators this small, is chance.
OURS = Limits(margin=1.0)

PLAIN_TVM = """
import sys
import numpy as np
import tvm
from small_model import model, run
from tvm import auto_scheduler, relay

mod, params = model()
states = []
query = auto_scheduler.ApplyHistoryBest._query_inside
def spy(self, *args):
    found = query(self, *args)
    states.append(found is not None)
    return found
auto_scheduler.ApplyHistoryBest._query_inside = spy
with auto_scheduler.ApplyHistoryBest(sys.argv[1]):
    with tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}):
        lib = relay.build(mod, "llvm -num-cores 2", params=params)
assert "roller_tvm" not in sys.modules
np.save(sys.argv[2], run(lib))
print(sum(states))
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    log = tmp_path_factory.mktemp("tuned") / "records.json"
    mod, params = model()
    lines = []
    result = tune(mod, params, TARGET, log, trials=2, progress=lambda t, n: lines.append(results.row(t)), limits=OURS)
    return result, log, lines


@pytest.fixture(scope="module")
def expected():
    mod, params = model()
    return run(build(mod, params, TARGET, schedules="tvm"))


def test_every_task_has_a_record_or_a_reason(tuned):
    result, log, lines = tuned
    assert len(lines) == len(result.tasks) >= 5
    recorded = {r.workload_key for r in read_records(log)}
    for one in result.tasks:
        done = "measured" if one.task.weight else "planned"
        assert (one.status == done and one.task.key in recorded) or one.reason, one
    conv = next(t for t in result.tasks if "conv2d" in t.task.name)
    assert conv.status == "measured" and conv.checked and conv.seconds > 0 and conv.gflops > 0


def test_where_tvm_s_own_kernel_is_faster_no_record_of_ours_is_left(tmp_path):
    mod, params = model()
    log = tmp_path / "r.json"
    (task,) = tune(mod, params, TARGET, log, trials=0, tasks=[0]).tasks
    assert task.task.key in {r.workload_key for r in read_records(log)}
    tune(mod, params, TARGET, log, trials=1, tasks=[0], limits=Limits(margin=-1e9))
    assert not read_records(log) and [key for key, _ in read_kept(log)] == [task.task.key]


@pytest.mark.nightly
def test_a_plain_tvm_in_a_fresh_process_gets_our_kernels(tuned, expected, tmp_path):
    result, log, _ = tuned
    code = tmp_path / "plain.py"
    code.write_text(PLAIN_TVM)
    here = os.path.dirname(__file__)
    paths = [here, *(p for p in sys.path if p and os.path.abspath(p) != os.getcwd())]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(code), str(log), str(tmp_path / "out.npy")]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) >= sum(t.status == "measured" for t in result.tasks)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-4, atol=1e-5)


def test_our_build_gives_the_same_and_survives_a_half_line(tuned, expected, tmp_path):
    log = tmp_path / "cut.json"
    log.write_text(tuned[1].read_text() + '{"i": [["[\\"abc')
    mod, params = model()
    with pytest.warns(UserWarning, match="only half there"):
        lib = build(mod, params, TARGET, log)
    np.testing.assert_allclose(run(lib), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target, part", [
    ("cuda", "needs its architecture"), ("abacus -beads=7", "TVM does not know it"),
])  # fmt: skip
def test_targets_that_say_too_little(target, part):
    mod, params = model()
    with pytest.raises(TargetError, match=part) as caught:
        tune(mod, params, target)
    assert "sm_90" in caught.value.remedy


def test_bad_arguments_and_files(tmp_path):
    mod, params = model()
    with pytest.raises(BadInput, match="'trials'"):
        tune(mod, params, TARGET, trials=-1)
    (tmp_path / "r.json").write_text("nonsense\n")
    with pytest.raises(RecordError, match="r.json:1"):
        tune(mod, params, TARGET, tmp_path / "r.json")
    with pytest.raises(BadInput, match="no such record file"):
        build(mod, params, TARGET, tmp_path / "absent.json")
    x = relay.var("x", shape=(relay.Any(), 4))
    with pytest.raises(BadInput, match=r"'x' has a dynamic shape \(\?, 4\)"):
        tune(tvm.IRModule.from_expr(relay.Function([x], relay.nn.relu(x))), None, TARGET)


def test_what_tvm_makes_no_task_of_is_named():
    x = relay.var("x", shape=(1, 4, 8, 8))
    y = relay.concatenate([x, relay.sqrt(x)], axis=1)
    result = tune(tvm.IRModule.from_expr(relay.Function([x], relay.nn.max_pool2d(y, (2, 2)))), None, TARGET, trials=1)
    assert any("concatenate" in note for note in result.notes), result.notes


@pytest.mark.parametrize("text, part", [("9", "no task 9"), ("x", "not a task number"), ("1-", "not a task")])
def test_selections_that_make_no_sense(text, part):
    with pytest.raises(UsageError, match=part):
        select(text, 3)
