"""Detection from sysfs and procfs, on made-up machines."""

from __future__ import annotations

import pytest

from roller_tvm.device.cpu_detect import default_cpu_target, detect_cpu, simd_for
from roller_tvm.device.known import simd_of_mcpu, simd_table, tuned_name

AVX512 = "fpu sse2 avx avx2 fma avx512f avx512bw avx512dq avx512vl"


@pytest.fixture
def machine(tmp_path):
    """Writes a machine's files; returns a function that detects it."""

    def put(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def build(cpus=4, smt=1, flags=AVX512, caches=True, extra=None, **kw):
        info = "\n\n".join(
            f"processor\t: {i}\nmodel name\t: Toy\ncpu MHz\t\t: 2500.0\nflags\t\t: {flags}"
            for i in range(cpus)
        )
        put("proc/cpuinfo", info)
        put("proc/meminfo", "MemTotal:       8388608 kB")
        put("proc/self/cgroup", "0::/job")
        put("sys/devices/system/cpu/online", f"0-{cpus - 1}")
        for i in range(cpus):
            base = f"sys/devices/system/cpu/cpu{i}"
            put(f"{base}/topology/core_id", str(i % (cpus // smt)))
            put(f"{base}/topology/physical_package_id", "0")
            if caches:
                mine = ",".join(str(j) for j in range(cpus) if j % (cpus // smt) == i % (cpus // smt))
                for index, (level, kind, size, shared) in enumerate(
                    [
                        (1, "Data", "48K", mine),
                        (1, "Instruction", "32K", mine),
                        (2, "Unified", "2048K", mine),
                        (3, "Unified", "32768K", f"0-{cpus - 1}"),
                    ]
                ):
                    folder = f"{base}/cache/index{index}"
                    put(f"{folder}/level", str(level))
                    put(f"{folder}/type", kind)
                    put(f"{folder}/size", size)
                    put(f"{folder}/coherency_line_size", "64")
                    put(f"{folder}/ways_of_associativity", "12")
                    put(f"{folder}/shared_cpu_list", shared)
        for path, text in (extra or {}).items():
            put(path, text)
        kw.setdefault("affinity", frozenset(range(cpus)))
        return detect_cpu(tmp_path, machine="x86_64", system="Linux", **kw)

    return build


def test_caches_cores_simd(machine):
    facts = machine(cpus=4)
    assert [(c.level, c.bytes, c.ways, c.shared_by) for c in facts.caches] == [
        (1, 48 << 10, 12, 1),
        (2, 2 << 20, 12, 1),
        (3, 32 << 20, 12, 4),
    ]
    assert (facts.logical, facts.cores) == (4, 4)
    assert facts.simd.name == "avx512" and facts.clock_ghz == 2.5 and facts.memory_bytes == 8 << 30
    assert facts.model == "Toy" and facts.notes == ()


def test_hyper_threads_are_not_cores_and_come_last(machine):
    facts = machine(cpus=8, smt=2)
    assert (facts.logical, facts.cores) == (8, 4)
    assert facts.cpus == tuple(range(8))
    assert facts.cache(2).shared_by == 1 and facts.cache(3).shared_by == 4


def test_affinity_counts(machine):
    facts = machine(cpus=8, smt=2, affinity=frozenset({1, 5, 6}))  # 1 and 5 share a core
    assert (facts.logical, facts.cores) == (3, 2)
    assert facts.cpus == (1, 6, 5)
    assert "affinity" in facts.notes[0]


@pytest.mark.parametrize(
    ("files", "logical"),
    [
        ({"sys/fs/cgroup/job/cpu.max": "200000 100000"}, 2),
        ({"sys/fs/cgroup/job/cpu.max": "max 100000", "sys/fs/cgroup/cpu.max": "150000 100000"}, 1),
        ({"sys/fs/cgroup/job/cpu.max": "50000 100000"}, 1),
        ({"sys/fs/cgroup/job/cpu.max": "max 100000"}, 4),
        ({"sys/fs/cgroup/job/cpu.max": "nonsense"}, 4),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/job",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/job",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            4,
        ),
    ],
)
def test_cgroup_quota_counts(machine, files, logical):
    facts = machine(cpus=4, extra=files)
    assert facts.logical == facts.cores == logical
    assert bool(facts.notes) == (logical < 4)


def test_max_frequency_wins_over_the_moment(machine):
    extra = {"sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "4700000"}
    assert machine(extra=extra).clock_ghz == 4.7


def test_a_silent_system_gets_assumptions_and_says_so(tmp_path):
    facts = detect_cpu(tmp_path, machine="riscv64", system="Linux", affinity=frozenset({0}))
    assert [c.level for c in facts.caches] == [1, 2] and facts.clock_ghz > 0 and facts.memory_bytes > 0
    assert {"clock assumed", "memory size assumed"} <= set(facts.notes)
    assert facts.simd.vector_bytes == 16


def test_garbage_in_sysfs_does_not_raise(machine):
    base = "sys/devices/system/cpu/cpu0/cache"
    extra = {
        f"{base}/index0/size": "lots",
        f"{base}/index2/level": "two",
        "sys/devices/system/cpu/online": "a-b",
    }
    facts = machine(extra=extra)
    assert {c.level for c in facts.caches} == {1, 2, 3} and len(facts.notes) == 2


@pytest.mark.parametrize(
    ("kind", "flags", "name", "mcpu"),
    [
        ("x86-64", AVX512, "avx512", "skylake-avx512"),
        ("x86-64", "sse2 avx avx2 fma", "avx2", "core-avx2"),
        (
            "x86-64",
            "sse2 avx512f avx2 fma",
            "avx2",
            "core-avx2",
        ),  # Xeon Phi's avx512f alone is not skylake-avx512
        ("x86-64", "sse2 avx", "avx", "corei7-avx"),
        ("x86-64", "sse2", "sse2", "x86-64"),
        ("aarch64", "fp asimd", "neon", "generic"),
    ],
)
def test_simd(kind, flags, name, mcpu):
    simd = simd_for(kind, frozenset(flags.split()))
    assert (simd.name, simd.mcpu) == (name, mcpu)


def test_no_mcpu_name_stands_for_two_widths():
    names = [n for s in simd_table() for n in (s.mcpu, *s.cpus) if n != "generic"]
    assert len(names) == len(set(names))
    assert simd_of_mcpu("znver4").name == "avx512" and simd_of_mcpu("nothing") is None


def test_code_for_16_registers_is_ordered_for_one_cpu() -> None:
    names = {cpu: tuned_name(cpu) for cpu in ("znver3", "alderlake", "core-avx2", "znver4", "sandybridge", "nothing")}
    assert [cpu for cpu, name in names.items() if name != cpu] == ["znver3", "alderlake"]
    assert names["znver3"] == names["alderlake"] == "core-avx2"


def test_default_target(machine):
    assert default_cpu_target(facts=machine(cpus=8, smt=2)) == "llvm -mcpu=skylake-avx512 -num-cores=4"
    assert default_cpu_target(3, machine(flags="avx2 fma")) == "llvm -mcpu=core-avx2 -num-cores=3"
