"""FuseRTasks on Relay: branchy nets as few kernels, built by plain relay.build, executed by the emulator."""

from dataclasses import replace

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402
from tvm.contrib.graph_executor import GraphModule  # noqa: E402
from tvm.relay.testing import lstm  # noqa: E402
from tvm.runtime.vm import VirtualMachine  # noqa: E402

from roller_tvm.codegen import compile_cuda, kernel_resources  # noqa: E402
from roller_tvm.codegen.cuda_text import CudaSource  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import TargetError, UsageError  # noqa: E402
from roller_tvm.rammer.cuda_functions import CannotFuse  # noqa: E402
from roller_tvm.relay import (  # noqa: E402
    FuseRTasks,
    GraphFusion,
    build,
    fused_sources,
    fusion_of,
    rtask_functions,
    tune,
    use_winograd,
)
from roller_tvm.relay.building import FUSION  # noqa: E402
from roller_tvm.relay.cuda import use_toolchain  # noqa: E402

from ..sampling import sampled  # noqa: E402
from .fused_nets import ARCH, CPU_WITH_AVX512, TARGET, Net, compare, reference  # noqa: E402


def inception(net):
    x = relay.var("x", shape=(1, 8, 8, 8))
    pool = relay.nn.max_pool2d(x, (3, 3), (1, 1), padding=(1, 1))
    long = net.conv(net.conv(x, "b", 8, 8, 1), "c", 8, 8, 3)
    return net.module(relay.concatenate([net.conv(x, "a", 8, 8, 1), long, net.conv(pool, "d", 8, 8, 1)], 1))


def test_an_inception_cell_is_one_kernel(tmp_path):
    net = Net()
    fused, fusion, steps = compare(net, inception(net), tmp_path)
    assert fusion.launches == 1 < fusion.sequential_launches and not fusion.outside and not fusion.refused
    assert [s.kernels for s in steps] == [1] and list(fused_sources(fused)) == ["rtasks_0"]
    assert "barriers" in str(fusion) and "one by one" in fusion.explain()
    assert [p.startswith("<svg") for p in fusion.pictures()] == [True]


@pytest.mark.nightly
def test_plain_relay_build_of_an_attention_block(tmp_path):
    """Views between the products, a softmax of several stages, a normalisation, a residual sum."""
    net = Net()
    x = relay.var("x", shape=(8, 32))
    q, k, v = (relay.transpose(relay.reshape(relay.nn.dense(x, net.weight(n, 32, 32)), (8, 2, 16)), (1, 0, 2))
               for n in "qkv")
    scores = relay.nn.softmax(relay.nn.batch_matmul(q, k) * relay.const(0.25))
    heads = relay.transpose(relay.nn.batch_matmul(scores, relay.transpose(v, (0, 2, 1))), (1, 0, 2))
    mixed = relay.nn.dense(relay.reshape(heads, (8, 32)), net.weight("o", 32, 32))
    mod = net.module(relay.nn.layer_norm(x + mixed, net.weight("g", 32), net.weight("b", 32)))
    fused, fusion, steps = compare(net, mod, tmp_path)
    assert fusion.launches <= fusion.sequential_launches // 3
    use_toolchain()
    with tvm.transform.PassContext(opt_level=3):
        lib = relay.build(fused, TARGET)
        machine = relay.vm.compile(fused, TARGET)
    sources = {m.get_source() for m in modules(lib.get_lib()) if m.type_key == "cuda"}
    assert sum(len(CudaSource(s).kernels) for s in sources) == fusion.launches
    assert [n for n in machine.primitive_ops if n.startswith("rtasks")] == list(fused_sources(fused))
    lib.export_library(str(tmp_path / "lib.so"))
    loaded = tvm.runtime.load_module(str(tmp_path / "lib.so"))
    assert loaded.get_function("rtasks_0", query_imports=True) is not None


def modules(module):
    return [module, *(m for inner in module.imported_modules for m in modules(inner))]


@pytest.mark.nightly
def test_lstm_cells(tmp_path):
    """Functions called where they are written, tuples of states, split gates; equal cells."""
    net = Net()
    mod, net.params = lstm.get_workload(2, 16)
    _, fusion, steps = compare(net, mod, tmp_path)
    assert fusion.launches * 3 <= fusion.sequential_launches and len(steps) == fusion.kernels


