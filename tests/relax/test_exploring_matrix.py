"""Products that a build puts on the matrix unit, explored beside kernels of vectors. The unit itself is emulated."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

import roller_tvm  # noqa: E402
from roller_tvm import exploring  # noqa: E402
from roller_tvm.explore.dispatch import Table  # noqa: E402
from roller_tvm.micro_perf import known_error  # noqa: E402
from roller_tvm.relax import explored_plans, matrix_products, pipeline  # noqa: E402
from roller_tvm.relax.matrix_products import MatrixProducts  # noqa: E402
from roller_tvm.tuning.explorable import MATRIX  # noqa: E402

from .networks import LLVM  # noqa: E402
from .test_matrix_products import UNIT, layer  # noqa: E402


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    for module in (pipeline, explored_plans):
        monkeypatch.setattr(module, "MatrixProducts", lambda target, device: MatrixProducts(target, UNIT, True))
    monkeypatch.setattr(matrix_products, "GAIN", 0.0)  # small products, too: the emulation is slow
    monkeypatch.setattr(known_error, "LEAST", 0.0)  # whatever is predicted of vectors


def timed(monkeypatch, of_start, of_others):
    """Have kernels take these seconds."""
    monkeypatch.setattr(Table, "seconds", lambda table: [of_others if n else of_start for n in table.chosen])


def test_plans_of_vectors_that_are_predicted_to_be_far_slower_are_not_built(monkeypatch):
    monkeypatch.setattr(known_error, "LEAST", 0.9)
    mod, _, _ = layer(64, 128, 128)
    job = roller_tvm.compile(mod, LLVM)._session.job
    on_unit = MatrixProducts(job.aim.target, UNIT, True)
    monkeypatch.setattr(explored_plans, "MatrixProducts", lambda target, device: on_unit)
    counts = []
    for seconds in (1.0, 1e-9):  # predicted of the unit
        monkeypatch.setattr(on_unit, "chosen", lambda mod, s=seconds: {name: s for name in named(mod)})
        known = explored_plans.plan(job, None, 3, lambda name: 1.0, 0.0).known
        counts.append([list(one.plans) for one in known.values() if MATRIX in one.plans])
    assert all(len(plans) >= 3 for plans in counts[0]) and counts[0]
    assert all(plans == [MATRIX] for plans in counts[1]) and counts[1]


def named(mod):
    return [str(var.name_hint) for var, func in mod.functions_items() if type(func).__name__ == "PrimFunc"]


@pytest.mark.parametrize("unit_wins", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_the_unit_is_the_start_and_vectors_are_tried(monkeypatch, tmp_path, unit_wins):
    mod, x, wanted = layer(64, 128, 128)
    model = roller_tvm.compile(mod, LLVM)
    inputs = {next(iter(model.inputs)): x}
    made = exploring.ModelExploration(model._session, tmp_path / "records", inputs, 2)
    (key,) = (key for key, known in made._made.known.items() if MATRIX in known.plans)
    assert next(iter(made._made.known[key].plans)) == MATRIX and not made._made.failed
    sites = made.running.sites
    assert sum(site.variants[0].kernel.endswith("_matrix") for site in sites) == 2
    for n in range(2):
        made.running.table.choose([min(n, len(site.variants) - 1) for site in sites])
        np.testing.assert_allclose(made.loaded.run(inputs)[0], wanted(x), rtol=1e-4, atol=1e-4)
    timed(monkeypatch, *((1e-6, 2e-6) if unit_wins else (2e-6, 1e-6)))
    made.explore(None, None, None)
    result = made.finish()
    (row,) = (row for row in result.rows if row.name == key)
    assert result.done and row.options == 2 and (dict(row.best)["plan"] == MATRIX) == unit_wins
    fresh = roller_tvm.compile(mod, LLVM, records=tmp_path / "records")
    np.testing.assert_allclose(fresh.run(inputs)[0], wanted(x), rtol=1e-4, atol=1e-4)
    how = {plan.kernel: plan.how for plan in fresh.report().plans}
    on_unit = [name for name in how if name.endswith("_matrix")]
    assert len(on_unit) == unit_wins and (unit_wins or "record" in how.values())
