"""roller_tvm.compile, load and Model, the same on either TVM line."""

import subprocess
import sys

import numpy as np
import pytest

import roller_tvm
from roller_tvm.errors import BadInput, UsageError
from roller_tvm.tvm_env import line

pytestmark = pytest.mark.te
pytest.importorskip("onnx")
RNG = np.random.default_rng(0)
W, B = (RNG.standard_normal(s).astype("float32") for s in ((24, 48), (48,)))
X = RNG.standard_normal((4, 24)).astype("float32")
EXPECTED = [np.maximum(X @ W + B, 0), (X @ W).sum(1)]
FILE = ".so"


@pytest.fixture(scope="module")
def onnx_model():
    """relu(x @ W + B), and the sum of the rows of x @ W."""
    from onnx import TensorProto, helper, numpy_helper

    tensor = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["xw"], "product"),
        helper.make_node("Add", ["xw", "B"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
        helper.make_node("ReduceSum", ["xw", "axis"], ["rows"], keepdims=0),
    ]
    weights = [numpy_helper.from_array(a, n) for a, n in ((W, "W"), (B, "B"), (np.array([1]), "axis"))]
    graph = helper.make_graph(
        nodes, "net", [tensor("x", TensorProto.FLOAT, ["n", 24])],
        [tensor("y", TensorProto.FLOAT, ["n", 48]), tensor("rows", TensorProto.FLOAT, ["n"])], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def path(onnx_model, tmp_path_factory):
    import onnx

    file = tmp_path_factory.mktemp("api") / "net.onnx"
    onnx.save(onnx_model, file)
    return file


@pytest.fixture(scope="module")
def model(path):
    return roller_tvm.compile(path, shapes={"x": (4, 24)}, threads=1)


def right(outputs):
    for output, expected in zip(outputs, EXPECTED, strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    return True


def test_it_runs_as_a_function_and_by_names(model):
    assert right(model(X)) and right(model(x=X)) and right(model.run({"x": X}))
    assert right(model(X.tolist())), "plain numbers are taken in the model's type"
    assert list(model.inputs) == ["x"] and model.inputs["x"] == ((4, 24), "float32") and model.device == "cpu"
    assert "net.onnx: x [4, 24] float32; cpu, 1 threads" in repr(model)


def test_dlpack_in_and_out(model):
    class Foreign:
        """Another library's tensor."""

        def __dlpack__(self, **kwargs):
            return X.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return X.__dlpack_device__()

    assert right(model(Foreign()))
    kept = model.run({"x": X}, on_device=True)
    model.run({"x": X + 1})
    assert right([np.from_dlpack(tensor) for tensor in kept]), "a later run does not change them"
    assert right([np.from_dlpack(array) for array in model.run({"x": X})])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda m: m(), "input 'x' .float32.4, 24.. is missing"),
        (lambda m: m(X, X), "takes 1 inputs, 2 are given"),
        (lambda m: m(X, x=X), "input 'x' is given twice"),
        (lambda m: m(z=X), "has no input 'z'"),
        (lambda m: m(X[:3]), "'x' is .3, 24., the model takes .4, 24."),
        (lambda m: m(X[0]), "'x' is .24., the model takes .4, 24."),
        (lambda m: m(X.astype("float64")), r"input 'x' is float64, the model takes float32\n.*x.astype\('float32'\)"),
        (lambda m: m.run(X), "'inputs' must be a mapping"),
        (lambda m: m("text"), "input 'x' is <U4, the model takes float32|'x' is ..,"),
    ],
)
def test_wrong_inputs_are_refused_by_name(model, call, told):
    with pytest.raises(BadInput, match=told):
        call(model)


def test_a_report_tells_plans_then_times(model):
    report = model.report()
    assert report.plans and not report.times
    assert all(plan.how == "planned" and plan.predicted_s > 0 and "cpu." in plan.plan for plan in report.plans)
    times = model.profile({"x": X}, 2)
    known = {plan.kernel for plan in report.plans}
    assert times and known & {time.name for time in times}
    shown = str(model.report())
    assert "Roller's plan" in shown and " all" in shown.splitlines()[-1]
    assert type(report).from_json(model.report().to_json()) == model.report()
    assert all(seconds > 0 for seconds in model.times({"x": X}, 2, 3))


def test_a_saved_model_is_loaded_with_its_report(model, tmp_path):
    saved = model.save(tmp_path / f"net{FILE}")
    loaded = roller_tvm.load(saved, threads=1)
    assert right(loaded(X)) and loaded.report().plans == model.report().plans
    assert right(roller_tvm.load(loaded.save(tmp_path / f"again{FILE}"))(X))
    with pytest.raises(UsageError, match="a loaded model cannot be tuned"):
        loaded.tune()
    with pytest.raises(UsageError, match="does not end in"):
        loaded.save(tmp_path / "net.onnx")
    with pytest.raises(BadInput, match="no such folder"):
        loaded.save(tmp_path / f"absent/net{FILE}")


def test_tvms_own_schedules_are_another_choice(path):
    model = roller_tvm.compile(path, shapes="x:[4,24]", schedules="tvm")
    assert right(model(X)) and not any(plan.how == "planned" for plan in model.report().plans)