@pytest.mark.nightly
def test_an_operator_outside_in_the_middle(tmp_path):
    """What cannot be planned stays between two plans, and is named."""
    net = Net()
    x = relay.var("x", shape=(4, 32))
    a, b = (relay.nn.relu(relay.nn.dense(x, net.weight(n, 32, 32))) for n in "ab")
    put = relay.scatter_elements(a + b, relay.const(np.zeros((4, 32), "int32")), a * b)
    c, d = relay.nn.dense(put, net.weight("c", 16, 32)), relay.nn.dense(put, net.weight("d", 16, 32))
    last = relay.nn.dense(b, net.weight("e", 16, 32))  # of the first plan or of the second, never of a cycle
    _, fusion, steps = compare(net, net.module(relay.tanh(c) + relay.sigmoid(d) + last), tmp_path)
    ((name, why),) = fusion.outside
    assert "scatter" in name and "ExternOp" in why and why in fusion.explain()
    assert [s.name.startswith("rtasks") for s in steps] == [True, False, True]


def test_several_outputs_views_and_what_is_read_outside_too(tmp_path):
    net = Net()
    x = relay.var("x", shape=(4, 32))
    gates = relay.nn.dense(x, net.weight("a", 64, 32))
    parts = relay.split(gates, 4, 1)
    state = relay.sigmoid(parts[0]) * relay.tanh(parts[1])
    mod = net.module(relay.Tuple([state, relay.nn.softmax(gates), parts[2], relay.reshape(state, (2, 32)), x]))
    _, fusion, _ = compare(net, mod, tmp_path)
    assert fusion.launches == 1


@pytest.mark.nightly
def test_residual_sums(tmp_path):
    net = Net()
    x = relay.var("x", shape=(1, 4, 6, 6))
    y = net.conv(x, "a", 4, 4, 3)
    z = net.conv(y, "b", 4, 4, 3) + y
    _, fusion, _ = compare(net, net.module(net.conv(z, "c", 4, 4, 3) + z), tmp_path, policy="wavefront")
    assert fusion.launches < fusion.sequential_launches


@pytest.mark.nightly
def test_the_same_block_twice(tmp_path):
    """Two blocks of a network, each between operators that stay outside."""
    net = Net()
    x = relay.var("x", shape=(4, 16))
    for name in "ab":
        left, right = (relay.nn.dense(x, net.weight(name + side, 16, 16)) for side in "lr")
        x = relay.scatter_elements(relay.tanh(left), relay.const(np.zeros((4, 16), "int32")), relay.sigmoid(right))
    fused, fusion, steps = compare(net, net.module(x), tmp_path)
    assert fusion.kernels == 2 and list(fused_sources(fused)) == ["rtasks_0", "rtasks_1"]
    assert [s.name for s in steps if s.name.startswith("rtasks")] == ["rtasks_0", "rtasks_1"]


@pytest.mark.nightly
def test_tensors_of_other_types(tmp_path):
    """Truth values and integers between operators of a plan, and as results; one tensor twice."""
    net = Net()
    x = relay.var("x", shape=(8, 16))
    y = relay.nn.dense(x, net.weight("w", 16, 16))
    less = relay.less(y, relay.nn.softmax(x))
    first = relay.cast(relay.argmax(y, axis=1), "int64")
    picked = relay.one_hot(first, relay.const(1.0), relay.const(0.0), 16, -1, "float32")
    small = relay.cast(y * relay.const(10.0), "int8")
    results = [relay.where(less, x, y), less, relay.logical_not(less), first, picked * y, small, less]
    _, fusion, _ = compare(net, net.module(relay.Tuple(results)), tmp_path)
    assert fusion.kernels == 1 and not fusion.outside


def test_copies_are_no_kernels(tmp_path):
    """ONNX's Identity: of what is computed, of what is copied, of an input that is a result too."""
    net = Net()
    x = relay.var("x", shape=(4, 16))
    y = relay.copy(relay.copy(relay.nn.dense(relay.copy(x), net.weight("a", 16, 16))))
    last = relay.nn.dense(relay.copy(y), net.weight("c", 16, 16))
    mod = net.module(relay.Tuple([relay.copy(relay.nn.dense(y, net.weight("b", 16, 16))), last, relay.copy(x)]))
    _, fusion, _ = compare(net, mod, tmp_path)
    names = [name for plan in fusion.plans for part in plan.parts for name, _ in part.kernels]
    assert sorted(names) == ["copy", "nn_dense", "nn_dense_1", "nn_dense_2"] and not fusion.outside


