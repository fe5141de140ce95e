"""Fused kernels whose blocks do not wait, in OpenCL on PoCL: their operators against TVM's own schedules."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402

from roller_check import Checked  # noqa: E402
from roller_check.relay_fused import check_fusion_on_pocl  # noqa: E402
from roller_tvm.errors import TargetError, WrongAnswer  # noqa: E402
from roller_tvm.rammer import fused_kernel  # noqa: E402
from roller_tvm.rammer.cuda_functions import CannotFuse  # noqa: E402
from roller_tvm.relay import fused_sources  # noqa: E402

from .fused_nets import ARCH, Net, compare  # noqa: E402


def branches(net):
    """A product, a convolution, a softmax and single elements, of other widths; then what reads two of them."""
    x, y = relay.var("x", shape=(8, 32)), relay.var("y", shape=(1, 4, 8, 8))
    dense = relay.nn.dense(x, net.weight("d", 32, 32))
    both = [relay.reshape(relay.nn.softmax(x), (1, 4, 8, 8)), net.conv(y, "c", 4, 4, 3)]
    return net.module(relay.Tuple([dense, relay.concatenate(both, 1), relay.tanh(y) * relay.sigmoid(y)]))


def test_operators_of_other_widths(pocl):
    net = Net()
    found = check_fusion_on_pocl(branches(net), ARCH, params=net.params, top=2)
    assert list(found) == ["rtasks_0"] and isinstance(found["rtasks_0"], Checked), found
    assert found["rtasks_0"].elements == found["rtasks_0"].of_elements


def test_blocks_of_another_operator_are_found(monkeypatch, pocl):
    """What the witness is for: each block of the second operator runs as its first."""
    run = fused_kernel._run
    monkeypatch.setattr(fused_kernel, "_run", lambda m, n, block, *more: run(m, n, "0u" if n else block, *more))
    net = Net()
    x = relay.var("x", shape=(32, 32))
    mod = net.module(relay.Tuple([relay.nn.dense(x, net.weight(n, 64, 32)) for n in "ab"]))
    (found,) = check_fusion_on_pocl(mod, ARCH, params=net.params, top=2).values()
    assert isinstance(found, WrongAnswer) and "result 1: " in str(found)


def test_plans_that_wait_are_not_run(pocl):
    net = Net()
    (found,) = check_fusion_on_pocl(branches(net), ARCH, params=net.params, top=2, policy="best").values()
    assert isinstance(found, CannotFuse) and "its blocks wait for one another" in str(found)


@pytest.mark.nightly
def test_the_same_policy_in_cuda(tmp_path):
    """Built by plain relay.build, executed by the emulator, compared with the whole model."""
    net = Net()
    fused, fusion, steps = compare(net, branches(net), tmp_path, policy="horizontal")
    assert [s.kernels for s in steps if s.name.startswith("rtasks")] == [1]
    (source,) = fused_sources(fused).values()
    assert "_steps" not in source and "rammer_sync" in source  # of unequal widths, by way of shared memory
    assert not any(part.program and part.program.waits for plan in fusion.plans for part in plan.parts)


def test_a_target_that_is_no_gpu():
    with pytest.raises(TargetError, match="fused kernels are a GPU's"):
        check_fusion_on_pocl(branches(Net()), "llvm")
