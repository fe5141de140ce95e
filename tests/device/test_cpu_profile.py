"""Profiling: judged by a fake machine whose truth is known, the cache, and one quick real run."""

from __future__ import annotations

import json
import os
import time
from random import Random

import pytest

from roller_tvm.device import DeviceSpec, cpu_profile
from roller_tvm.device.cpu_bench import NativeRunner, compile_benchmarks, find_compiler, parse_output
from roller_tvm.device.cpu_detect import Cache, detect_cpu
from roller_tvm.device.cpu_measure import (
    CpuProfile,
    check_profile,
    larger_sets,
    measure_cpu,
    thread_counts,
    working_set,
)
from roller_tvm.device.cpu_profile import cache_path, cpu_report, cpu_spec
from roller_tvm.device.rates import ATTEMPTS, Request
from roller_tvm.errors import ProfileError

from .conftest import FakeMachine, make_facts

needs_cc = pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler")


def test_the_truth_comes_out(facts, fake):
    """AVX2 at 3 GHz, two FMA a cycle, four cores: 96 GFLOP/s a core; threads stop to scale at the cores."""
    report = cpu_report(facts=facts, runner=fake)
    spec = report.spec
    assert (spec.source, spec.units, report.reason, report.cached) == ("profiled", 4, "", False)
    assert spec.peak("float32") == pytest.approx(4 * 96) and spec.peak("float64") == pytest.approx(4 * 48)
    assert spec.clock_ghz == 3.0  # measured, not the 2.0 that the system tells
    assert spec.launch_overhead_us == pytest.approx(0.4 + 0.35)  # 400 ns, and the software around it
    assert spec.limits.fma_per_cycle == pytest.approx(2) and spec.limits.fma_latency_cycles == pytest.approx(
        4
    )
    assert (spec.limits.dispatch_per_cycle, spec.limits.dispatch_shared) == (6, None)
    assert {lv.name: lv.bandwidth_gbps for lv in spec.levels[:-1]} == {
        "dram": 20,
        "l3": 100,
        "l2": 200,
        "l1": 400,
    }
    assert [lv.scope for lv in spec.levels] == ["device", "device", "unit", "unit", "thread"]
    assert spec.level("register").capacity_bytes == 16 * 32
    assert (spec.vector_width, spec.vector_bytes, spec.limits.l1_ways) == (8, 32, 8)
    assert DeviceSpec.from_json(spec.to_json()) == spec


def large_last_cache():
    return make_facts(caches=(*make_facts().caches[:2], Cache(3, 64 << 20, 64, 16, 4)))


def test_a_last_cache_that_others_fill_counts_as_far_as_it_is_ours():
    """Of 64 MB the four threads have 16: more is read as fast as memory."""
    facts = large_last_cache()
    machine = FakeMachine(
        facts,
        lambda r, rate, n: 20.0 if r.kind == "read" and r.threads == 4 and 4 * r.bytes > 16 << 20 else rate,
    )
    level = cpu_report(facts=facts, runner=machine).spec.level("l3")
    assert (level.bandwidth_gbps, level.capacity_bytes) == (100, 16 << 20)


def test_a_size_without_an_undisturbed_repeat_says_nothing():
    facts = large_last_cache()
    sizes = larger_sets(facts, 4)
    machine = FakeMachine(facts, lambda r, rate, n: 0.0 if r.kind == "read" and r.bytes in sizes else rate)
    assert len(sizes) == 2 and cpu_report(facts=facts, runner=machine).spec.level("l3").capacity_bytes == 64 << 20


def test_hyper_threads_that_help_count(facts):
    machine = FakeMachine(
        facts, lambda r, rate, n: rate * 1.2 if r.kind == "fma32" and r.threads == 8 else rate
    )
    assert cpu_report(facts=facts, runner=machine).spec.units == 8


def test_one_bad_try_is_repeated(facts):
    """Others at work during the first try: two threads as fast as one.  The best of all tries counts."""

    def busy(r, rate, call):
        return rate / r.threads if call == 1 and r.kind == "fma32" else rate

    machine = FakeMachine(facts, busy)
    spec = cpu_report(facts=facts, runner=machine).spec
    assert spec.units == 4 and not any("cores are used" in note for note in spec.notes)
    assert machine.calls > 2


def test_threads_that_never_scale_are_believed(facts):
    machine = FakeMachine(facts, lambda r, rate, n: 96.0 if r.kind == "fma32" else rate)
    spec = cpu_report(facts=facts, runner=machine).spec
    assert spec.units == 1
    assert any("1 of 4 cores are used" in note and "--refresh" in note for note in spec.notes)