def test_control_flow_is_left_alone():
    x = relay.var("x", shape=(4, 16))
    which = relay.var("which", shape=(), dtype="bool")
    mod = tvm.IRModule.from_expr(relay.Function([x, which], relay.If(which, relay.tanh(x), relay.exp(x))))
    fused = FuseRTasks(ARCH)(mod)
    assert fusion_of(fused).kernels == 0 and dict(fusion_of(fused).outside)["main"] == "control flow in it (If)"
    with tvm.transform.PassContext(opt_level=3):
        relay.vm.compile(fused, TARGET)


def test_dynamic_shapes_stay_outside():
    x = relay.var("x", shape=(relay.Any(), 16))
    w = relay.var("w", shape=(16, 16))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.tanh(relay.nn.dense(x, relay.nn.relu(w)))))
    fusion = fusion_of(FuseRTasks(ARCH)(mod))
    assert any("a dynamic shape (?, 16)" in why for _, why in fusion.outside), fusion.outside


TOO_BIG = CannotFuse("its 900 vEUs wait for one another, and a unit has room for 1 of 9", "plan 'rtasks_0'", "none")


@pytest.mark.parametrize("error, told", sampled([
    (TOO_BIG, "room for 1 of 9"),
    (ValueError("no such text"), "ValueError: no such text"),  # not foreseen: it must not stop the model either
], 2))  # fmt: skip
def test_a_plan_too_big_for_the_device_is_named_and_the_model_builds(monkeypatch, error, told):
    net = Net()
    mod = inception(net)

    def refuse(*args, **kwargs):
        raise error

    monkeypatch.setattr("roller_tvm.rammer.makers.fuse", refuse)
    fused = FuseRTasks(ARCH, params=net.params, top=2)(mod)
    fusion = fusion_of(fused)
    assert fusion.kernels == 0 and told in fusion.explain() and "concatenate" in fusion.refused[0]
    with tvm.transform.PassContext(opt_level=3):
        relay.build(fused, TARGET)


def test_rkernels_without_code_are_given_up(monkeypatch):
    """A defect of one recipe leaves its operator outside; the others are fused."""
    net = Net()
    lowered = rtask_functions.lower

    def no_pool(plan):
        if "pool" in plan.expression.name:
            raise RuntimeError("steps do not apply")
        return lowered(plan)

    monkeypatch.setattr("roller_tvm.relay.rtask_functions.lower", no_pool)
    fusion = fusion_of(FuseRTasks(ARCH, params=net.params, top=2)(inception(net)))
    assert "steps do not apply" in dict(fusion.outside)["nn_max_pool2d"]
    assert fusion.kernels and "nn_max_pool2d" in fusion.refused[0]


@pytest.mark.nightly
def test_winograd_has_no_expression_of_its_own_and_stays_outside(tmp_path):
    net = Net()
    x = relay.var("x", shape=(1, 8, 8, 16))
    y = relay.nn.conv2d(x, net.weight("w", 3, 3, 16, 16), padding=(1, 1), kernel_size=(3, 3), channels=16,
                        data_layout="NHWC", kernel_layout="HWIO")  # fmt: skip
    mod = relay.transform.InferType()(net.module(relay.tanh(relay.nn.max_pool2d(y, (2, 2), layout="NHWC"))))
    changed, choices = use_winograd(mod, net.params, load_device("a100"), ARCH, gain=0.0)
    assert choices[0].chosen
    ((name, why),) = fusion_of(FuseRTasks(ARCH, params=net.params, top=2)(changed)).outside
    assert "winograd" in name and "No generic implem" in why


def test_targets_that_cannot_be():
    with pytest.raises(TargetError, match="needs its architecture"):
        FuseRTasks("cuda")
    with pytest.raises(TargetError, match="is a gpu"):
        FuseRTasks("llvm -mcpu=skylake-avx512", device="a100")


