"""Measuring on another machine: a tracker and a server, both here."""

import json

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from roller_tvm import auto_scheduler  # noqa: E402

from .workloads import QUICK, check_product, product_task  # noqa: E402


@pytest.fixture(scope="module")
def tracker():
    """Host, port and key of a device."""
    from tvm.rpc.server import Server
    from tvm.rpc.tracker import Tracker

    tracker = Tracker(port=9190, port_end=9290, silent=True)
    server = Server(port=9390, port_end=9490, key="board", silent=True, tracker_addr=("127.0.0.1", tracker.port))
    yield "127.0.0.1", tracker.port, "board"
    server.terminate()
    tracker.terminate()


@pytest.mark.nightly
def test_plans_are_measured_through_a_tracker(tracker, tmp_path):
    host, port, key = tracker
    log, task = tmp_path / "records.json", product_task()
    runner = auto_scheduler.RPCRunner(key, host, port, timeout=30, **QUICK)
    task.tune(auto_scheduler.TuningOptions(
        2, runner=runner, builder=auto_scheduler.LocalBuilder(timeout=60), verbose=0,
        measure_callbacks=[auto_scheduler.RecordToFile(log)]))  # fmt: skip
    found = [json.loads(line)["r"] for line in log.read_text().splitlines()]
    assert [error for _, error, _, _ in found] == [0, 0] and all(0 < cost[0] < 1 for cost, *_ in found)
    check_product(*task.apply_best(str(log)))


@pytest.mark.nightly
def test_a_board_that_runs_nothing_of_it_leaves_the_plan(tracker, tmp_path):
    """Code of another architecture: the board refuses every trial."""
    from roller_tvm.auto_scheduler.search_policy import RollerWarning
    from roller_tvm.device import load_device

    host, port, key = tracker
    log, task = tmp_path / "records.json", product_task(target="llvm -mtriple=aarch64-linux-gnu")
    runner = auto_scheduler.RPCRunner(key, host, port, timeout=5, **QUICK)
    policy = auto_scheduler.RollerPolicy(task, {"device": load_device("cpu")}, verbose=0)
    options = auto_scheduler.TuningOptions(2, runner=runner, verbose=0,
                                           measure_callbacks=[auto_scheduler.RecordToFile(log)])  # fmt: skip
    with pytest.warns(RollerWarning, match="all 1 trials failed .*: plans are chosen by prediction"):
        task.tune(options, policy)
    (record,) = [json.loads(line)["r"] for line in log.read_text().splitlines()]
    assert record[1] == 0 and record[2] == 0
