"""The device follows from the target, whatever its form, and from nothing else."""

from __future__ import annotations

import pytest

from roller_tvm.device import (
    arch_number,
    cpu_profile,
    device_for_target,
    from_target,
    load_device,
    parse_target,
)
from roller_tvm.errors import TargetError


@pytest.fixture(autouse=True)
def test_cpu(monkeypatch, facts, fake):
    """llvm targets get the CPU of conftest, not this machine's."""
    report = cpu_profile.cpu_report(facts=facts, runner=fake)
    monkeypatch.setattr(from_target, "cpu_report", lambda: report)
    return report


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("cuda -arch=sm_70", "v100"),
        ("cuda -arch=sm_80", "a100"),
        ("cuda -arch sm_80", "a100"),
        ("cuda --arch=sm_89", "rtx4090"),
        ("cuda -arch=sm_90", "h100"),
        ("cuda -arch=sm_90a", "h100"),
        ("cuda -arch=sm_37", "k80"),
        ("cuda -arch=sm_90 -model=h200", "h200"),
        ("cuda -keys=cuda,gpu -arch=sm_80 -max_num_threads=1024 -model=unknown", "a100"),
        ("cuda -arch=sm_80 -host=llvm", "a100"),
        ("cuda -arch=sm_80, llvm -mcpu=core-avx2", "a100"),
        ("nvptx -mcpu=sm_80", "a100"),
        ("nvidia/nvidia-h100", "h100"),
        ("nvidia/geforce-rtx-4090", "rtx4090"),
        ("rocm -mcpu=gfx906", "mi50"),
        ("rocm -mcpu=gfx906:sramecc+:xnack-", "mi50"),
        ({"kind": "cuda", "arch": "sm_80"}, "a100"),
        (
            {"kind": {"name": "cuda"}, "arch": "sm_80", "keys": ["cuda", "gpu"], "host": {"kind": "llvm"}},
            "a100",
        ),
        ({"tag": "nvidia/nvidia-a100"}, "a100"),
        ('{"kind": "cuda", "arch": "sm_70"}', "v100"),
        ("llvm -mcpu=core-avx2", "cpu"),
    ],
)
def test_target_to_device(target, name):
    assert device_for_target(target).name == name


def test_a_target_object_is_read_by_its_text():
    class Target:
        def __str__(self):
            return "cuda -keys=cuda,gpu -arch=sm_80"

    assert device_for_target(Target()) == load_device("a100")


def test_a_default_says_what_else_it_could_be():
    assert "h200" in device_for_target("cuda -arch=sm_90").notes[-1]
    assert device_for_target("cuda -arch=sm_90").digest() == load_device("h100").digest()
    assert device_for_target("cuda -arch=sm_90 -model=h200").notes == ()