@pytest.mark.parametrize("arch", sampled(["sm_80", "sm_90"], always=["sm_80"]))  # the Relax line has the other
def test_resources_of_a_fused_kernel(arch):
    net = Net()
    fused = FuseRTasks(f"cuda -arch={arch}", params=net.params, top=2)(inception(net))
    (source,) = fused_sources(fused).values()
    taken = kernel_resources(compile_cuda(source, arch))
    assert list(taken) == ["rtasks_0"] and 0 < taken["rtasks_0"].registers <= 255
    assert taken["rtasks_0"].local_bytes == 0


@pytest.mark.nightly
def test_tuning_what_is_left(tmp_path):
    """Fused operators are no tasks any more; records of the others go into the same build."""
    net = Net()
    x = relay.var("x", shape=(4, 32))
    a, b = (relay.nn.relu(relay.nn.dense(x, net.weight(n, 32, 32))) for n in "ab")
    put = relay.scatter_elements(a + b, relay.const(np.zeros((4, 32), "int32")), a * b)
    mod = net.module(relay.nn.softmax(put))
    log = tmp_path / "r.json"
    result = tune(mod, net.params, ARCH, log, trials=0, fuse_rtasks=True)
    assert [t.task.name for t in result.tasks] == ["nn_softmax"] and result.fusion.kernels == 1
    assert "FuseRTasks: " in str(result)
    built = build(mod, net.params, ARCH, log, fuse_rtasks=True)
    assert getattr(built, FUSION) == result.fusion == fusion_of(result.module)
    assert tune(mod, net.params, ARCH, log, trials=0, fuse_rtasks=True).tasks[0].status == "resumed"


CPU = "llvm -mcpu=core-avx2 -num-cores=2"


@pytest.fixture
def cpu():
    """Two threads; opening a region takes a good part of what these operators do."""
    return replace(CPU_WITH_AVX512, launch_overhead_us=0.5)


def on_cpu(net, mod, cpu, tmp_path, auto_scheduler):
    """Fuse for a CPU, build by plain relay.build, run what was exported, compare."""
    with tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": auto_scheduler}):
        fused = FuseRTasks(CPU, cpu, net.params)(mod)
    with tvm.transform.PassContext(opt_level=3):
        relay.build(fused, tvm.target.Target(CPU)).export_library(str(tmp_path / "lib.so"))
        machine = VirtualMachine(relay.vm.compile(fused, CPU), tvm.cpu())
    module = GraphModule(tvm.runtime.load_module(str(tmp_path / "lib.so"))["default"](tvm.cpu()))
    feeds = net.feeds(mod)
    expected = reference(mod, net.params, feeds)
    module.set_input(**feeds)
    module.run()
    made = machine.run(*(tvm.nd.array(feeds[v.name_hint]) for v in mod["main"].params if v.name_hint in feeds))
    made = list(made) if isinstance(made, tvm.runtime.container.ADT) else [made]
    for number, one in enumerate(expected):
        np.testing.assert_allclose(module.get_output(number).numpy(), one, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(made[number].numpy(), one, rtol=1e-4, atol=1e-4)
    return fused, fusion_of(fused)


def test_small_products_side_by_side_on_a_cpu(cpu, tmp_path):
    """Equal ones, one of several stages, one that others read too."""
    net = Net()
    x = relay.var("x", shape=(64, 64))
    q, k, v = (relay.nn.dense(x, net.weight(n, 64, 64)) for n in "qkv")
    mod = net.module(relay.Tuple([relay.nn.softmax(q) + k, relay.nn.dense(q, net.weight("o", 16, 64)), v]))
    fused, fusion = on_cpu(net, mod, cpu, tmp_path, True)
    together = [{n for n, _ in p.kernels} for plan in fusion.plans for p in plan.parts if p.program]
    assert any(sum(n.startswith("nn_dense") for n in names) == 3 for names in together), str(fusion)
    assert fusion.predicted_seconds < fusion.sequential_seconds and fusion.launches < fusion.sequential_launches
    assert "T.parallel(2)" in next(iter(fused_sources(fused).values()))
    assert GraphFusion.from_json(fusion.to_json()) == fusion and len(fusion.pictures()) == len(fusion.plans)


@pytest.mark.nightly
def test_convolutions_as_tvm_lays_them_out_on_a_cpu(cpu, tmp_path):
    net = Net()
    _, fusion = on_cpu(net, inception(net), cpu, tmp_path, False)
    together = [n for plan in fusion.plans for p in plan.parts if p.program for n, _ in p.kernels]
    assert sum("conv2d_NCHWc" in n for n in together) >= 2, str(fusion)


def test_what_keeps_every_thread_busy_is_left_alone_on_a_cpu(cpu):
    net = Net()
    x = relay.var("x", shape=(512, 512))
    mod = net.module(relay.nn.dense(x, net.weight("a", 512, 512)) + relay.nn.dense(x, net.weight("b", 512, 512)))
    with tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}):
        assert fusion_of(FuseRTasks(CPU, cpu, net.params)(mod)).kernels == 0


