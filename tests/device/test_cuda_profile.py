"""Profiling a CUDA card that is made up, the real kernels compiled, the driver's calls against a made-up library."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from roller_tvm.codegen import compile_cuda, find_compilers, kernel_resources
from roller_tvm.codegen.compilers import include_folders
from roller_tvm.device import cuda_profile, device_for_target, load_device
from roller_tvm.device.cpu_bench import find_compiler
from roller_tvm.device.cuda_bench import SOURCE, CudaRunner, answer, measure
from roller_tvm.device.cuda_driver import ATTRIBUTES, Driver, DriverCard
from roller_tvm.device.cuda_measure import CudaProfile, check_profile, measure_cuda
from roller_tvm.device.cuda_profile import cuda_report, cuda_spec, means, present_models, profiled_card
from roller_tvm.device.load import load_file
from roller_tvm.device.rates import ATTEMPTS, Request
from roller_tvm.errors import ProfileError

from .made_up_card import FACTS, MadeUpCard, MadeUpRunner, facts


def _has_driver():
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), "cuInit")
    except OSError:
        return False


@pytest.fixture(autouse=True)
def no_card_of_this_machine(monkeypatch):
    monkeypatch.setattr(cuda_profile, "present_models", lambda: set())
    monkeypatch.setattr(cuda_profile, "_driver_here", lambda: False)


# Judging ---------------------------------------------------------------------------------------------


def test_the_truth_comes_out():
    card = MadeUpCard()
    report = cuda_report(runner=MadeUpRunner(card))
    spec, limits = report.spec, report.spec.limits
    assert (spec.source, spec.name, spec.arch, spec.units) == ("profiled", "nvidia-toy-100", "sm_90", 100)
    assert report.refused is None and not card.held, "all memory given back"
    assert spec.clock_ghz == pytest.approx(1.5, rel=0.01)
    truth = 2 * 100 * 128 * 1.5
    assert spec.peak() == pytest.approx(truth, rel=0.01) and spec.peak("float16") == pytest.approx(2 * truth, rel=0.01)
    assert spec.peak("float64") == pytest.approx(truth / 2, rel=0.01)
    assert {lv.name: lv.bandwidth_gbps for lv in spec.levels[:3]} == pytest.approx(
        {"dram": 2200, "l2": 6000, "shared": 128 * 100 * 1.5}, rel=0.01
    )
    assert [lv.latency_ns for lv in spec.levels[:3]] == pytest.approx([600, 200, 20], rel=0.01)
    assert spec.launch_overhead_us == pytest.approx(2.5)
    assert (limits.fma_latency_cycles, limits.fma_per_cycle) == pytest.approx((4, 4), rel=0.02)
    assert limits.shared_per_block_optin_bytes == 227 << 10 and spec.level("dram").capacity_bytes == 80 << 30
    h100 = load_device("h100")  # what neither driver nor benchmarks tell
    assert limits.register_granularity == h100.limits.register_granularity
    scale = 100 * spec.clock_ghz / (h100.units * h100.clock_ghz)
    assert spec.peak("float16", tensor=True) == pytest.approx(h100.peak("float16", tensor=True) * scale)
    assert card.most < FACTS.memory_bytes / 2


def test_measured_once_then_read_from_a_spec_file():
    run = MadeUpRunner()
    first = cuda_report(runner=run)
    calls = run.calls
    again = cuda_report(runner=run)
    assert again.cached and again.spec == first.spec and run.calls == calls
    assert load_file(first.path) == first.spec and "measured" in first.path.read_text()
    assert not cuda_report(runner=run, refresh=True).cached and run.calls > calls
    first.path.write_text("half a file [")
    assert not cuda_report(runner=run).cached, "what cannot be read is measured again"


@pytest.mark.parametrize(
    ("kind", "factor", "word"),
    [
        ("clock", 3.0, "GHz where the driver tells 1.70"),
        ("fma32", 3.0, "multiply-adds a unit and cycle"),
        ("fma32", 0.3, "multiply-adds a unit and cycle"),
        ("latency32", 10.0, "cycles for a multiply-add"),
        ("read", 2.0, "memory whose bus allows 2560"),
        ("read", 0.3, "memory whose bus allows 2560"),
        ("shared", 0.3, "unit and cycle from shared memory"),
        ("chase", 40.0, "shared slower than l2 (latency"),
        ("launch", 0.01, "us for a launch"),
        ("shared_chase", 0.0, "zero"),
        ("fma64", float("nan"), "zero or not a number"),
    ],
)
def test_nonsense_is_refused_and_not_stored(kind, factor, word):
    run = MadeUpRunner(change=lambda r, values, call: [v * factor for v in values] if r.kind == kind else values)
    report = cuda_report(runner=run)
    assert word in str(report.refused) and "profile --device cuda:0 --refresh" in report.refused.remedy
    assert report.spec.source == "estimated" and not report.path.exists()
    assert report.spec.units == 100 and "not measured" in report.spec.notes[0], "what the driver tells still counts"


def test_others_on_the_card_are_refused_and_leave_the_earlier_profile():
    good = cuda_report(runner=MadeUpRunner())
    text = good.path.read_text()
    noisy = MadeUpRunner(change=lambda r, values, call: [values[0] / call**2])
    report = cuda_report(runner=noisy, refresh=True)
    assert report.refused and report.spec == good.spec and good.path.read_text() == text
    assert noisy.calls <= 3 * ATTEMPTS and "the earlier profile is kept" in report.spec.notes[-1]


def test_a_clock_that_falls_meanwhile_is_refused():
    run = MadeUpRunner(change=lambda r, v, call: [x * 0.7 for x in v] if r.kind == "clock" and call > 1 else v)
    assert "the clock changed from 1.50 to 1.05 GHz" in str(cuda_report(runner=run).refused)


def test_one_slow_run_is_measured_again():
    run = MadeUpRunner(change=lambda r, v, call: [v[0], v[0] / 2, v[0] / 3] if call == 2 else v)
    assert cuda_report(runner=run).spec.peak() == pytest.approx(2 * 100 * 128 * 1.5, rel=0.01) and run.calls > 3


def test_profile_round_trips():
    profile = measure_cuda(FACTS, MadeUpRunner())
    assert CudaProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile
    assert check_profile(FACTS, profile) == []


def test_a_driver_that_hides_clocks_is_no_reason_to_refuse():
    hidden = facts(clock_khz=0, memory_clock_khz=0, memory_bus_bits=0, max_blocks_per_unit=0, shared_reserved=0)
    report = cuda_report(runner=MadeUpRunner(MadeUpCard(hidden)))
    assert report.refused is None and report.spec.limits.max_blocks_per_unit == 32  # H100's


def test_a_card_between_shipped_ones_has_its_own_limits():
    shared = {"shared_per_unit": 64 << 10, "shared_per_block_optin": 64 << 10}
    spec = cuda_spec(facts(major=7, minor=5, max_threads_per_unit=1024, **shared), None)
    assert spec.arch == "sm_75" and spec.limits.max_threads_per_unit == 1024 and spec.source == "estimated"
    with pytest.raises(ProfileError, match="older than any"):
        cuda_spec(facts(major=3, minor=0), None)


def test_half_precision_only_where_there_is_any():
    assert Request("fma16") not in measure(MadeUpCard(facts(major=5, minor=0)), [Request("fma16"), Request("fma32")])
    with pytest.raises(ProfileError, match="'fma128'"):
        measure(MadeUpCard(), [Request("fma128")])


# From targets ------------------------------------------------------------------------------------------


def test_a_target_gets_the_profiled_card_of_its_architecture():
    assert device_for_target("cuda -arch=sm_90").name == "h100"
    profiled = cuda_report(runner=MadeUpRunner()).spec
    assert device_for_target("cuda -arch=sm_90") == profiled
    assert device_for_target("cuda -arch=sm_90 -model=toy-100") == profiled
    assert device_for_target("cuda -arch=sm_90 -model=h200").name == "h200"
    assert device_for_target("cuda -arch=sm_80").name == "a100"
    other = cuda_report(runner=MadeUpRunner(MadeUpCard(facts(name="NVIDIA Toy 200")))).spec
    latest = device_for_target("cuda -arch=sm_90")
    assert latest.title == other.title and "also profiled: NVIDIA Toy 100" in latest.notes[-1]


def test_a_card_has_a_name_as_shipped_devices_have(monkeypatch):
    monkeypatch.setattr(cuda_profile, "CudaRunner", lambda ordinal: MadeUpRunner(MadeUpCard(facts(ordinal=ordinal))))
    assert load_device("cuda:1") == load_device("cuda:1") == cuda_report(1).spec
    assert load_device("CUDA").source == "profiled"


def test_a_card_that_is_here_and_was_never_profiled_is_profiled(monkeypatch):
    monkeypatch.setattr(cuda_profile, "_profiled_now", lambda n: cuda_report(n, runner=MadeUpRunner()).spec)
    assert profiled_card(80, cards=lambda: [FACTS]) is None
    assert profiled_card(90, "h200", cards=lambda: [FACTS]) is None
    assert profiled_card(90, cards=lambda: [FACTS]).name == "nvidia-toy-100"


def test_a_profile_of_another_machine_is_not_taken_for_the_card_here(monkeypatch):
    cuda_report(runner=MadeUpRunner())
    monkeypatch.setattr(cuda_profile, "present_models", lambda: {"NVIDIA Other"})
    assert device_for_target("cuda -arch=sm_90").name == "h100"
    monkeypatch.setattr(cuda_profile, "present_models", lambda: {"NVIDIA Toy 100"})
    assert device_for_target("cuda -arch=sm_90").title == "NVIDIA Toy 100"


def test_what_linux_lists(tmp_path):
    assert present_models(str(tmp_path)) == set()
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\n")
    assert present_models(str(tmp_path)) == {"NVIDIA H200"}


@pytest.mark.parametrize(
    ("model", "title", "same"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("nvidia/nvidia-h100", "NVIDIA H100 PCIe", True),
        ("nvidia/geforce-rtx-4090", "NVIDIA GeForce RTX 4090", True),
        ("rtx4090", "NVIDIA GeForce RTX 4090 D", True),
        ("h100", "NVIDIA H200", False),
        ("a10", "NVIDIA A100-SXM4-80GB", False),
    ],
)
def test_models_are_compared_word_by_word(model, title, same):
    assert means(model, title) is same


# The kernels -------------------------------------------------------------------------------------------


@pytest.mark.skipif(not find_compilers(), reason="neither NVRTC nor nvcc here")
@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90"])
def test_every_micro_benchmark_compiles_and_fits(arch):
    if not any(c.supports(arch) for c in find_compilers()):
        pytest.skip(f"no compiler for {arch}")
    source = SOURCE.read_text()
    kernels = kernel_resources(compile_cuda(source, arch))
    names = set(re.findall(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?([a-z]\w*)\(', source))
    names |= set(re.findall(r"^CHAINS\((\w+),", source, re.MULTILINE))
    assert set(kernels) == names and len(names) == 12
    for name, told in kernels.items():
        assert not told.spills, name
        if told.max_threads:  # all threads of a unit at work at a time
            assert told.registers * told.max_threads <= 65536 and told.registers <= 128, name
    assert kernels["shared_read"].shared_bytes == 16 << 10
    assert kernels["fma32"].code_bytes > 16 * 4 * 8, "the chains were not folded away"


@pytest.mark.skipif(not include_folders(), reason="no CUDA headers here")
def test_attribute_numbers_are_those_of_cuda_h():
    header = Path(include_folders()[0], "cuda.h")
    if not header.is_file():
        pytest.skip("no cuda.h")
    numbers = dict(re.findall(r"CU_DEVICE_ATTRIBUTE_(\w+) = (\d+),", header.read_text()))
    text = Path(sys.modules[Driver.__module__].__file__).read_text()
    comments = dict(re.findall(r"_fact\((\d+)(?:, optional=True)?\)  # (\w+)", text))
    assert set(comments) == {str(fact.metadata["attribute"]) for fact in ATTRIBUTES}
    assert all(numbers[name] == number for number, name in comments.items())


# The driver --------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Path of the made-up driver."""
    if find_compiler() is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    out, source = folder / "libcuda.so.1", Path(__file__).with_name("made_up_driver.c")
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-w", "-o", out, source], check=True)
    return str(out)