@pytest.mark.parametrize(
    ("kind", "factor", "word"),
    [
        ("fma32", 10.0, "vector FMA a cycle"),
        ("fma32", 0.01, "vector FMA a cycle"),
        ("clock", 10.0, "clock"),
        ("clock", 0.0, "not one repeat on one thread was left alone"),
        ("chase", 0.0, "zero"),
        ("fma64", float("inf"), "zero or not a number"),
    ],
)
def test_nonsense_is_refused_and_not_stored(facts, kind, factor, word):
    machine = FakeMachine(facts, lambda r, rate, n: rate * factor if r.kind == kind else rate)
    report = cpu_report(facts=facts, runner=machine)
    assert report.spec.source == "estimated" and word in report.reason
    assert not report.path.exists()
    assert any("estimated" in note for note in report.spec.notes)


def test_a_nearer_level_slower_than_a_farther_is_refused(facts):
    def spoil(r, rate, call):
        return 1.0 if r.kind == "read" and r.bytes <= 32 << 10 else rate

    report = cpu_report(facts=facts, runner=FakeMachine(facts, spoil))
    assert report.reason and "l1 slower than l2" in report.reason


@pytest.mark.parametrize("share", [0.95, 0.85])
def test_noise_between_levels_is_lifted(facts, share):
    """Repeats of one level may differ by as much."""

    def spoil(r, rate, call):
        return rate * share / 2 if r.kind == "read" and r.bytes <= 32 << 10 else rate  # l1 beside l2

    spec = cpu_report(facts=facts, runner=FakeMachine(facts, spoil)).spec
    assert spec.source == "profiled" and spec.level("l1").bandwidth_gbps == spec.level("l2").bandwidth_gbps


def test_no_float16_hardware_no_float16_peak(facts, fake):
    assert "float16" not in cpu_report(facts=facts, runner=fake).spec.peak_gflops


# Noise -----------------------------------------------------------------------------------------------


def test_a_lucky_repeat_is_no_rate(facts):
    """One clock reading gone wrong: measured again until others come near the best, else refused."""

    def once(r, rate, call):
        return [rate, rate, rate * 10, rate] if r.kind == "read" and call == first else rate

    first = 3
    report = cpu_report(facts=facts, runner=FakeMachine(facts, once))
    assert report.spec.source == "estimated" and "of 20 repeats differ by 90%" in report.reason


def test_repeats_that_were_all_disturbed_are_asked_for_again(facts):
    quiet = cpu_report(facts=facts, runner=FakeMachine(facts)).spec
    machine = FakeMachine(facts, lambda r, rate, call: [] if call % 2 else rate)
    assert cpu_report(facts=facts, runner=machine, refresh=True).spec == quiet
    never = FakeMachine(facts, lambda r, rate, call: [] if r.kind == "fma64" else rate)
    report = cpu_report(facts=facts, runner=never, refresh=True)
    assert "fma64: 0 undisturbed repeats" in str(report.refused) and never.calls <= 3 * ATTEMPTS


def test_a_clock_that_changes_is_refused(facts):
    machine = FakeMachine(facts)
    machine.change = lambda r, rate, call: rate * 0.6 if r.kind == "clock" and call > 1 else rate
    report = cpu_report(facts=facts, runner=machine)
    assert "the clock changed from 3.00 to 1.80 GHz" in report.reason and not report.path.exists()


def test_a_cache_full_of_others_is_measured_again(facts):
    """L3 once as slow as DRAM: tried again."""

    def others(r, rate, call):
        return 1 / 60.0 if r.kind == "chase" and r.bytes < 8 << 20 and call <= 3 else rate

    disturbed = cpu_report(facts=facts, runner=FakeMachine(facts, others)).profile
    quiet = cpu_report(facts=facts, runner=FakeMachine(facts), refresh=True).profile
    assert disturbed.latency_ns == pytest.approx(quiet.latency_ns, rel=0.1)


def test_numbers_that_cannot_be_believed_leave_the_earlier_profile(facts, fake, monkeypatch):
    good = cpu_report(facts=facts, runner=fake)
    text = good.path.read_text()
    noisy = FakeMachine(facts, lambda r, rate, call: [rate / call**2])
    report = cpu_report(facts=facts, runner=noisy, refresh=True)
    assert report.spec == good.spec and report.spec.source == "profiled" and good.path.read_text() == text
    assert isinstance(report.refused, ProfileError) and "roller-tvm profile --refresh" in report.refused.remedy
    assert any("the earlier profile is kept" in note for note in report.spec.notes)
    assert cpu_report(facts=facts, runner=noisy).spec == good.spec  # remembered as it was