@pytest.mark.nightly
def test_kernels_of_too_many_parameters_are_cut(monkeypatch):
    """Halves of a plan that no kernel can be given the tensors of; what they hand on within is one workspace."""
    net = Net()
    mod = inception(net)
    (whole,) = fused_sources(FuseRTasks(ARCH, params=net.params, top=2)(mod)).values()
    given = len(CudaSource(whole).kernel("rtasks_0").parameters)
    assert given == len(net.params) + 3  # the input, the result, the workspace
    monkeypatch.setattr("roller_tvm.rammer.fused_kernel._PARAMETERS", (given - 1) * 8)
    fused = FuseRTasks(ARCH, params=net.params, top=2)(mod)
    fusion = fusion_of(fused)
    assert f"{given * 8} B of parameters" in fusion.refused[0] and len(fused_sources(fused)) > 1
    assert sum(len(p.kernels) for plan in fusion.plans for p in plan.parts) == 6
    with tvm.transform.PassContext(opt_level=3):
        relay.build(fused, TARGET)


@pytest.mark.parametrize("policy", ["best", "horizontal"])
def test_what_is_given_a_tensor_for_its_shape_alone_comes_after_it(policy):
    """Groups could else need one another's results."""
    net = Net()
    x, y = relay.var("x", shape=(16, 32)), relay.var("y", shape=(24, 48))
    a = relay.nn.dense(relay.nn.dense(x, net.weight("w0", 32, 32)), net.weight("w1", 32, 32))
    e = relay.nn.dense(relay.slice_like(y, a), net.weight("w2", 16, 32))
    fused = FuseRTasks(ARCH, params=net.params, policy=policy)(net.module(relay.Tuple([a, e])))
    assert fusion_of(fused).kernels >= (1 if policy == "best" else 0)


def test_a_second_run_gives_its_kernels_other_names():
    net = Net()
    x = relay.var("x", shape=(8, 32))
    once = FuseRTasks(ARCH, params=net.params)(
        net.module(relay.Tuple([relay.nn.dense(x, net.weight(n, 32, 32)) for n in "qkv"]))
    )
    again = relay.var("y", shape=(8, 32))
    more = relay.Tuple([relay.nn.dense(again, net.weight(n, 32, 32)) for n in "abc"])
    both = relay.Tuple([once["main"].body, more])
    functions = {v: f for v, f in once.functions.items() if v.name_hint != "main"}
    parameters = [*once["main"].params, again, *(v for v in relay.analysis.free_vars(more) if v.name_hint in "abc")]
    mod = tvm.IRModule({**functions, relay.GlobalVar("main"): relay.Function(parameters, both)})
    fused = FuseRTasks(ARCH, params=net.params)(mod)
    assert {v.name_hint for v in fused.get_global_vars()} == {"main", "rtasks_0", "rtasks_1"}


