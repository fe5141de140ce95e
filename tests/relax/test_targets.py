"""Targets of the Relax line: words and dicts made full, and refused where TVM would guess."""

import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from roller_tvm.device import cpu_device, load_device  # noqa: E402
from roller_tvm.device.known import tuned_name  # noqa: E402
from roller_tvm.errors import TargetError  # noqa: E402
from roller_tvm.relax.targets import as_target, local_target, make_target, target_dict  # noqa: E402

HERE = tuned_name(str(tvm.get_global_func("target.llvm_get_system_cpu")()))


@pytest.mark.parametrize("target", [None, "llvm", "llvm -mcpu=native", {"kind": "llvm"}])
def test_the_cpu_goes_by_llvms_name_and_has_the_threads_it_scales_to(target):
    full = target_dict(target)
    assert full == {"kind": "llvm", "mcpu": HERE, "num-cores": cpu_device().units} == local_target()


def test_what_the_user_says_stays():
    full = target_dict("llvm -mcpu=x86-64-v3 -num-cores=1 -mattr=+avx2,+fma")
    assert full == {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1, "mattr": ["+avx2", "+fma"]}
    assert target_dict({"kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 49152})[
        "max_shared_memory_per_block"] == 49152  # fmt: skip


@pytest.mark.parametrize(
    ("target", "name"),
    [("cuda -arch=sm_90", "h100"), ({"kind": "cuda", "arch": "sm_80"}, "a100"), ("nvidia/nvidia-a100", "a100"),
     ("nvidia/nvidia-h100", "h100"), ("cuda -arch=sm_90 -model=h200", "h200")],
)  # fmt: skip
def test_a_card_may_use_what_it_can_opt_in_to(target, name):
    full, limits = target_dict(target), load_device(name).limits
    assert full["max_shared_memory_per_block"] == limits.shared_per_block_optin_bytes > 48 << 10
    assert full["max_threads_per_block"] == limits.max_threads_per_block and full["thread_warp_size"] == 32
    assert full["host"]["kind"] == "llvm" and full["host"]["mcpu"] == HERE
    made = make_target(target)
    assert made.kind.name == "cuda" and int(made.attrs["max_shared_memory_per_block"]) == (
        full["max_shared_memory_per_block"]
    )
    assert str(make_target(made)) == str(made), "full already"


def test_a_device_of_ones_own():
    v100 = load_device("v100")
    full = target_dict({"kind": "cuda", "arch": "sm_70"}, v100)
    assert full["max_shared_memory_per_block"] == v100.limits.shared_per_block_optin_bytes


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("cuda", "-arch=sm_90"),
        ("cuda -arch=90", "-arch=sm_90"),
        ("cuda -arch=sm_90 -shared=1", "no option 'shared'"),
        ("llvm -mcpu=znver99", "for this machine: mcpu="),
        ("llvm -mcpuu=x", "did you mean 'mcpu'"),
        ("llvm -num-cores=two", "is not a whole number"),
        ("gpu", "no target kind 'gpu'"),
        ("c", "has no vectors"),
        ("opencl", "no device follows"),
        ("nvidia/rtx-0", "no tag"),
        ("", "names no kind"),
    ],
)
def test_refused_with_a_remedy(target, said):
    with pytest.raises(TargetError) as refused:
        target_dict(target)
    assert said in str(refused.value) and refused.value.remedy


def test_a_target_that_tvm_reads_is_left_as_it_is():
    for target in ({"kind": "llvm", "num-cores": 2}, "llvm", {"kind": "cuda", "arch": "sm_80"}):
        assert str(as_target(target)) == str(tvm.target.Target(target))
    made = tvm.target.Target({"kind": "llvm"})
    assert as_target(made) is made
    assert str(as_target("cuda -arch=sm_80")) == str(make_target({"kind": "cuda", "arch": "sm_80"}))
    with pytest.raises(TargetError, match="TVM does not take it"):
        as_target("gpu")
