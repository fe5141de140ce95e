"""Forms of a whole Relay model: right in each, kept beside the records where one is said to be faster."""

import os
import signal

import numpy as np
import pytest

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("kept_kernels")]
tvm = pytest.importorskip("tvm")

from tvm import relay  # noqa: E402

import roller_tvm  # noqa: E402
from roller_tvm.errors import RecordError  # noqa: E402
from roller_tvm.relay import winograd  # noqa: E402

from ..said_forms import notes_of  # noqa: E402

TARGET = "llvm -num-cores=2"
X = np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype("float32")


def network():
    """A convolution that Winograd's algorithm suits, its weights parameters; and a dense layer whose weights pack."""
    x, weight = relay.var("x", shape=X.shape), relay.var("weight", shape=(16, 16, 3, 3))
    y = relay.nn.relu(relay.nn.conv2d(x, weight, padding=(1, 1), channels=16, kernel_size=(3, 3)))
    dense = relay.const(np.random.default_rng(2).standard_normal((8, 144)).astype("float32"))
    y = relay.nn.dense(relay.reshape(y, (16, 144)), dense)
    values = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype("float32")
    return tvm.IRModule.from_expr(relay.Function([x, weight], y)), {"weight": values}


def compiled(**options):
    mod, params = network()
    return roller_tvm.compile(mod, TARGET, params=params, **options)


def kernels(model):
    return [plan.kernel for plan in model.report().plans]


def forms_of(model):
    return {form.name: form for form in model._session.line.forms(model._session.job, 2)}


@pytest.fixture(scope="module")
def expected():
    return compiled(schedules="tvm").run({"x": X})[0]


def right(model, expected):
    np.testing.assert_allclose(model.run({"x": X})[0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.nightly  # eight builds; tests/relax/test_exploring_forms.py has the same search at every change
def test_every_form_is_right_and_what_is_faster_is_kept(said, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(winograd, "GAIN", 0.0)
    monkeypatch.setattr(winograd.use_winograd, "__defaults__", (0.0,))  # wherever it applies
    place, model = tmp_path / "records.json", compiled()
    said["faster"] += ["Winograd's algorithm", "weights as they are", "threads: 1"]
    nchw = forms_of(model)["activations as NCHW"]
    assert nchw.why == "they are already" and not forms_of(model)["activations as NHWC"].why
    notes = notes_of(model.explore({"x": X}, top=1, records=place))
    assert forms_of(model)["activations as NHWC"].why == "they are already"
    assert "taken (kept" in notes["Winograd's algorithm"] and "explore again" in notes["Winograd's algorithm"]
    assert "not taken" in notes["activations as NHWC"] and notes["activations as NCHW"].endswith("not taken")
    assert "taken (kept" in notes["weights as they are"] and "taken (kept" in notes["threads: 1"]
    assert any("winograd" in kernel for kernel in kernels(model)) and model.threads == 1
    right(model, expected)
    fresh = compiled(records=place)
    assert kernels(fresh) == kernels(model) and fresh.threads == 1
    assert {"winograd: True", "packed: False", "threads: 1"} <= set(fresh.report().choices)
    right(fresh, expected)
    ran = list(said["ran"])
    again = compiled()
    again.explore({"x": X}, top=2, runs=3, records=place)  # of the operators as they are now
    assert said["ran"] == ran and kernels(again)
    right(again, expected)


def test_choices_for_another_target_are_refused(said, tmp_path):
    place = tmp_path / "records.json"
    said["faster"].append("threads: 1")
    compiled().explore({"x": X}, top=1, records=place)
    with pytest.raises(RecordError, match="not for"):
        roller_tvm.compile(*network()[:1], "llvm -num-cores=4", params=network()[1], records=place)


def test_ctrl_c_in_a_form_ends_the_exploration(said, expected, tmp_path, monkeypatch):
    """It comes while TVM calls Python, which loses it: another error, or none, came out of TVM."""

    def changes(line, session, made, form):
        tvm.runtime.convert(lambda: os.kill(os.getpid(), signal.SIGINT))()
        return ""

    model = compiled()
    monkeypatch.setattr(type(model._session.line), "changes", changes)
    with pytest.raises(KeyboardInterrupt):
        model.explore({"x": X}, top=1, records=tmp_path / "records.json")
    assert not said["ran"], "no other form is tried"
    monkeypatch.undo()
    right(model, expected)
