"""Ansor's own search through our names: its policies, sketch rules, and inputs of a task."""

import json

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import te  # noqa: E402

from roller_tvm import auto_scheduler  # noqa: E402

from .test_scheduler import options, records  # noqa: E402
from .workloads import TARGET, product_task  # noqa: E402

#: A small search.
PARAMS = {"sample_init_min_population": 4, "evolutionary_search_population": 8, "evolutionary_search_num_iters": 1}


@auto_scheduler.register_workload
def rows_by_number(n, m):
    """Rows of a table by their numbers: the numbers cannot be arbitrary."""
    numbers, table = te.placeholder((n,), dtype="int32", name="numbers"), te.placeholder((m, m), name="table")
    scaled = te.compute((m, m), lambda i, j: table[i, j] * 2.0, name="scaled")
    return [numbers, table, te.compute((n, m), lambda i, j: scaled[numbers[i], j], name="rows")]


@pytest.mark.nightly
def test_a_sketch_policy_searches_as_ever(tmp_path):
    log, task, met = tmp_path / "records.json", product_task(), []

    def meets(policy, state, stage):
        met.append(stage)
        return auto_scheduler.PreloadCustomSketchRule.PASS

    rule = auto_scheduler.PreloadCustomSketchRule(meets, lambda policy, state, stage: [], "none")
    policy = auto_scheduler.SketchPolicy(task, auto_scheduler.RandomModel(), params=dict(PARAMS), verbose=0,
                                         init_search_callbacks=[rule])  # fmt: skip
    task.tune(options(2, log), policy)  # of one trial Ansor makes none
    assert met and len(records(log)) == 2
    # And goes on from what Roller measured.
    task.tune(options(1, log))
    measured = auto_scheduler.PreloadMeasuredStates(str(log))
    policy = auto_scheduler.SketchPolicy(task, auto_scheduler.RandomModel(), params=dict(PARAMS), verbose=0,
                                         init_search_callbacks=[measured])  # fmt: skip
    task.tune(options(2, log), policy)
    assert len({json.dumps(r["i"]) for r in records(log)}) == 5


def test_ansors_names_of_policies_mean_ansor(monkeypatch):
    made = []
    monkeypatch.setattr(auto_scheduler._ansor.task_scheduler, "make_search_policies",
                        lambda name, *rest: made.append(name) or [])  # fmt: skip
    tuner = auto_scheduler.TaskScheduler([product_task()], callbacks=[])
    with pytest.raises(IndexError):  # no policies: it went the way of TVM's own
        tuner.tune(options(1), search_policy="sketch.random")
    assert made == ["sketch.random"]


@pytest.mark.nightly
def test_registered_inputs_reach_the_runner(tmp_path):
    log = tmp_path / "records.json"
    numbers = np.array([3, 1, 2, 0, 5, 4, 7, 6], dtype="int32")
    task = auto_scheduler.SearchTask(
        func=rows_by_number, args=(8, 16), target=TARGET, task_inputs={"numbers": tvm.nd.array(numbers)})  # fmt: skip
    task.tune(options(2, log))
    assert all(r["r"][1] == 0 and r["i"][0][5] == ["numbers"] for r in records(log)) and records(log)
    schedule, args = task.apply_best(str(log))
    table, out = np.random.default_rng(0).standard_normal((16, 16)).astype("float32"), tvm.nd.empty((8, 16))
    tvm.build(schedule, args, TARGET)(tvm.nd.array(numbers), tvm.nd.array(table), out)
    np.testing.assert_allclose(out.numpy(), 2 * table[numbers], rtol=1e-6)