def test_architectures_compare_as_numbers():
    order = ["sm_37", "sm_70", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_120"]
    assert [arch_number(a) for a in order] == sorted(arch_number(a) for a in order)
    assert arch_number("sm_100") > arch_number("sm_90a") == 90
    assert arch_number("compute_80") == 80


@pytest.mark.parametrize(
    ("arch", "base", "optin", "threads"),
    [
        ("sm_86", "a100", 99, 1536),  # never the 163 KiB of A100
        ("sm_72", "v100", 96, 2048),
        ("sm_61", "k80", 48, 2048),
        ("sm_100", "h100", 227, 2048),
        ("sm_120", "h100", 99, 1536),
        ("sm_121", "h100", 99, 1536),
    ],
)
def test_an_architecture_between_takes_speeds_from_below_and_its_own_limits(arch, base, optin, threads):
    spec, lower = device_for_target(f"cuda -arch={arch}"), load_device(base)
    assert spec.name == f"{base}-{arch}" and spec.arch == arch
    assert spec.limits.shared_per_block_optin_bytes == optin * 1024
    assert spec.limits.max_threads_per_unit == threads
    assert spec.limits.registers_per_unit == 65536
    assert spec.limits.shared_per_block_optin_bytes <= spec.level("shared").capacity_bytes
    assert spec.peak() == lower.peak()
    assert base in spec.notes[-1] and arch in spec.notes[-1]


def test_a_gfx_between_is_noted():
    spec = device_for_target("rocm -mcpu=gfx90a")
    assert spec.arch == "gfx90a" and "mi50" in spec.notes[-1]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("cuda", ("-arch", "sm_90", "card 0")),
        ({"kind": "cuda"}, ("-arch",)),
        ("cuda -arch=ada", ("'ada'", "sm_90")),
        ("cuda -arch=sm_30", ("sm_30", "sm_37")),
        ("cuda -arch=sm_80 -model=h200", ("h200", "sm_90", "sm_80")),
        ("rocm", ("-mcpu", "gfx906")),
        ("rocm -mcpu=gfx1100", ("gfx1100", "gfx906")),
        ("rocm -mcpu=vega", ("vega",)),
        ("opencl", ("opencl", "--device")),
        ("", ("no kind",)),
        ("-arch=sm_80", ("no kind",)),
        ("{", ("JSON",)),
        ({"arch": "sm_80"}, ("no kind",)),
        ("cuda -arch='sm_80", ("quot",)),
        ("llvm -num-cores=many", ("num-cores", "many")),
        ("llvm -mtriple=aarch64-linux-gnu", ("aarch64", "--device")),
    ],
)
def test_refused(target, words):
    with pytest.raises(TargetError) as caught:
        device_for_target(target)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.remedy


def test_an_unknown_model_falls_back_to_the_arch_and_says_so():
    spec = device_for_target("cuda -arch=sm_80 -model=a30")
    assert spec.name == "a100" and "a30" in spec.notes[-1]


def test_num_cores_limits_the_device(test_cpu):
    full, one = (
        device_for_target("llvm -mcpu=core-avx2"),
        device_for_target("llvm -mcpu=core-avx2 -num-cores 1"),
    )
    assert (full.units, one.units) == (4, 1)
    assert one.peak() == pytest.approx(full.peak() / 4)
    assert one.level("l1").bandwidth_gbps == pytest.approx(full.level("l1").bandwidth_gbps / 4)
    assert one.level("dram").bandwidth_gbps == 10 and full.level("dram").bandwidth_gbps == 20
    more = device_for_target("llvm -mcpu=core-avx2 -num-cores=64")
    assert more.units == 4 and "scale to 4" in more.notes[-1]


@pytest.mark.parametrize(
    ("words", "vector", "share"),
    [
        ("-mcpu=core-avx2", 32, 1),
        ("-mcpu=haswell", 32, 1),
        ("-mcpu=native", 32, 1),
        ("-mcpu=somethingnew", 32, 1),  # not listed: taken at the machine's width, with a note
        ("-mcpu=skylake-avx512", 32, 1),  # more than the machine has
        ("-mattr=+avx2,+fma", 32, 1),
        ("-mcpu=corei7-avx", 32, 1),
        ("", 16, 1 / 4),  # LLVM's least: SSE2, no FMA
        ("-mcpu=nehalem", 16, 1 / 4),
    ],
)
def test_vectors_are_those_the_target_will_use(words, vector, share, test_cpu):
    spec = device_for_target(f"llvm {words}")
    assert spec.vector_bytes == vector and spec.vector_width == vector // 4
    assert spec.peak() == pytest.approx(test_cpu.spec.peak() * share)
    if vector < 32:
        assert "-mcpu=core-avx2" in spec.notes[-1]


def test_parse_keeps_attributes():
    parsed = parse_target("llvm -mcpu core-avx2 -num-cores=2 -link-params")
    assert dict(parsed.attrs) == {"mcpu": "core-avx2", "num-cores": "2", "link-params": "1"}
    assert str(parse_target(str(parsed))) == str(parsed)
