"""Forms of a whole model: built with one choice turned, compared, kept where they are said to be faster."""

import os
import signal
from collections import Counter

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

import roller_tvm  # noqa: E402
from roller_tvm import exploring, forms  # noqa: E402
from roller_tvm.errors import RecordError  # noqa: E402
from roller_tvm.models.choices import Choices  # noqa: E402
from roller_tvm.relax import choices, connected, layout_cost  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..said_forms import notes_of  # noqa: E402
from .networks import LLVM, module, run, values  # noqa: E402
from .test_connected import attention, right  # noqa: E402

CPU = device("avx512")
OP = relax.op
LAYOUTS = ["activations as NCHW", "activations in blocks of channels"]


def convolutions():
    """A network that Winograd's algorithm suits, and its answer."""
    weights, x = values(32, 32, 3, 3), values(1, 32, 20, 20)

    def body(b, x):
        return b.emit(OP.nn.relu(b.emit(OP.nn.conv2d(x, relax.const(weights), padding=1))))

    mod = module(body, x.shape)
    return mod, x, run(tvm.compile(mod, tvm.target.Target("llvm")), x)[0]


def other_layouts(notes):
    """The layouts of the two that the model does not have, in the order of trying; it may have a third one."""
    return [name for name in LAYOUTS if notes[name] != "not tried, it changes nothing in this model"]


def product():
    weights, x = values(16, 16), values(8, 16)
    mod = module(lambda b, x: b.emit(OP.nn.relu(b.emit(OP.matmul(x, relax.const(weights))))), (8, 16))
    return mod, x, np.maximum(x @ weights, 0)


def test_what_is_faster_is_kept_for_this_model_and_for_others(said, tmp_path, monkeypatch):
    monkeypatch.setattr(layout_cost, "GAIN", 0.0)  # Winograd's algorithm wherever it applies
    mod, x, expected = convolutions()
    model = roller_tvm.compile(mod, LLVM, device=CPU)
    inputs = {next(iter(model.inputs)): x}
    assert any("winograd" in plan.kernel for plan in model.report().plans)
    said["faster"] += ["direct convolutions", "threads: 1"]
    result = model.explore(inputs, top=1, records=tmp_path / "records")
    notes = notes_of(result)
    assert "taken (kept" in notes["direct convolutions"] and "explore again" in notes["direct convolutions"]
    others = other_layouts(notes)
    assert others and all(notes[other].endswith("us without; not taken") for other in others)
    assert "taken (kept" in notes["threads: 1"] and model.threads == 1
    ran = list(said["ran"])
    assert ran == ["direct convolutions", *others, "threads: 1"]
    np.testing.assert_allclose(model.run(inputs)[0], expected, rtol=1e-3, atol=1e-3)
    fresh = roller_tvm.compile(mod, LLVM, device=CPU, records=tmp_path / "records")
    assert fresh.threads == 1 and {"winograd: False", "threads: 1"} <= set(fresh.report().choices)
    assert [p.kernel for p in fresh.report().plans] == [p.kernel for p in model.report().plans]
    assert not any("winograd" in plan.kernel for plan in fresh.report().plans)
    np.testing.assert_allclose(fresh.run(inputs)[0], expected, rtol=1e-3, atol=1e-3)
    again = roller_tvm.compile(mod, LLVM, device=CPU)
    again.explore(inputs, top=1, records=tmp_path / "records")
    assert said["ran"] == ran and again.threads == 1  # each is tried once
    assert not any("winograd" in plan.kernel for plan in again.report().plans)


def test_a_form_that_is_predicted_to_be_slower_by_more_than_the_model_errs_is_not_built(said, tmp_path, monkeypatch):
    mod, x, _ = convolutions()
    model = roller_tvm.compile(mod, LLVM, device=CPU)
    line, job = model._session.line, model._session.job
    planned = sum(plan.predicted_s * plan.calls for plan in model.report().plans)
    assert sum(n * seconds for (seconds, _), n in line.predicted(job).items()) == pytest.approx(planned)
    # Most of the time is a kernel's that both have.
    monkeypatch.setattr(type(line), "predicted", lambda line, one: Counter(
        {(9.0, "same"): 1, (1.0, "direct") if one is model._session.job else (1.5, "blocked"): 1}))  # fmt: skip
    said["faster"] += LAYOUTS
    notes = notes_of(model.explore({next(iter(model.inputs)): x}, top=1, records=tmp_path / "records"))
    slow = "not tried, its other kernels are predicted to take 1.50 times as long"
    assert {notes[other] for other in other_layouts(notes)} == {slow}
    assert said["ran"] == ["threads: 1"]


