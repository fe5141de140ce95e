"""Convolutions of one pixel whose rows and columns become one axis, in a built model."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

import roller_tvm  # noqa: E402
from roller_tvm import exploring  # noqa: E402
from roller_tvm.explore.dispatch import Table  # noqa: E402
from roller_tvm.relax import merged  # noqa: E402
from roller_tvm.relax.layout import PlanLayout  # noqa: E402
from roller_tvm.relax.merged import MergeAxes  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare  # noqa: E402
from roller_tvm.tir.nodes import parameters  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM, module, run, values  # noqa: E402

OP, CPU = relax.op, device("avx512")


def network():
    """Two convolutions that no blocks of channels hold, 7 pixels a row, and a sum of both inputs of the second."""
    first, second, bias = values(44, 44, 1, 1), values(44, 44, 1, 1), values(1, 44, 1, 1)

    def body(b, x):
        y = b.emit(OP.nn.relu(b.emit(OP.add(b.emit(OP.nn.conv2d(x, relax.const(first))), relax.const(bias)))))
        z = b.emit(OP.add(b.emit(OP.nn.conv2d(y, relax.const(second))), x))
        return b.emit(OP.nn.max_pool2d(z, (3, 3), strides=(3, 3)))

    def wanted(x):
        y = np.maximum(np.einsum("nchw,oc->nohw", x.astype("float64"), first[:, :, 0, 0]) + bias, 0)
        z = np.einsum("nchw,oc->nohw", y, second[:, :, 0, 0]) + x
        windows = z[:, :, :6, :6].reshape(1, 44, 2, 3, 2, 3)
        return windows.max(axis=(3, 5))

    return module(body, (1, 44, 7, 7)), values(1, 44, 7, 7), wanted


def test_pixels_are_one_axis(monkeypatch):
    mod, x, wanted = network()
    plain = PlanLayout(LLVM, CPU, only="NCHW")(mod)
    prepared = prepare(plain, LLVM, device=CPU)
    text = MergeAxes(LLVM, CPU)(prepared).script()
    assert text.count("R.Tensor((44, 49)") >= 2
    monkeypatch.setattr(merged, "GAIN", 0.0)
    (found,) = run(build(mod, LLVM), x)
    np.testing.assert_allclose(found, wanted(x), rtol=1e-4, atol=1e-4)


def test_without_a_gain_nothing_changes(monkeypatch):
    monkeypatch.setattr(merged, "GAIN", 1e9)
    mod = prepare(network()[0], LLVM, device=CPU)
    assert MergeAxes(LLVM, CPU)(mod) is mod


def test_what_is_concatenated_stays_in_place(monkeypatch):
    monkeypatch.setattr(merged, "GAIN", 0.0)
    weights = [values(12, 20, 1, 1) for _ in range(2)]

    def body(b, x):
        return b.emit(OP.concat([b.emit(OP.nn.conv2d(x, relax.const(w))) for w in weights], axis=1))

    mod = prepare(PlanLayout(LLVM, CPU, only="NCHW")(module(body, (1, 20, 7, 7))), LLVM, device=CPU)
    assert "R.reshape" not in MergeAxes(LLVM, CPU)(mod).script()


@pytest.mark.nightly
def test_merged_kernels_are_explored_and_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(merged, "GAIN", 0.0)
    monkeypatch.setattr(exploring, "LEAST", 0.0)
    mod, x, wanted = network()
    model = roller_tvm.compile(mod, LLVM)
    inputs = {next(iter(model.inputs)): x}
    made = exploring.ModelExploration(model._session, tmp_path / "records", inputs, 2)
    own = [site for site in made.running.sites if "conv2d" in site.operator]
    assert len(own) == 2 and all(len(site.options) >= 2 for site in own) and not made._made.failed
    found = [known.task.func for known in made._made.known.values() if "conv2d" in known.task.name]
    assert any(len(p.shape) == 2 for func in found for p in parameters(func))  # it is as the build has it
    for n in range(2):
        made.running.table.choose([min(n, len(site.options) - 1) for site in made.running.sites])
        np.testing.assert_allclose(made.loaded.run(inputs)[0], wanted(x), rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(Table, "seconds", lambda table: [1e-6 if n else 2e-6 for n in table.chosen])
    made.explore(None, None, None)
    made.finish()
    fresh = roller_tvm.compile(mod, LLVM, records=tmp_path / "records")
    np.testing.assert_allclose(fresh.run(inputs)[0], wanted(x), rtol=1e-4, atol=1e-4)
    how = {plan.kernel: plan.how for plan in fresh.report().plans if "conv2d" in plan.kernel}
    assert how and set(how.values()) == {"record"}