def test_parts_of_what_a_function_returns_come_after_it(cpu, tmp_path):
    """Of nested tuples; without an order of them two plans wait for each other."""
    net = Net()
    p = relay.var("p", shape=(64, 64))
    called = relay.GlobalVar("called")
    mod = tvm.IRModule()
    mod[called] = relay.Function([p], relay.Tuple([relay.Tuple([relay.tanh(p), p + p]), relay.exp(p)]))
    mod.update(relay.transform.InferType()(mod))
    x = relay.var("x", shape=(64, 64))
    a, b = (relay.nn.dense(x, net.weight(n, 64, 64)) for n in "ab")
    nested = relay.TupleGetItem(called(a), 0)
    inner = relay.TupleGetItem(nested, 1)
    results = [relay.nn.dense(inner, net.weight("c", 64, 64)) + b, relay.nn.dense(inner, net.weight("d", 16, 64))]
    body = relay.Tuple([*results, relay.TupleGetItem(called(a), 1)])
    mod["main"] = relay.Function(relay.analysis.free_vars(body), body)
    mod = relay.transform.InferType()(mod)
    with tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}):
        fused = FuseRTasks(CPU, cpu, net.params)(mod)
    assert fusion_of(fused).kernels
    feeds = net.feeds(mod)
    for got, wanted in zip(reference(fused, net.params, feeds), reference(mod, net.params, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_functions_whose_names_meet_those_of_a_second_call():
    x = relay.var("x", shape=(4, 32))
    mod = tvm.IRModule()
    for name, compute in (("layer", relay.tanh), ("layer_1", relay.exp)):
        p = relay.var("p", shape=(4, 32))
        mod[relay.GlobalVar(name)] = relay.Function([p], compute(p), relay.TensorType((4, 32)))
    layer, other = mod.get_global_var("layer"), mod.get_global_var("layer_1")
    mod["main"] = relay.Function([x], relay.Tuple([layer(x), layer(x + x), other(x)]))
    outside = dict(fusion_of(FuseRTasks(ARCH)(relay.transform.InferType()(mod))).outside)
    assert {"layer", "layer_1", "layer_1_1"} <= set(outside) or {"layer", "layer_1", "layer_2"} <= set(outside)


def test_a_copied_view_of_an_input_is_no_view(cpu):
    """The result stays what it is when the input is set again."""
    net = Net()
    x = relay.var("x", shape=(4, 32))
    heads = [relay.nn.dense(x, net.weight(n, 8, 32)) for n in "ab"]
    mod = net.module(relay.Tuple([relay.copy(relay.reshape(x, (128,))), *heads]))
    with tvm.transform.PassContext(opt_level=3):
        fused = FuseRTasks(CPU, cpu, net.params)(mod)
        machine = GraphModule(relay.build(fused, tvm.target.Target(CPU))["default"](tvm.cpu()))
    machine.set_input("x", np.zeros((4, 32), "float32"))
    machine.run()
    result = machine.get_output(0)
    machine.set_input("x", np.ones((4, 32), "float32"))
    assert not result.numpy().any()


def test_operators_without_elements(tmp_path):
    net = Net()
    x, y = relay.var("x", shape=(0, 32)), relay.var("y", shape=(4, 16))
    results = [relay.nn.relu(x) + relay.const(1.0), relay.nn.dense(y, net.weight("w", 8, 16))]
    compare(net, net.module(relay.Tuple(results)), tmp_path)


@pytest.mark.nightly
def test_a_quantised_model_is_fused(tmp_path):
    net, const = Net(), relay.const
    x = relay.var("x", shape=(4, 32))
    given = relay.qnn.op.quantize(x, const(0.05), const(3, "int32"), out_dtype="uint8")
    w = const(net.rng.integers(-5, 5, (16, 32)).astype("int8"))
    sums = relay.qnn.op.dense(given, w, const(3, "int32"), const(0, "int32"), const(0.05), const(0.1), 16)
    scales = const(0.005), const(0, "int32"), const(0.2), const(1, "int32")
    small = relay.qnn.op.requantize(sums, *scales, out_dtype="int8")
    result = relay.qnn.op.dequantize(small, const(0.2), const(1, "int32"))
    _, fusion, _ = compare(net, net.module(relay.Tuple([result, relay.nn.dense(x, net.weight("a", 8, 32))])), tmp_path)
    assert fusion.kernels and not fusion.outside


@pytest.mark.parametrize("given", [{"policy": "bogus"}, {"launch": "bogus"}])
def test_what_is_no_choice_is_named_at_once(given):
    with pytest.raises(UsageError, match=f"{next(iter(given))} must be one of .* \\(got 'bogus'\\)"):
        FuseRTasks(ARCH, **given)