def test_what_cannot_be_turned_is_told(said, tmp_path, monkeypatch):
    mod, x, expected = product()
    model = roller_tvm.compile(mod, LLVM, device=CPU, threads=1)
    inputs = {next(iter(model.inputs)): x}
    notes = notes_of(model.explore(inputs, top=1, records=tmp_path / "records"))
    assert notes["direct convolutions"] == "not tried, no convolution is computed by Winograd's algorithm"
    assert notes["activations as NCHW"] == "not tried, there is no convolution"
    assert notes["kernels side by side"] == "not tried, no kernels are predicted to gain"
    assert notes["threads: 1"] == "not tried, there is one already" and not said["ran"]
    made = exploring.ModelExploration(model._session, tmp_path / "others", inputs, 1)
    made.explore(1e-9, None, None)
    assert "kernels side by side: not tried, the budget is spent" in made.finish().notes
    made = exploring.ModelExploration(model._session, tmp_path / "more", inputs, 1)
    assert "kernels side by side: not tried, requests are being served: explore offline" in made.finish(True).notes
    np.testing.assert_allclose(model.run(inputs)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_form_with_other_results_is_not_taken(said, tmp_path, monkeypatch):
    mod, x, _ = product()
    model = roller_tvm.compile(mod, LLVM, device=CPU)
    before = model.threads
    monkeypatch.setattr(forms, "difference", lambda got, right, terms: "error 1 at magnitude 1")
    said["faster"].append("threads: 1")
    result = model.explore({next(iter(model.inputs)): x}, top=1, records=tmp_path / "records")
    assert "threads: 1: not tried, its results differ: error 1 at magnitude 1" in result.notes
    assert not said["ran"] and model.threads == before


@pytest.mark.parametrize("forms", [{"winograd": 1}, {"threads": 0}, {"arranged": "CHWN"}, {"other": 1}, []])
def test_forms_that_do_not_exist_are_refused(tmp_path, forms):
    target = tvm.target.Target(LLVM)
    choices.write_choices(Choices(forms={"threads": 2}), tmp_path, target)
    assert choices.read_choices(tmp_path, target).forms == {"threads": 2}
    choices.write_choices(Choices(forms=forms), tmp_path, target)
    with pytest.raises(RecordError, match="form"):
        choices.read_choices(tmp_path, target)


def test_what_a_busy_machine_says_is_asked_again(said, tmp_path):
    mod, x, _ = product()
    model = roller_tvm.compile(mod, LLVM, device=CPU)
    inputs, before = {next(iter(model.inputs)): x}, model.threads
    said["faster"].append("threads: 1")
    said["why"] = "others keep the machine busy"
    notes = notes_of(model.explore(inputs, top=1, records=tmp_path / "records"))
    assert "undecided, others keep" in notes["threads: 1"] and model.threads == before and not said["ran"]
    said["why"] = ""
    model.explore(inputs, top=1, records=tmp_path / "records")
    assert said["ran"] == ["threads: 1"] and model.threads == 1


@pytest.mark.nightly
def test_calls_that_the_model_left_apart_are_connected_and_each_chain_is_explored_then(said, tmp_path, monkeypatch):
    mod, tensors = attention(2, 64, 40, 8)
    monkeypatch.setattr(connected, "BETWEEN", 0.0)
    monkeypatch.setattr(connected, "GAIN", 1e9)
    monkeypatch.setattr(connected, "EAGER", 0.0)
    model = roller_tvm.compile(mod, LLVM, device=CPU)
    inputs, expected = dict(zip(model.inputs, tensors, strict=True)), right(*tensors)
    assert not any(plan.kernel.startswith("connected") for plan in model.report().plans)
    said["faster"].append("more calls connected")
    notes = notes_of(model.explore(inputs, top=1, records=tmp_path / "records"))
    assert "explore again" in notes["more calls connected"]
    assert any(plan.kernel.startswith("connected") for plan in model.report().plans)
    np.testing.assert_allclose(model.run(inputs)[0], expected, rtol=1e-4, atol=1e-5)
    fresh = roller_tvm.compile(mod, LLVM, device=CPU, records=tmp_path / "records")
    assert [plan.kernel for plan in fresh.report().plans] == [plan.kernel for plan in model.report().plans]
    monkeypatch.setattr(exploring, "LEAST", 0.0)
    made = exploring.ModelExploration(fresh._session, tmp_path / "records", inputs, 3)
    assert any(site.options[-1] == connected.APART for site in made.running.sites)


def test_ctrl_c_in_a_form_ends_the_exploration(said, tmp_path, monkeypatch):
    """It comes while TVM calls Python, which loses it: another error, or none, came out of TVM."""

    def changes(line, session, made, form):
        tvm.runtime.convert(lambda: os.kill(os.getpid(), signal.SIGINT))()
        return ""

    mod, x, expected = product()
    model = roller_tvm.compile(mod, LLVM, device=CPU)
    inputs = {next(iter(model.inputs)): x}
    monkeypatch.setattr(type(model._session.line), "changes", changes)
    with pytest.raises(KeyboardInterrupt):
        model.explore(inputs, top=1, records=tmp_path / "records")
    assert not said["ran"], "no other form is tried"
    monkeypatch.undo()
    np.testing.assert_allclose(model.run(inputs)[0], expected, rtol=1e-4, atol=1e-5)
