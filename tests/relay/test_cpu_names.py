"""-mcpu as LLVM knows it, not as it silently takes it."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from roller_tvm.errors import TargetError  # noqa: E402
from roller_tvm.relay.cpu_names import known_cpus  # noqa: E402
from roller_tvm.relay.tasks import make_target  # noqa: E402


@pytest.mark.parametrize(
    "target", ["llvm", "llvm -mcpu=core-avx2", "cuda -arch=sm_80", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"]
)
def test_targets_that_llvm_knows_pass(target):
    assert make_target(target).kind.name == target.split()[0]


@pytest.mark.parametrize("target", ["llvm -mcpu=foo", "llvm -mcpu=cortex-a72", "cuda with a host"])
def test_a_cpu_that_llvm_does_not_know_is_refused_with_those_it_knows(target, capfd):
    if not known_cpus(tvm.target.Target("llvm")):
        pytest.skip("this TVM cannot ask its LLVM")
    if "host" in target:
        target = tvm.target.Target("cuda -arch=sm_80", host="llvm -mcpu=bar")
    with pytest.raises(TargetError, match="this TVM's LLVM does not know -mcpu") as caught:
        make_target(target)
    assert "for this machine: 'llvm " in caught.value.remedy and "known: " in caught.value.remedy
    assert capfd.readouterr() == ("", "")  # LLVM says nothing besides


def test_a_tvm_that_cannot_ask_refuses_nothing(monkeypatch):
    monkeypatch.setattr("roller_tvm.relay.cpu_names._ASK", "target.no_such_function")
    assert make_target("llvm -mcpu=foo").kind.name == "llvm"
