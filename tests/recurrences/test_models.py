"""LSTM, GRU and RNN of ONNX models on either line, against onnxruntime."""

import numpy as np
import pytest

pytestmark = pytest.mark.te
tvm = pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import roller_tvm  # noqa: E402
from roller_bench.recurrent_models import recurrent_model  # noqa: E402
from roller_tvm.errors import UnsupportedOperator  # noqa: E402
from roller_tvm.models.line import model_line  # noqa: E402
from roller_tvm.tvm_env import Line, line  # noqa: E402

from ..sampling import sampled  # noqa: E402
from .models import expected  # noqa: E402

CASES = {
    "lstm both ways": ("LSTM", {"direction": "bidirectional", "states": True}),
    "lstm with all": ("LSTM", {"states": True, "peepholes": True, "clip": 0.5, "input_forget": 1}),
    "lstm of lengths": ("LSTM", {"direction": "bidirectional", "lengths": (5, 2, 4), "states": True}),
    "lstm, three layers": ("LSTM", {"direction": "bidirectional", "layers": 3}),
    "gru back": ("GRU", {"direction": "reverse", "biases": False}),
    "gru, reset last": ("GRU", {"linear_before_reset": 1, "direction": "bidirectional", "lengths": (1, 5, 3)}),
    "gru of other functions": ("GRU", {"activations": ["HardSigmoid", "Softsign"], "activation_alpha": [0.3]}),
    "rnn": ("RNN", {"direction": "bidirectional", "activations": ["Elu", "Softplus"], "states": True}),
}


@pytest.mark.parametrize("name", sampled(CASES, 3, 1))
def test_models(name):
    kind, options = CASES[name]
    model, inputs = recurrent_model(kind, steps=5, batch=3, features=4, hidden=20, **options)
    built = roller_tvm.compile(model)
    for one, other in zip(outputs(built, inputs), expected(model, inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert any(plan.plan.startswith("cpu.recurrence ") for plan in built.report().plans)


def outputs(built, inputs):
    made = built.run(inputs)
    return list(made.values()) if isinstance(made, dict) else [made] if hasattr(made, "shape") else list(made)


def test_layout_of_rows_first():
    options = {"steps": 5, "batch": 3, "features": 4, "hidden": 20, "states": True, "direction": "bidirectional"}
    turned, inputs = recurrent_model("LSTM", layout=1, **options)
    plain, _ = recurrent_model("LSTM", **options)
    y, *last = expected(plain, {name: value.swapaxes(0, 1) for name, value in inputs.items()})
    wanted = [y.transpose(2, 0, 1, 3), *(one.swapaxes(0, 1) for one in last)]
    for one, other in zip(outputs(roller_tvm.compile(turned), inputs), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_a_loop_for_any_number_of_steps():
    """The module does not grow with the steps."""
    sizes = []
    for steps in (5, 50):
        model, _ = recurrent_model("LSTM", steps=steps, batch=1, features=4, hidden=16)
        sizes.append(nodes_of(model_line(Line(line())).importer.import_model(model)[1].mod["main"]))
    assert sizes[0] == sizes[1] < 16


def test_threads_that_wait_are_proven_but_for_the_values():
    model, _ = recurrent_model("GRU", steps=20, batch=1, features=8, hidden=128)
    built = roller_tvm.compile(model, target="llvm -mcpu=skylake-avx512 -num-cores=2", prove=True)
    (plan,) = [plan for plan in built.report().plans if plan.plan.startswith("cpu.recurrence")]
    assert "threads share units" in plan.plan and plan.proof.startswith("undecided: values (a kernel that was never")


def nodes_of(main):
    if line() == "relax":
        return len(main.body.blocks[0].bindings)
    found = []
    tvm.relay.analysis.post_order_visit(main.body, found.append)
    return sum(isinstance(one, tvm.relay.Call) for one in found)


def test_saved(tmp_path):
    model, inputs = recurrent_model("GRU", steps=5, batch=3, features=4, hidden=20)
    built = roller_tvm.compile(model)
    built.save(tmp_path / "m.so")
    loaded = roller_tvm.load(tmp_path / "m.so")
    for one, other in zip(outputs(loaded, inputs), outputs(built, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_tvms_own_schedules():
    model, inputs = recurrent_model("RNN", steps=5, batch=3, features=4, hidden=20, direction="bidirectional")
    for one, other in zip(outputs(roller_tvm.compile(model, schedules="tvm"), inputs), expected(model, inputs),
                          strict=True):  # fmt: skip
        np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.skipif(line() != "relax", reason="the Relay line writes the steps out")
def test_another_target_is_refused():
    model, _ = recurrent_model("RNN", steps=5, batch=3, features=4, hidden=20)
    with pytest.raises(UnsupportedOperator, match="RNN: recurrences are planned for CPUs, not for cuda"):
        roller_tvm.compile(model, target="cuda -arch=sm_80")


def computed_weights(**attributes):
    w, r = (numpy_helper.from_array(np.zeros((1, 8, e), "float32"), n) for n, e in (("W", 4), ("R", 8)))
    attributes |= {"hidden_size": 8, "name": "inner"}
    nodes = [helper.make_node("Mul", ["W", "s"], ["scaled"]),
             helper.make_node("RNN", ["X", "scaled", "R"], ["Y"], **attributes)]  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("X", (5, 1, 4)), ("s", (1,)))]
    outs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outs, [w, r])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


@pytest.mark.parametrize("attributes", [{}, {"clip": 0.5}])
def test_computed_weights_are_refused_by_name(attributes):
    if line() == "relay" and not attributes:
        pytest.skip("TVM's importer writes the steps out")
    with pytest.raises(UnsupportedOperator, match="RNN 'inner': RNN: its W is computed in the graph"):
        roller_tvm.compile(computed_weights(**attributes))
