"""Built models on disk: written whole or not at all, run from a fresh process, refused by name."""

import errno
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
from tvm import relax  # noqa: E402

from roller_tvm.errors import BadInput, DiskFull, UsageError  # noqa: E402
from roller_tvm.relax import package  # noqa: E402
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


def test_plain_tvm_runs_it(library):
    code = (
        "import sys, numpy as np, tvm; from tvm import relax\n"
        f"vm = relax.VirtualMachine(tvm.runtime.load_module({str(library)!r}), tvm.cpu())\n"
        "x, y = (tvm.runtime.tensor(np.ones(s, 'float32')) for s in ((2, 8), (4,)))\n"
        "print(vm['main'](x, y)[0].numpy().shape, 'roller_tvm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "(2, 4) False", done.stderr


def test_no_space_left(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(package.os, "replace", full)
    with pytest.raises(DiskFull, match="nothing was written"):
        save_model(build(), tmp_path / "m.so")
    assert not list(tmp_path.iterdir())


def test_refused(library, tmp_path):
    with pytest.raises(UsageError, match="does not end in .so"):
        save_model(None, tmp_path / "m.tar")
    with pytest.raises(BadInput, match="mkdir -p"):
        save_model(None, tmp_path / "no" / "m.so")
    (tmp_path / "text.so").write_text("no library")
    for name, said in (("none.so", "no such file"), ("text.so", "is not a model of the Relax line")):
        with pytest.raises(BadInput, match=said):
            LoadedModel(tmp_path / name)
    with pytest.raises(BadInput, match="needs a cuda device, there is none here"):
        LoadedModel(library, "cuda")
