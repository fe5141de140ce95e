"""Built models on disk: written whole or not at all, run from a fresh process, refused by name."""


import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
from tvm import relax  # noqa: E402

from roller_tvm.relax.package import LoadedModel, save_model, with_signature  # noqa: E402
from roller_tvm.relax.watch import Watch  # noqa: E402

WEIGHT = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
INPUTS = {"x": (("n", 8), "float32"), "y": ((4,), "float32")}


def build():
    builder, n = relax.BlockBuilder(), tvm.tirx.Var("n", "int64")
    x, y = relax.Var("x", relax.TensorType((n, 8), "float32")), relax.Var("y", relax.TensorType((4,), "float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(WEIGHT)))
            out = builder.emit_output(relax.Tuple([relax.op.add(product, y), product]))
        builder.emit_func_output(out)
    return tvm.compile(with_signature(builder.get(), INPUTS), tvm.target.Target({"kind": "llvm", "num-cores": 1}))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return save_model(build(), tmp_path_factory.mktemp("built") / "m.so")


@pytest.mark.parametrize("rows", [1, 5])
def test_it_says_its_inputs_and_runs(library, rows):
    model = LoadedModel(library)
    assert model.inputs == INPUTS and model.kind == "cpu"
    x, y = np.random.default_rng(1).random((rows, 8), "float32"), np.arange(4, dtype="float32")
    added, product = model.run({"y": y, "x": x})
    np.testing.assert_allclose(product, x @ WEIGHT, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(added, x @ WEIGHT + y, rtol=1e-5, atol=1e-5)
    times = model.times({"x": x, "y": y}, number=2, repeat=3)
    assert len(times) == 3 and min(times) > 0


def test_it_tells_what_its_kernels_take(library):
    model = LoadedModel(library)
    inputs = {"x": np.ones((3, 8), "float32"), "y": np.ones(4, "float32")}
    rows = model.kernel_times(inputs, repeat=3)
    assert {(r.name, r.arguments, r.calls) for r in rows} >= {  # and one that counts the rows of the output
        ("matmul", ("3x8", "8x4", "3x4"), 1), ("add", ("3x4", "4", "3x4"), 1)}  # fmt: skip
    assert all(r.seconds > 0 for r in rows)
    for got, wanted in zip(model.run(inputs), LoadedModel(library).run(inputs), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_function_that_calls_others_counts_its_own_time_alone(monkeypatch):
    now = iter(range(0, 80, 10))
    monkeypatch.setattr("roller_tvm.relax.watch.perf_counter", lambda: next(now))
    watch = Watch(tvm.cpu())
    for name, before in [("outer", True), ("inner", True), ("inner", False), ("vm.builtin.shape_of", True),
                         ("vm.builtin.shape_of", False), ("outer", False)]:  # fmt: skip
        watch(None, name, before, None)
    assert [(c.name, c.seconds) for c in watch.taken()] == [("inner", 10), ("outer", 30)] and not watch.taken()


