"""Calls connected by their tiles, explored: other blocks, and one by one. The choice holds in another process."""

import contextlib
import json

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

import roller_tvm  # noqa: E402
from roller_tvm import exploring  # noqa: E402
from roller_tvm.errors import RecordError  # noqa: E402
from roller_tvm.explore.dispatch import Table  # noqa: E402
from roller_tvm.relax import choices, connected  # noqa: E402
from roller_tvm.relax.connected import APART  # noqa: E402
from roller_tvm.relax.line import LINE  # noqa: E402
from roller_tvm.relax.pipeline import prepare  # noqa: E402
from roller_tvm.relax.tasks import extract_tasks  # noqa: E402
from roller_tvm.tuning.results import TunedTask  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM  # noqa: E402
from .test_connected import attention, right  # noqa: E402

CPU = device("avx512")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Chains are connected whatever is predicted."""
    for name in ("GAIN", "BETWEEN"):
        monkeypatch.setattr(connected, name, 0.0)
    monkeypatch.setattr(exploring, "LEAST", 0.0)


def kernels(model):
    return [plan.kernel for plan in model.report().plans]


def explored(tmp_path, monkeypatch, winner):
    """Explore attention with a way that is said to be the fastest; return all that a test needs."""
    mod, tensors = attention(2, 64, 40, 8)
    model = roller_tvm.compile(mod, LLVM, device=CPU)
    inputs = dict(zip(model.inputs, tensors, strict=True))
    made = exploring.ModelExploration(model._session, tmp_path / "records", inputs, 3)
    (site,) = made.running.sites
    assert site.operator.startswith("connected_") and site.options[-1] == APART and len(site.options) >= 3
    assert not made._made.failed  # each was held against TVM's plain loops
    for n in range(len(site.options)):
        made.running.table.choose([n])
        np.testing.assert_allclose(made.loaded.run(inputs)[0], right(*tensors), rtol=1e-4, atol=1e-5)
    at = winner % len(site.options)
    monkeypatch.setattr(Table, "seconds", lambda table: [1e-6 if n == at else 2e-6 for n in table.chosen])
    made.explore(None, None, None)
    result = made.finish()
    assert dict(result.rows[0].best)["plan"] == site.options[at] and result.done
    return model, mod, inputs, right(*tensors), site.options[at]


@pytest.mark.parametrize("winner", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, -1))])
def test_the_way_that_wins_is_built_elsewhere_too(tmp_path, monkeypatch, winner):
    model, mod, inputs, expected, label = explored(tmp_path, monkeypatch, winner)
    fresh = roller_tvm.compile(mod, LLVM, device=CPU, records=tmp_path / "records")
    assert kernels(fresh) == [plan.kernel for plan in model._session.built().roller_tvm_report.plans]
    assert len(kernels(fresh)) == (3 if label == APART else 1)
    np.testing.assert_allclose(fresh.run(inputs)[0], expected, rtol=1e-4, atol=1e-5)
    assert any(label in choice for choice in fresh.report().choices) and label in str(fresh.report())
    # The choice goes before records of single functions.
    with contextlib.closing(LINE.records(tmp_path / "records", tvm.target.Target(LLVM))) as records:
        for task in extract_tasks(prepare(mod, LLVM, device=CPU)):
            found = LINE.candidates(task, CPU, 1)
            candidate, schedule = next(found.schedules())
            told = TunedTask(task, "measured", found, [], candidate.ranked, 1e-6, 1e-6, checked=True)
            records.write(told, schedule, 1, 1.0)
    fresh = roller_tvm.compile(mod, LLVM, device=CPU, records=tmp_path / "records")
    how = [plan.how for plan in fresh.report().plans]
    assert how == (["record"] * 3 if label == APART else ["planned"])
    np.testing.assert_allclose(fresh.run(inputs)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_a_broken_file_of_choices_is_told(tmp_path, monkeypatch):
    _, mod, *_ = explored(tmp_path, monkeypatch, -1)
    path = tmp_path / "records" / choices.FILE
    good = json.loads(path.read_text())
    for wrong in ("{", "[]", json.dumps({**good, "connected": {"a": 1}}), json.dumps({**good, "target": "cuda"})):
        path.write_text(wrong)
        with pytest.raises((RecordError, roller_tvm.errors.BadInput), match="choices"):
            roller_tvm.compile(mod, LLVM, device=CPU, records=tmp_path / "records").report()
