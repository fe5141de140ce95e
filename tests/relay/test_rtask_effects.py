"""Relay models that do more than compute: what they do stays, in its order, whatever is fused around it."""

from dataclasses import replace

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay, te  # noqa: E402
from tvm.contrib.graph_executor import GraphModule  # noqa: E402
from tvm.relay.op import op as registry  # noqa: E402

from roller_tvm.relay import FuseRTasks, fusion_of  # noqa: E402
from roller_tvm.relay.dataflow import as_graph  # noqa: E402

from .fused_nets import ARCH, CPU_WITH_AVX512, Net  # noqa: E402

CPU = "llvm -mcpu=core-avx2 -num-cores=2"
LOOK = "roller_tvm_test.look"
seen = []


@pytest.fixture
def cpu():
    """Two threads; opening a region takes as long as these operators."""
    return replace(CPU_WITH_AVX512, launch_overhead_us=0.5)


@pytest.fixture(scope="module")
def look():
    """An operator that hands its operand on, and tells of it."""
    tvm.ir._ffi_api.RegisterOp(LOOK, "tells what it is given")
    operator = relay.op.get(LOOK)
    operator.set_num_inputs(1)
    operator.add_argument("x", "Tensor", "")
    operator.set_support_level(10)
    operator.add_type_rel("Identity")
    registry.register_stateful(LOOK, True)
    registry.register_pattern(LOOK, registry.OpPattern.OPAQUE)

    def looked(_attrs, given, _kind):
        (a,) = given
        return [te.extern(a.shape, [a], lambda i, o: tvm.tir.call_packed(LOOK, i[0], o[0]), dtype=a.dtype)]

    def strategy(_attrs, _given, _kind, _target):
        made = registry.OpStrategy()
        made.add_implementation(looked, lambda _attrs, outs, _target: te.create_schedule([o.op for o in outs]), LOOK)
        return made

    registry.register_strategy(LOOK, tvm.target.override_native_generic_func(f"{LOOK}_strategy")(strategy))

    @tvm.register_func(LOOK, override=True)
    def tell(a, out):
        seen.append(a.numpy())
        a.copyto(out)

    return lambda x: relay.Call(operator, [x])


def test_references_stay_as_they_are():
    """Read before and after it is written: TVM runs such a model by its interpreter alone."""
    net, builder = Net(), relay.ScopeBuilder()
    x = relay.var("x", shape=(4, 16))
    cell = builder.let("cell", relay.RefCreate(x))
    before = builder.let("before", relay.RefRead(cell))
    builder.let("written", relay.RefWrite(cell, relay.tanh(relay.nn.dense(before, net.weight("w", 16, 16)))))
    after = builder.let("after", relay.RefRead(cell))
    other = builder.let("other", relay.nn.dense(before, net.weight("v", 16, 16)))
    builder.ret(relay.Tuple([before - after, other]))
    mod = net.module(builder.get())
    feeds = net.feeds(mod)
    fused = FuseRTasks(ARCH, params=net.params)(mod)
    assert dict(fusion_of(fused).outside)["main"] == "bindings that keep effects in order (Let)"
    assert not fusion_of(fused).kernels

    def run(module, params):
        given = [params[v.name_hint] if v.name_hint in params else feeds[v.name_hint] for v in module["main"].params]
        return relay.create_executor("debug", module, tvm.cpu(), "llvm").evaluate()(*given)

    for one, expected in zip(run(fused, {}), run(mod, net.params), strict=True):
        np.testing.assert_allclose(one.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


def test_calls_with_effects_keep_their_order(look, cpu):
    """Products before and after them: were those of one region, what the last one reads would be looked at first."""
    net = Net()
    x, y = (relay.var(n, shape=(8, 32)) for n in "xy")
    last = relay.nn.dense(look(y), net.weight("b", 32, 32))
    mod = net.module(relay.Tuple([relay.nn.dense(x, net.weight("a", 32, 32)), look(x), last]))
    with tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}):
        fused = FuseRTasks(CPU, cpu, net.params)(mod)
    fusion = fusion_of(fused)
    assert [why for name, why in fusion.outside] == [f"'{LOOK}' has side effects"] * 2 and len(fusion.plans) > 1
    feeds = net.feeds(mod)
    with tvm.transform.PassContext(opt_level=3):
        module = GraphModule(relay.build(fused, tvm.target.Target(CPU))["default"](tvm.cpu()))
    seen.clear()
    module.run(**feeds)
    np.testing.assert_allclose(seen, [feeds["x"], feeds["y"]])
    weights = {n: v.numpy() for n, v in net.params.items()}
    expected = (feeds["x"] @ weights["a"].T, feeds["x"], feeds["y"] @ weights["b"].T)
    for number, one in enumerate(expected):
        np.testing.assert_allclose(module.get_output(number).numpy(), one, rtol=1e-4, atol=1e-4)


def test_a_binding_with_an_effect_that_nobody_reads_is_not_dropped(look):
    """Nor where the effect is within a function of the module."""
    x, y = relay.var("x", shape=(4, 8)), relay.var("y", shape=(4, 8))
    within = relay.GlobalVar("within")
    for call in (look, within):
        body = relay.Let(relay.var("unread"), call(relay.tanh(x)), relay.exp(x))
        kind = relay.TensorType((4, 8))
        mod = tvm.IRModule({"main": relay.Function([x], body, kind), within: relay.Function([y], look(y), kind)})
        mod = relay.transform.InferType()(mod)
        assert as_graph(mod) is mod
        fused = FuseRTasks(ARCH)(mod)
        assert isinstance(fused["main"].body, relay.Let)
        assert dict(fusion_of(fused).outside)["main"] == "bindings that keep effects in order (Let)"
