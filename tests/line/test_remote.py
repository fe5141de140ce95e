"""Measuring on servers of TVM's RPC tracker, started by its own commands on loopback; what becomes of their faults."""

import time

import numpy as np
import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")

import roller_tvm  # noqa: E402
from roller_bench.farm import Farm  # noqa: E402
from roller_tvm import exploring  # noqa: E402
from roller_tvm.errors import MeasureError, UsageError  # noqa: E402
from roller_tvm.tuning import remote  # noqa: E402
from roller_tvm.tuning.remote import Tracker, servers  # noqa: E402
from roller_tvm.tuning.session import Limits  # noqa: E402

QUICK = Limits(margin=1.0, run_s=5.0, repeats=4, finalists=2, rounds=1)


@pytest.fixture
def farm(tmp_path):
    with Farm(tmp_path) as made:
        made.servers = [made.start_server() for _ in range(2)]
        made.wait(2)
        yield made


@pytest.mark.one_line("relax")
@pytest.mark.slow
def test_a_model_is_tuned_on_servers(subject, farm, tmp_path):
    result = subject.tune(tmp_path / subject.file, 2, limits=QUICK, tracker=farm.where)
    tuned = [t for t in result.tasks if t.task.weight]
    assert [t.status for t in tuned] == ["measured"] * len(tuned), str(result)
    assert all(t.checked and 0 < t.seconds < 1 for t in tuned)
    again = subject.tune(tmp_path / subject.file, 2, limits=QUICK, tracker=farm.where)
    assert {t.status for t in again.tasks} == {"resumed"}


@pytest.mark.slow
@pytest.mark.nightly
def test_a_server_that_is_killed_and_a_tracker_that_is_restarted_cost_no_task(subject, farm, tmp_path):
    done = []

    def fault(tuned, _count):
        done.append(tuned)
        if len(done) == 1:
            farm.kill(farm.servers[0])
            farm.kill(farm.tracker)
            farm.start_tracker()  # the other server finds it by itself

    result = subject.tune(tmp_path / subject.file, 2, limits=QUICK, tracker=farm.where, progress=fault)
    assert [t.status for t in result.tasks if t.task.weight] == ["measured"] * 2, str(result)


def explored(subject, farm, folder, **options):
    """Explore the model on servers; return the result, and the outputs before and after."""
    model = roller_tvm.compile(subject.model.mod, subject.target, params=subject.model.params)
    x = {name: np.random.default_rng(2).random(shape, "float32") for name, (shape, _) in model.inputs.items()}
    before = model.run(x)[0]
    result = model.explore(
        x, top=3, records=folder / subject.file, tracker=farm.address, key=farm.where.key, **options
    )
    return result, before, model.run(x)[0]


@pytest.mark.one_line("relay")
@pytest.mark.slow
def test_a_model_is_explored_on_a_server(subject, farm, tmp_path, workers_here, monkeypatch):
    monkeypatch.setattr(exploring, "LEAST", 0.0)
    result, before, after = explored(subject, farm, tmp_path, runs=30)
    assert result.runs == 30 or result.done
    assert any(row.tried > 1 for row in result.rows) and not result.failed, str(result)
    assert all(row.best_s > 0 for row in result.rows if row.done)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_server_that_is_killed_while_it_explores_is_replaced(subject, farm, tmp_path, workers_here, monkeypatch):
    monkeypatch.setattr(exploring, "LEAST", 0.0)
    seen = []

    def kill(exploration):
        seen.append(exploration.server.turn)
        if len(seen) == 1:
            for process in farm.servers:
                farm.kill(process)
            farm.servers.append(farm.start_server())
            farm.wait(1)

    result, before, after = explored(subject, farm, tmp_path, progress=kill)
    assert result.done and max(seen) > seen[0], seen
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.nightly
def test_without_servers_what_was_learnt_is_kept(subject, farm, tmp_path, workers_here, monkeypatch):
    monkeypatch.setattr(exploring, "LEAST", 0.0)

    def kill(_):
        monkeypatch.setattr(remote, "WAIT_S", 1.0)
        for process in farm.servers:
            farm.kill(process)

    with pytest.raises(MeasureError, match="server"):
        explored(subject, farm, tmp_path, progress=kill)
    monkeypatch.undo()
    monkeypatch.setattr(exploring, "LEAST", 0.0)
    farm.servers.append(farm.start_server())
    farm.wait(1)
    result, *_ = explored(subject, farm, tmp_path)
    assert result.done and result.runs > len(result.wall_s)


def test_servers_answer_no_requests(subject):
    with pytest.raises(UsageError, match="requests"):
        roller_tvm.compile(subject.model.mod, subject.target).explore(online=True, tracker="127.0.0.1:1", key="test")


@pytest.mark.slow
@pytest.mark.nightly
def test_kernels_that_hang_on_a_server_are_counted(subject, farm, tmp_path, workers_here, monkeypatch):
    if subject.line.name != "relax":
        pytest.skip("its kernels have the Relax line's symbols")
    monkeypatch.setattr(remote, "SEND_S", 3.0)
    faulty = "tests.line.faulty_remote"
    result = subject.tune(tmp_path / subject.file, 3, limits=QUICK, tracker=farm.where, worker=faulty)
    tuned = [t for t in result.tasks if t.task.weight]
    assert result.failures.get("run timeout", 0) >= len(tuned), result.failures
    assert all(t.status == "measured" for t in tuned if len(t.outcomes) > 1), str(result)
    end = time.monotonic() + 30
    while time.monotonic() < end and servers(farm.where) < 2:
        time.sleep(0.5)
    assert servers(farm.where) == 2, "a server has not come back"


@pytest.mark.slow
@pytest.mark.nightly
def test_without_a_server_it_says_so(subject, tmp_path):
    with Farm(tmp_path) as empty:
        end = time.monotonic() + 30
        while True:
            with pytest.raises(MeasureError) as caught:
                servers(empty.where)
            if "no server" in str(caught.value) or time.monotonic() > end:
                break
            time.sleep(0.2)
        assert "no server of this key" in str(caught.value)
        empty.kill(empty.tracker)
        with pytest.raises(MeasureError, match="does not answer"):
            subject.tune(None, 1, tracker=empty.where)


@pytest.mark.parametrize("given", [("host", "k"), ("host:x", "k"), ("h:1", None), (None, "k"), ("h:99999", "k")])
def test_a_tracker_is_named_in_full(given):
    with pytest.raises(UsageError):
        Tracker.of(*given)


def test_neither_is_this_machine():
    assert Tracker.of(None, None) is None and Tracker.of("h:1", "k") == Tracker("h", 1, "k")
