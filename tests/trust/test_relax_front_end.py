"""Relax passes before the kernels: what a model says stays true (training, effects, names, open extents)."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import relax  # noqa: E402

from roller_tvm.errors import BadInput  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare, roller_pipeline, schedule  # noqa: E402

from ..relax.networks import LLVM, default, module, run  # noqa: E402

SEEN: list[tuple] = []


@tvm.register_global_func("roller_tvm.tests.seen")
def seen(x):
    SEEN.append(tuple(x.shape))
    return x


def test_a_batch_normalisation_in_training_takes_the_statistics_of_its_batch():
    def network(builder, x):
        parts = [relax.const(np.linspace(low, 2, 3).astype("float32")) for low in (0.5, -1, -1, 0.5)]
        return builder.emit(relax.op.nn.batch_norm(x, *parts, axis=1, training=True))

    mod, x = module(network, (4, 3, 8, 8)), np.random.default_rng(1).random((4, 3, 8, 8), "float32")
    for got, wanted in zip(run(build(mod, LLVM), x), default(mod, x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_packed_call_whose_result_nobody_reads_is_made():
    def network(builder, x):
        y = builder.emit(relax.op.add(x, x))
        builder.emit(relax.op.call_pure_packed("roller_tvm.tests.seen", y, ty_args=[y.ty]))
        return builder.emit(relax.op.multiply(y, y))

    SEEN.clear()
    run(build(module(network, (4, 8)), LLVM), np.ones((4, 8), "float32"))
    assert SEEN == [(4, 8)]
    assert tvm.ir.Op.get("relax.call_pure_packed").get_attr("FPurity")  # everywhere else


def test_names_of_kernels_stay():
    def network(builder, x):
        y = builder.emit(relax.op.matmul(x, relax.const(np.ones((8, 16), "float32"))))
        return builder.emit(relax.op.nn.softmax(y))

    prepared = prepare(module(network, (4, 8)), LLVM)
    assert {v.name_hint for v in prepared.get_global_vars()} == {"main", "matmul", "softmax"}
    names = {v.name_hint for v in schedule(prepared, LLVM)[0].get_global_vars()}
    assert {name.removesuffix("_prepacked") for name in names} == {"main", "matmul", "softmax"}


def test_a_sum_over_an_open_extent_of_zero_is_zero():
    builder, n = relax.BlockBuilder(), tvm.tirx.Var("n", "int64")
    x, y = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in (("x", (4, n)), ("y", (n, 100))))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, y))
        builder.emit_func_output(out)
    machine = relax.VirtualMachine(build(builder.get(), LLVM), tvm.cpu())
    for extent, wanted in ((3, 42.0), (0, 0.0)):  # the memory of the first is that of the second
        arrays = [np.full(s, v, "float32") for s, v in (((4, extent), 2), ((extent, 100), 7))]
        got = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
        np.testing.assert_array_equal(got, np.full((4, 100), wanted, "float32"))


def test_schedules_are_roller_s_or_tvm_s():
    with pytest.raises(BadInput, match="one of roller, tvm"):
        build(module(lambda builder, x: builder.emit(relax.op.add(x, x)), (4,)), LLVM, schedules="rollr")


def test_a_callback_is_called_though_nothing_reads_its_result():
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4,), "float32"))
    tensor = relax.TensorType((4,), "float32")
    told = relax.Var("told", relax.FuncType([tensor], relax.TupleType([])))
    with builder.function("main", [x, told]):
        y = builder.emit(relax.op.add(x, x))
        builder.emit(relax.Call(told, [y]))
        builder.emit_func_output(y)
    machine, seen = relax.VirtualMachine(build(builder.get(), LLVM), tvm.cpu()), []
    machine["main"](tvm.runtime.tensor(np.ones(4, "float32")), lambda array: seen.append(array.numpy().tolist()))
    assert seen == [[2, 2, 2, 2]]


@pytest.mark.parametrize("mode", ["bytecode", "compiled"])
def test_a_kernel_reads_what_a_callback_returns(mode):
    builder, tensor = relax.BlockBuilder(), relax.TensorType((16,), "int32")
    made = relax.Var("made", relax.FuncType([], tensor))
    with builder.function("main", [made]):
        builder.emit_func_output(builder.emit(relax.op.multiply(builder.emit(relax.Call(made, [])), relax.const(2))))
    target = tvm.target.Target(LLVM)
    built = relax.build(builder.get(), target, relax_pipeline=roller_pipeline(target), exec_mode=mode)
    machine, x = relax.VirtualMachine(built, tvm.cpu()), np.arange(16, dtype="int32")
    np.testing.assert_array_equal(machine["main"](lambda: tvm.runtime.tensor(x)).numpy(), 2 * x)


def test_instruments_find_no_fault_while_packed_calls_are_kept():
    from tvm.relax.ir.instrument import WellFormedInstrument

    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            copied = relax.op.call_pure_packed("vm.builtin.copy", x, ty_args=[x.ty])
            y = builder.emit_output(relax.op.add(builder.emit(copied), x))
        builder.emit_func_output(y)
    with tvm.transform.PassContext(instruments=[WellFormedInstrument()]):
        machine = relax.VirtualMachine(build(builder.get(), LLVM), tvm.cpu())
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(np.ones(4, "float32"))).numpy(), 2)