def test_a_machine_that_cannot_be_measured_is_tried_once_a_process(facts):
    never = FakeMachine(facts, lambda r, rate, call: [])
    assert cpu_report(facts=facts, runner=never).refused
    calls = never.calls
    assert cpu_report(facts=facts, runner=never).refused and never.calls == calls
    assert cpu_report(facts=facts, runner=FakeMachine(facts), refresh=True).spec.source == "profiled"


def test_two_processes_do_not_measure_each_other(facts, monkeypatch):
    """The second waits, then takes what the first has measured."""
    import threading

    started, second = threading.Event(), FakeMachine(facts)

    def slow(r, rate, call):
        started.set()
        time.sleep(0.001)
        return rate

    first = FakeMachine(facts, slow)
    reports = []
    run = threading.Thread(target=lambda: reports.append(cpu_report(facts=facts, runner=first)))
    run.start()
    started.wait(10)
    assert cpu_report(facts=facts, runner=second).spec.source == "profiled" and second.calls == 0
    run.join()
    assert reports[0].cached is False


@pytest.mark.parametrize(("load", "source"), [(0.3, "profiled"), (0.9, "estimated")])
def test_a_busy_machine_gives_its_rates_or_none(facts, load, source):
    """Repeats slowed down at random: right to a few percent where enough are left alone, refused where not."""
    random = Random(7)

    def busy(r, rate, call):
        shares = [random.uniform(0.2, 0.7) if random.random() < load else random.uniform(0.97, 1) for _ in range(5)]
        return [rate * share for share in shares]

    spec = cpu_report(facts=facts, runner=FakeMachine(facts, busy)).spec
    assert spec.source == source
    if source == "profiled":
        assert spec.peak() == pytest.approx(4 * 96, rel=0.05) and spec.bandwidth("dram") == pytest.approx(20, rel=0.05)


# Cache -----------------------------------------------------------------------------------------------


def test_measured_once_then_read(facts, fake, monkeypatch):
    first = cpu_report(facts=facts, runner=fake)
    calls = fake.calls
    assert cpu_report(facts=facts, runner=fake) is first  # this process remembers
    monkeypatch.setattr(cpu_profile, "_remembered", {})
    again = cpu_report(facts=facts, runner=fake)  # another process reads the file
    assert fake.calls == calls and again.cached
    assert again.spec == first.spec and again.spec.digest() == first.spec.digest()
    assert cpu_report(facts=facts, runner=fake, refresh=True).cached is False
    assert fake.calls > calls
    assert [p for p in first.path.parent.iterdir() if p.name != ".profiling"] == [first.path]  # no temporary left


def test_cache_lies_in_the_users_folder(facts, tmp_path, monkeypatch):
    assert cache_path(facts).parent == tmp_path / "cache" / "roller_tvm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG rules say: ignore
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_path(facts).parent == tmp_path / ".cache" / "roller_tvm"


