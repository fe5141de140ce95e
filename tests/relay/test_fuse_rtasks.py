"""FuseRTasks on Relay: branchy nets as few kernels, built by plain relay.build, executed by the emulator."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402
from tvm.contrib import graph_executor  # noqa: E402

from roller_tvm.relay import build  # noqa: E402
from roller_tvm.relay.emulated_model import EmulatedModel  # noqa: E402
from roller_tvm.relay.fuse_rtasks import FuseRTasks, GraphFusion, fused_sources, fusion_of  # noqa: E402
from roller_tvm.relay.package import save_model  # noqa: E402

ARCH = "cuda -arch=sm_80"
TARGET = tvm.target.Target(ARCH, host="llvm")


class Net:
    """A module under construction: its weights get values."""

    def __init__(self):
        self.rng, self.params = np.random.default_rng(0), {}

    def weight(self, name, *shape):
        self.params[name] = tvm.nd.array((self.rng.standard_normal(shape) * 0.3).astype("float32"))
        return relay.var(name, shape=shape)

    def conv(self, x, name, c, f, k):
        y = relay.nn.conv2d(x, self.weight(name, f, c, k, k), padding=(k // 2, k // 2), kernel_size=(k, k), channels=f)
        return relay.nn.relu(relay.nn.bias_add(y, self.weight(f"{name}b", f)))

    def module(self, result):
        return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(result), result))

    def feeds(self, mod):
        free = [v for v in mod["main"].params if v.name_hint not in self.params]
        return {v.name_hint: self.rng.standard_normal([int(e) for e in v.type_annotation.shape]).astype("float32")
                for v in free}


def reference(mod, params, feeds):
    module = graph_executor.GraphModule(build(mod, params, "llvm")["default"](tvm.cpu()))
    module.set_input(**feeds)
    module.run()
    return [module.get_output(n).numpy() for n in range(module.get_num_outputs())]


def compare(net, result, tmp_path, **options):
    """Fuse, build, emulate, compare; what was fused, and the functions that ran."""
    mod = net.module(result)
    fused = FuseRTasks(ARCH, params=net.params, top=2, **options)(mod)
    path = save_model(build(fused, None, ARCH), tmp_path / "net.tar")
    feeds, steps = net.feeds(mod), []
    got = EmulatedModel(path, told=steps.append).run(feeds)
    for one, expected in zip(got, reference(mod, net.params, feeds), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4)
    return fused, fusion_of(fused), steps


def test_an_inception_cell_is_one_kernel(tmp_path):
    net = Net()
    x = relay.var("x", shape=(1, 8, 8, 8))
    pool = relay.nn.max_pool2d(x, (3, 3), (1, 1), padding=(1, 1))
    long = net.conv(net.conv(x, "b", 8, 8, 1), "c", 8, 8, 3)
    result = relay.concatenate([net.conv(x, "a", 8, 8, 1), long, net.conv(pool, "d", 8, 8, 1)], 1)
    fused, fusion, steps = compare(net, result, tmp_path)
    assert fusion.launches == 1 < fusion.sequential_launches and not fusion.outside and not fusion.refused
    assert [s.kernels for s in steps] == [1] and list(fused_sources(fused)) == ["rtasks_0"]
    assert GraphFusion.from_json(fusion.to_json()) == fusion
