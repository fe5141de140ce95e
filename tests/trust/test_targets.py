"""Targets that LLVM or NVIDIA do not know are refused on both lines, not taken for others."""

import pytest

pytest.importorskip("tvm")
pytestmark = pytest.mark.te

from roller_tvm.device import device_for_target  # noqa: E402
from roller_tvm.errors import TargetError  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402


def made(target):
    if line() == "relax":
        from roller_tvm.relax.targets import make_target
    else:
        from roller_tvm.relay.tasks import make_target
    return make_target(target)


@pytest.mark.parametrize("mattr", ["+nonsense", "+avx2,-nonsense", "avx2"])
def test_an_unknown_feature(mattr):
    with pytest.raises(TargetError, match="knows no feature"):
        made(f"llvm -mattr={mattr} -num-cores=2")


def test_known_features():
    assert made("llvm -mattr=+avx2,-fma -num-cores=2").kind.name == "llvm"


def test_an_architecture_that_does_not_exist():
    with pytest.raises(TargetError, match="sm_999 is no architecture"):
        device_for_target("cuda -arch=sm_999")
    assert device_for_target("cuda -arch=sm_121").arch == "sm_121"