@pytest.mark.one_line("relax")
def test_tuning_goes_on_with_the_records(path, tmp_path):
    model = roller_tvm.compile(path, shapes={"x": (4, 24)}, threads=1)
    records = tmp_path / ("records.json" if line() == "relay" else "records")
    seen = []
    result = model.tune(1, records, lambda task, count: seen.append(task))
    assert len(seen) == len(result.tasks) > 0 and records.exists()
    assert right(model(X)) and any(plan.how == "record" for plan in model.report().plans)
    again = roller_tvm.compile(path, shapes={"x": (4, 24)}, records=records)
    assert right(again(X)) and any(plan.how == "record" for plan in again.report().plans)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"schedules": "ansor"}, UsageError, "'schedules' must be one of roller, tvm"),
        ({"shapes": {"x": (0, 24)}}, UsageError, "must be ints >= 1"),
        ({"shapes": [4, 24]}, UsageError, "'shapes' must be a mapping"),
        ({"shapes": {"z": (4, 24)}}, BadInput, "no input is called 'z'"),
        ({"threads": 0}, UsageError, "'threads' must be an int >= 1"),
        ({"target": "llvm -mcpu=none-such"}, BadInput, "none-such"),
        ({"layout": "CHW"}, UsageError, "unknown layout 'CHW'"),
    ],
)
def test_wrong_arguments_are_refused_by_name(path, arguments, error, told):
    with pytest.raises(error, match=told):
        roller_tvm.compile(path, **{"shapes": {"x": (4, 24)}, **arguments})


def test_no_such_file(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        roller_tvm.compile(tmp_path / "absent.onnx")
    with pytest.raises(BadInput, match="no such file"):
        roller_tvm.load(tmp_path / f"absent{FILE}")


def test_importing_it_is_free_of_tvm_and_numpy():
    code = "import sys, roller_tvm; dir(roller_tvm); print([m for m in ('tvm', 'numpy', 'onnx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_models_in_memory(onnx_model):
    model = roller_tvm.compile(onnx_model, shapes={"x": (4, 24)})
    assert right(model(X)) and "net" in repr(model)
    broken = type(onnx_model)()
    broken.CopyFrom(onnx_model)
    broken.graph.node[2].op_type = "NoSuchOperator"
    with pytest.raises(BadInput, match="NoSuchOperator") as refused:
        roller_tvm.compile(broken, shapes={"x": (4, 24)})
    assert refused.value.where.startswith("model")
    with pytest.raises(UsageError, match="its weights are in it"):
        roller_tvm.compile(onnx_model, shapes={"x": (4, 24)}, params={"W": W})
    with pytest.raises(BadInput, match="'model' must be a path, an onnx.ModelProto"):
        roller_tvm.compile(W)


def test_modules_of_tvm_with_weights_apart():
    import tvm

    if line() == "relay":
        from tvm import relay

        x, w = relay.var("x", shape=(4, 24)), relay.var("w", shape=(24, 48))
        mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.relu(relay.nn.matmul(x, w))))
    else:
        from tvm import relax

        builder = relax.BlockBuilder()
        types = (relax.TensorType(shape, "float32") for shape in ((4, 24), (24, 48)))
        x, w = map(relax.Var, "xw", types)
        with builder.function("main", [x, w]):
            with builder.dataflow():
                y = builder.emit_output(relax.op.nn.relu(relax.op.matmul(x, w)))
            builder.emit_func_output(y)
        mod = builder.get()
    model = roller_tvm.compile(mod, params={"w": W})
    assert list(model.inputs) == ["x"]
    np.testing.assert_allclose(model(X), np.maximum(X @ W, 0), rtol=1e-4, atol=1e-5)


class TestTorch:
    @pytest.fixture
    def module(self):
        torch = pytest.importorskip("torch", reason="torch modules need torch: pip install torch")

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.convolution, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
                self.linear = torch.nn.Linear(8, 5)

            def forward(self, x, scale):
                y = torch.relu(self.norm(self.convolution(x))).mean((2, 3))
                return self.linear(y) * scale, y

        torch.manual_seed(0)
        return Net()

    @pytest.fixture
    def inputs(self, module):
        import torch

        return torch.randn(2, 3, 8, 8), torch.tensor(2.0)

    def check(self, model, module, inputs):
        import torch

        with torch.no_grad():
            expected = module.eval()(*inputs)
        for output, wanted in zip(model(*inputs), expected, strict=True):
            np.testing.assert_allclose(output, wanted.numpy(), rtol=1e-4, atol=1e-5)

    def test_a_module(self, module, inputs):
        model = roller_tvm.compile(module, example_inputs=inputs)
        assert module.training, "the module keeps its mode"
        self.check(model, module, inputs)
        with pytest.raises(UsageError, match="needs example inputs"):
            roller_tvm.compile(module)
        with pytest.raises(BadInput, match="cannot take it"):
            roller_tvm.compile(module, example_inputs=inputs[:1])

    def test_a_program_and_its_file(self, module, inputs, tmp_path):
        import torch

        program = torch.export.export(module.eval(), inputs)
        self.check(roller_tvm.compile(program), module, inputs)
        torch.export.save(program, tmp_path / "net.pt2")
        self.check(roller_tvm.compile(tmp_path / "net.pt2", trusted=True), module, inputs)