def test_calls_reach_the_driver_with_the_right_arguments(library):
    driver = Driver([library])
    told = driver.facts(1)
    assert (driver.count(), told.name, told.arch, told.memory_bytes) == (2, "NVIDIA B", "sm_90", 8 << 33)
    assert told.units == 1016 and told.l2_bytes == 1038 and told.shared_reserved == 0
    with DriverCard(driver, 1, b"\x7fELF") as card:
        address = card.alloc(64)
        assert card.read(address) == 0
        card.write(address + 8, 1 << 40)
        assert card.read(address + 8) == 1 << 40
        args = [ctypes.c_uint(5), ctypes.c_uint64(address)]
        # 0.25 ms each, the one before not counted
        assert card.time("add", 2, 3, args, times=4, behind=("add", args)) == pytest.approx(1e6)
        assert card.read(address) == 5 + 2000 + 3
        with pytest.raises(ProfileError, match="cuMemAlloc_v2 failed: CUDA_ERROR_UNKNOWN"):
            card.alloc(1 << 20)
        with pytest.raises(ProfileError, match="cuModuleGetFunction"):
            card.time("subtract", 1, 1, args)
        card.free(address)
    with pytest.raises(ProfileError, match="no card 2") as caught:
        driver.facts(2)
    assert caught.value.remedy == "choose a card from 0 to 1"