@pytest.mark.parametrize(
    "changes", [{"model": "Other"}, {"cores": 2}, {"logical": 4}, {"machine_logical": 16}]
)
def test_another_machine_is_another_file(facts, changes):
    assert cache_path(make_facts(**changes)) != cache_path(facts)


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"format": 0}', "half", "negative", "missing"])
def test_a_corrupt_cache_is_measured_again(facts, fake, damage, monkeypatch):
    path = cpu_report(facts=facts, runner=fake).path
    text = path.read_text()
    data = json.loads(text)
    if damage == "half":
        damage = text[: len(text) // 2]
    elif damage == "negative":
        data["profile"]["clock_ghz"] = -1
        damage = json.dumps(data)
    elif damage == "missing":
        del data["profile"]["bandwidth"]["l1"]
        damage = json.dumps(data)
    path.write_text(damage)
    monkeypatch.setattr(cpu_profile, "_remembered", {})
    calls = fake.calls
    report = cpu_report(facts=facts, runner=fake)
    assert fake.calls > calls and report.spec.source == "profiled"
    assert any("could not be used" in note for note in report.spec.notes)
    assert json.loads(path.read_text())["profile"] == json.loads(text)["profile"]


def test_a_cache_that_cannot_be_written_is_no_failure(facts, fake, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    report = cpu_report(facts=facts, runner=fake)
    assert report.spec.source == "profiled" and any("not kept" in n for n in report.spec.notes)


def test_no_space_leaves_no_half_file(facts, fake, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    report = cpu_report(facts=facts, runner=fake)
    assert any("No space left" in n for n in report.spec.notes)
    assert [p.name for p in report.path.parent.iterdir()] == [".profiling"]


def test_without_profiling_estimates_until_there_is_a_profile(facts, fake):
    report = cpu_report(profile=False, facts=facts, runner=fake)
    assert report.spec.source == "estimated" and "not profiled yet" in report.reason and fake.calls == 0
    assert report.spec.units == 4 and report.spec.clock_ghz == 2.0
    cpu_report(facts=facts, runner=fake)
    assert cpu_report(profile=False, facts=facts, runner=fake).spec.source == "profiled"


@pytest.mark.parametrize("simd", ["avx512", "avx2", "avx", "sse2", "neon"])
def test_estimates_make_a_valid_device_everywhere(simd):
    from roller_tvm.device.known import simd_named

    row = simd_named(simd)
    facts = make_facts(simd=row, machine=row.machine, caches=make_facts().caches[:2])
    spec = cpu_report(profile=False, facts=facts).spec
    assert [lv.name for lv in spec.levels] == ["dram", "l2", "l1", "register"]
    assert spec.vector_bytes == row.vector_bytes


def test_no_compiler_is_a_reason_with_a_remedy(facts, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    report = cpu_report(facts=facts)
    assert report.spec.source == "estimated" and "apt install gcc" in report.reason


# Pieces ----------------------------------------------------------------------------------------------


def test_thread_counts():
    assert thread_counts(make_facts()) == [1, 2, 4, 8]
    assert thread_counts(make_facts(logical=12, cores=6)) == [1, 2, 4, 6, 8, 12]
    assert thread_counts(make_facts(logical=1, cores=1)) == [1]


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
def test_working_sets_fit_their_level_and_no_nearer_one(facts, threads):
    for level, cache in (("l1", facts.cache(1)), ("l2", facts.cache(2)), ("l3", facts.cache(3))):
        size = working_set(facts, level, threads)
        assert size * min(threads, cache.shared_by) <= cache.bytes
        if cache.level > 1:
            assert size > facts.cache(cache.level - 1).bytes
    assert working_set(facts, "dram", threads) * threads >= 4 * facts.cache(3).bytes


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
def test_larger_sets_double_up_to_half_of_the_last_cache(threads):
    facts = large_last_cache()
    sizes = [working_set(facts, "l3", threads), *larger_sets(facts, threads)]
    assert all(near < far <= 2 * near for near, far in zip(sizes, sizes[1:], strict=False))
    assert sizes[-1] * min(threads, 4) == facts.cache(3).bytes // 2


def test_profile_round_trips(facts, fake):
    profile = measure_cpu(facts, fake.run)
    assert CpuProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile
    assert check_profile(facts, profile) == []


def test_fewer_threads_are_a_straight_line(facts, fake):
    profile = measure_cpu(facts, fake.run)
    assert cpu_spec(facts, profile, threads=2).peak() == pytest.approx(2 * 96)
    assert cpu_spec(facts, profile, threads=100).units == 4


def test_parse_output_refuses_what_it_does_not_know():
    requests = [Request("clock")]
    assert parse_output("0 30 10 0\n0 90 10 1\n0 60 10 0\n", requests) == {requests[0]: [3.0, 6.0]}
    assert parse_output("0 90 10 1\n", requests) == {requests[0]: []}  # known, and always disturbed
    assert parse_output("", requests) == {}
    for text in ("hello", "0 1", "0 1 1", "7 1 1 0", "0 x 1 0"):
        with pytest.raises(ProfileError):
            parse_output(text, requests)


@needs_cc
def test_a_compiler_that_fails_says_its_words(tmp_path):
    with pytest.raises(ProfileError, match="could not compile"):
        compile_benchmarks(tmp_path, vector_bytes=7)


@needs_cc
def test_a_real_short_run():
    """Compiles the benchmarks and runs a little of each; sane, not exact: other programs may be at work."""
    facts = detect_cpu()
    kinds = [Request("clock", 1, 0, 10, 5), Request("latency32", 1, 0, 10, 5), Request("fma32", 1, 0, 20, 10)]
    kinds += [
        Request("fma64", 2, 0, 20, 10),
        Request("read", 1, 16384, 20, 10),
        Request("chase", 1, 16384, 10, 5),
    ]
    with NativeRunner(facts.simd.vector_bytes, facts.cpus) as run:
        rates = run([*kinds, Request("nothing")])
    best = {r.kind: max(values) for r, values in rates.items() if values}
    if len(best) < len(kinds):
        pytest.skip("this machine is too busy for an undisturbed repeat of each")
    assert Request("nothing") not in rates
    assert 0.2 < best["clock"] < 8
    lanes = facts.simd.vector_bytes // 4
    assert 0.1 < best["fma32"] / (2 * lanes * best["clock"]) < 4.4
    assert best["latency32"] < best["clock"] and best["read"] > 1
