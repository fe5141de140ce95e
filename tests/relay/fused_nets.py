"""Nets under construction, fused, built, executed by the emulator and compared; shared by tests of FuseRTasks."""

from pathlib import Path

import numpy as np
import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

from roller_check.relay_model import EmulatedModel
from roller_tvm.device import DeviceSpec
from roller_tvm.relay import FuseRTasks, GraphFusion, build, fusion_of
from roller_tvm.relay.package import save_model

ARCH = "cuda -arch=sm_80"
TARGET = tvm.target.Target(ARCH, host="llvm")
CPU_WITH_AVX512 = DeviceSpec.from_json(
    (Path(__file__).parents[1] / "explain" / "plans" / "cpu_device.json").read_text()
)


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
        kinds = [(v.name_hint, v.type_annotation) for v in free]
        return {name: self.rng.standard_normal([int(e) for e in kind.shape]).astype(kind.dtype) for name, kind in kinds}


def reference(mod, params, feeds):
    """By TVM's VM on the CPU: its graph executor does not take functions called where they are written."""
    with tvm.transform.PassContext(opt_level=3):
        machine = VirtualMachine(relay.vm.compile(mod, "llvm", params=params), tvm.cpu())
    # By place: an LSTM of relay.testing has an input of one name for each step.
    made = machine.run(*(tvm.nd.array(feeds[v.name_hint]) for v in mod["main"].params if v.name_hint in feeds))
    return [m.numpy() for m in (made if isinstance(made, tvm.runtime.container.ADT) else [made])]


def compare(net, mod, tmp_path, **options):
    """Fuse, build, emulate, compare; the module, what was fused, and the functions that ran."""
    fused = FuseRTasks(ARCH, params=net.params, top=2, **options)(mod)
    path = save_model(build(fused, None, ARCH), tmp_path / "net.tar")
    feeds, steps = net.feeds(mod), []
    got = EmulatedModel(path, told=steps.append).run(feeds)
    for one, expected in zip(got, reference(mod, net.params, feeds), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4)
    fusion = fusion_of(fused)
    assert GraphFusion.from_json(fusion.to_json()) == fusion
    assert sum(s.kernels for s in steps if s.name.startswith("rtasks")) == fusion.kernels
    return fused, fusion, steps