def test_the_stand_in_that_lets_tvm_load_is_no_driver(tmp_path):
    from roller_tvm.tvm_env.stub import write_driver_stub

    write_driver_stub(tmp_path / "libcuda.so.1")
    with pytest.raises(ProfileError, match="no CUDA driver") as caught:
        Driver([str(tmp_path / "libcuda.so.1"), str(tmp_path / "absent.so")])
    assert "--device h200" in caught.value.remedy
    with pytest.raises(ProfileError, match="no CUDA driver"):
        raise ProfileError(*answer({"ordinal": 0, "requests": None}, compile_cuda, lambda: Driver([]))["error"])


# The process of its own ----------------------------------------------------------------------------------


def child(text: str) -> list[str]:
    return [sys.executable, "-c", text]


@pytest.mark.skipif(_has_driver(), reason="there is a driver here")
def test_the_real_child_finds_no_driver():
    with pytest.raises(ProfileError, match="no CUDA driver") as caught:
        CudaRunner().facts()
    assert "--device h200" in caught.value.remedy


@pytest.mark.gpu
@pytest.mark.skipif(not _has_driver(), reason="no driver here")
def test_a_real_card():
    report = cuda_report(0, runner=CudaRunner(0))
    assert report.refused is None and report.spec.source == "profiled", report.refused


def test_the_child_is_asked_and_believed():
    told = json.dumps({"cards": [replace(FACTS, ordinal=3).to_dict()]})
    assert CudaRunner(3, child(f"print('a driver may talk'); print({told!r})")).facts().ordinal == 3
    rates = child("import json, sys; json.load(sys.stdin)['requests'][1]; print(json.dumps({'rates': {'1': [2.0]}}))")
    assert CudaRunner(0, rates)([Request("fma16"), Request("fma32")]) == {Request("fma32"): [2.0]}


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("""print('{"error": ["cuInit: CUDA_ERROR_NO_DEVICE", "CUDA driver", "see"]}')""", "CUDA_ERROR_NO_DEVICE"),
        ("import os; os.abort()", "code -6"),
        ("print('hello')", "ended with code 0"),
        ("raise SystemExit('no such thing')", "no such thing"),
        ("import time; time.sleep(30)", "more than 1 s"),
    ],
)
def test_a_child_that_fails_or_hangs_is_an_error_of_ours(code, word):
    with pytest.raises(ProfileError, match=word) as caught:
        CudaRunner(0, child(code), limit_s=1.0).facts()
    assert caught.value.remedy
