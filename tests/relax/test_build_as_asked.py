"""What a user says beside the model holds: passes switched off, a function's own target, weights, whole numbers."""

import argparse

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax, te  # noqa: E402

from roller_tvm.cli.inputs import inputs_of  # noqa: E402
from roller_tvm.errors import BadInput, UnsupportedOperator  # noqa: E402
from roller_tvm.relax import build, load_model  # noqa: E402
from roller_tvm.relax.package import arrays_of  # noqa: E402
from roller_tvm.relax.resources import cuda_sources  # noqa: E402

from .networks import LLVM, module, values  # noqa: E402

CUDA = {"kind": "cuda", "arch": "sm_80"}


def product(builder, x, w):
    return builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, w))))


@tvm.ir.instrument.pass_instrument
class Seen:
    def __init__(self):
        self.names, self.contexts = [], []

    def enter_pass_ctx(self):
        self.contexts.append("in")

    def exit_pass_ctx(self):
        self.contexts.append("out")

    def run_before_pass(self, mod, info):
        self.names.append(str(info.name))


@pytest.mark.parametrize("target", [LLVM, CUDA], ids=["llvm", "cuda"])
def test_passes_that_are_switched_off_do_not_run(target):
    seen = Seen()
    with tvm.transform.PassContext(disabled_pass=["FoldScales"], instruments=[seen]):
        build(module(product, (32, 16), (16, 16)), target)
        assert target is CUDA or seen.contexts == ["in"], "entered once, finished by its own context"
    assert "FoldScales" not in seen.names and "FuseTIR" in seen.names


@pytest.mark.parametrize("attrs", [{}, {"tirx.is_host_func": True}], ids=["target", "host"])
def test_a_function_for_the_host_stays_there(attrs):
    x = te.placeholder((64, 64), name="x")
    func = te.create_prim_func([x, te.compute((64, 64), lambda i, j: x[i, j] + 1)], index_dtype_override="int64")
    func = func.without_attr("global_symbol").with_attr("target", tvm.target.Target(LLVM))
    for name, value in attrs.items():
        func = func.with_attr(name, value)
    builder, v = relax.BlockBuilder(), relax.Var("x", relax.TensorType((64, 64), "float32"))
    own = builder.add_func(func, "on_host")
    with builder.function("main", [v]):
        with builder.dataflow():
            builder.emit(relax.call_tir(own, [v], relax.TensorType((64, 64), "float32")))
            last = builder.emit_output(relax.op.exp(v))
        builder.emit_func_output(last)
    source = "\n".join(cuda_sources(build(builder.get(), CUDA).mod))
    assert "exp" in source and "on_host" not in source


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"v": values(16, 16)}, "'main' takes no parameter 'v'"),
        ({"x1": values(16, 8)}, r"'x1' is \[16, 8\] of float32"),
        ({"x1": values(16, 16).astype("float64")}, "of float64, 'main' takes"),
    ],
)
def test_weights_that_nothing_takes_are_refused(params, told):
    with pytest.raises(BadInput, match=told):
        build(module(product, (32, 16), (16, 16)), LLVM, params)


def test_buckets_of_a_function_that_another_calls():
    n = tvm.tirx.Var("n", "int64")
    x, y = (relax.Var(name, relax.TensorType((rows, 16), "float32")) for name, rows in (("x", n), ("y", 4)))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    mod = builder.get()
    with builder.function("other", [y]):
        builder.emit_func_output(builder.emit(relax.Call(mod.get_global_var("main"), [y])))
    machine = relax.VirtualMachine(build(builder.get(), LLVM, buckets=[4]), tvm.cpu())
    for rows, name in ((4, "main"), (7, "main"), (4, "other")):
        given = values(rows, 16)
        np.testing.assert_allclose(machine[name](tvm.runtime.tensor(given)).numpy(), np.exp(given), rtol=1e-5)


def test_buckets_of_no_function():
    mod = module(product, (32, 16), (16, 16))
    named = tvm.IRModule({"prefill": mod["main"].with_attr("global_symbol", "prefill")})
    with pytest.raises(BadInput, match="no function 'main'"):
        build(named, LLVM, buckets=[4])


@pytest.mark.parametrize(
    ("given", "dtype", "lost"),
    [
        (np.array([1, 300], "int64"), "int8", "300"),
        (np.array([1.7, 2.0]), "int32", "1.7"),
        (np.array([0.2, 1.0]), "bool", "0.2"),
        (np.array([1, 2**40]), "int32", "1099511627776"),
    ],
)
def test_a_whole_number_does_not_become_another(given, dtype, lost, tmp_path):
    np.savez(tmp_path / "in.npz", x=given)
    args = argparse.Namespace(inputs=str(tmp_path / "in.npz"), fill_mode="random")
    with pytest.raises(BadInput, match=f"'x' has {lost} .*the model's {dtype} cannot hold"):
        inputs_of(args, {"x": ((2,), dtype)})
    np.savez(tmp_path / "in.npz", x=np.array([1.0, 0.0]))
    assert inputs_of(args, {"x": ((2,), dtype)})["x"].dtype == dtype


def test_shapes_and_numbers_are_results_too():
    found = list(arrays_of([tvm.runtime.ShapeTuple([3, 4]), 5, tvm.runtime.tensor(values(2))]))
    assert [a.tolist() for a in found[:2]] == [[3, 4], 5] and found[2].shape == (2,)


def test_an_input_whose_extents_nothing_tells(tmp_path):
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(None, "float32", ndim=2))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    (tmp_path / "m.json").write_text(str(tvm.ir.save_json(builder.get())))
    with pytest.raises(UnsupportedOperator, match="input 'x' has extents that nothing tells"):
        load_model(tmp_path / "m.json", trusted=True)
