"""Spec files: the shipped ones are whole and sourced; bad ones are refused by file and key."""

from __future__ import annotations

import pytest

from roller_tvm.device import DeviceSpec, known, known_devices, load_device, load_file
from roller_tvm.device.files import read_shipped, shipped_files
from roller_tvm.device.quantity import read_quantity
from roller_tvm.errors import SpecError, UnknownDevice

SHIPPED = [name for name in known_devices() if name != "cpu"]


def test_the_promised_devices_are_there():
    assert set(SHIPPED) == {"v100", "k80", "t4", "a100", "h100", "h200", "rtx4090", "mi50", "ipu_mk1"}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_of_a_shipped_file_has_a_source(name):
    spec = load_device(name)  # refuses a number without a source
    assert DeviceSpec.from_json(spec.to_json()) == spec
    told = spec.sources
    for lv in spec.levels:
        for key in ("capacity", "bandwidth", "transaction", "line"):
            assert f"level.{lv.name}.{key}" in told
    for key in ("units", "clock", "vector_width", "vector_load", "launch_overhead", "peak.float32"):
        assert key in told
    for text in told.values():
        assert "[" not in text.split(": ", 1)[1], "a document that was not resolved"


@pytest.mark.parametrize("name", SHIPPED)
def test_peak_follows_from_units_clock_and_fma_rate(name):
    """Independent numbers of one file must agree: peak = units x FMA a cycle x lanes x 2 x clock."""
    spec = load_device(name)
    flop = spec.units * spec.limits.fma_per_cycle * spec.vector_width * 2
    assert spec.peak("float32") == pytest.approx(flop * spec.clock_ghz, rel=0.01)


@pytest.mark.parametrize("name", [n for n in SHIPPED if n != "ipu_mk1"])
def test_gpu_numbers_that_must_agree_with_each_other(name):
    spec = load_device(name)
    shared, limits = spec.level("shared"), spec.limits
    assert shared.banks * shared.bank_bytes == shared.line_bytes
    most = limits.shared_per_block_optin_bytes or limits.shared_per_block_bytes
    assert most + limits.shared_reserved_bytes <= shared.capacity_bytes
    assert limits.max_threads_per_unit % spec.vector_width == 0
    assert limits.max_registers_per_thread * 4 == spec.level("register").capacity_bytes
    assert limits.register_granularity % spec.vector_width == 0


def test_h200_is_an_h100_with_other_memory():
    h100, h200 = load_device("h100"), load_device("H200")
    assert h200.level("dram").bandwidth_gbps == 4494 and h100.level("dram").bandwidth_gbps == 3352
    assert h200.levels[1:] == h100.levels[1:] and h200.limits == h100.limits
    assert h200.limits.shared_per_block_optin_bytes == 227 * 1024


def test_default_for_is_unambiguous():
    archs = [arch for file in shipped_files() for arch in file.default_for]
    assert len(archs) == len(set(archs))


def test_no_number_of_the_cpu_and_cuda_data_is_dead_or_missing():
    for file, tables in known.DIMENSIONS.items():
        for table, dimensions in tables.items():
            assert set(read_shipped(file)[table]) == set(dimensions)
            assert all(known._known(file, table, key) > 0 for key in dimensions)


def test_arch_limits_have_sources():
    for arch, rows in read_shipped("_cuda_arch").items():
        if arch != "documents":
            for key, entry in rows.items():
                read_quantity(entry, f"{arch}.{key}", need_source=True)


# A user's own file -----------------------------------------------------------------------------------

WHOLE = """
name = "toy"
kind = "gpu"
arch = "sm_80"
units = { value = 2, unit = "SM" }
vector_width = { value = 32, unit = "threads" }
vector_load = { value = 16, unit = "B" }
clock = { value = 1000, unit = "MHz" }
launch_overhead = { value = 500, unit = "ns" }
[level.dram]
scope = "device"
capacity = { value = 1, unit = "GiB" }
bandwidth = { value = 0.1, unit = "TB/s" }
transaction = { value = 32, unit = "B" }
line = { value = 128, unit = "B" }
[level.shared]
scope = "unit"
capacity = { value = 48, unit = "KiB" }
bandwidth = { value = 128, unit = "B/clk/unit" }
transaction = { value = 4, unit = "B" }
line = { value = 128, unit = "B" }
banks = { value = 32, unit = "banks" }
bank_width = { value = 4, unit = "B" }
latency = { value = 30, unit = "cycles" }
[limits]
shared_per_block = { value = 48, unit = "KiB" }
[peak]
float32 = { value = 128, unit = "FLOP/clk/unit" }
"""


@pytest.fixture
def write(tmp_path):
    def _write(text: str, name: str = "mine.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return _write


def test_a_whole_file_with_units_of_all_kinds(write):
    spec = load_device(write(WHOLE))
    assert spec.clock_ghz == 1.0 and spec.launch_overhead_us == 0.5 and spec.source == "user"
    assert spec.level("dram").bandwidth_gbps == 100
    assert spec.level("shared").bandwidth_gbps == 256  # 128 B x 2 units x 1 GHz
    assert spec.level("shared").latency_ns == 30
    assert spec.peak() == 256
    assert spec.limits.shared_per_block_bytes == 48 * 1024


def test_base_and_overrides_change_only_what_they_name(write):
    spec = load_file(
        write(
            'base = "h200"\nname = "half"\nunits = { value = 66, unit = "SM", source = "MIG" }\n'
            '[level.dram]\nbandwidth = { value = 2.4, unit = "TB/s" }\n'
            '[limits]\nshared_per_block_optin = { value = 100, unit = "KiB" }\n'
        )
    )
    h200 = load_device("h200")
    assert (spec.name, spec.units) == ("half", 66)
    assert spec.level("dram").bandwidth_gbps == 2400
    assert spec.level("dram").capacity_bytes == h200.level("dram").capacity_bytes
    assert spec.limits.shared_per_block_optin_bytes == 100 * 1024
    assert spec.peak() == h200.peak() and spec.levels[1:] == h200.levels[1:]
    assert spec.sources["units"] == "66 SM: MIG"


def test_base_can_be_another_file_and_adds_levels_in_their_place(write):
    write(WHOLE, "toy.toml")
    spec = load_file(
        write(
            'base = "toy.toml"\n[level.l2]\nscope = "device"\ncapacity = { value = 4, unit = "MiB" }\n'
            'bandwidth = { value = 200, unit = "GB/s" }\ntransaction = { value = 32, unit = "B" }\n'
            'line = { value = 128, unit = "B" }\n'
        )
    )
    assert [lv.name for lv in spec.levels] == ["dram", "l2", "shared"]


def test_base_cpu(write, monkeypatch, facts, fake):
    from roller_tvm.device import cpu_profile

    cpu = cpu_profile.cpu_report(facts=facts, runner=fake).spec
    monkeypatch.setattr(cpu_profile, "cpu_device", lambda: cpu)
    spec = load_file(write('base = "cpu"\n[peak]\nfloat32 = { value = 1, unit = "TFLOP/s" }\n'))
    assert spec.peak() == 1000 and spec.kind == "cpu" and spec.levels == cpu.levels


def refused(path, *words: str, error: type = SpecError) -> None:
    with pytest.raises(error) as caught:
        load_device(path)
    for word in ("mine.toml", *words):
        assert word in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("units =", "unit =", ("'unit'", "did you mean 'units'")),
        ("[limits]", "[limitz]", ("limitz",)),
        ("shared_per_block =", "shared_pre_block =", ("limits.shared_pre_block", "shared_per_block")),
        ("banks =", "bank =", ("level.shared.bank", "banks")),
        ("float32 =", "fp32 =", ("peak.fp32",)),
        ('"GiB"', '"GB/s"', ("level.dram.capacity", "'GB/s'", "KiB")),
        ('"TB/s"', '"KiB"', ("level.dram.bandwidth", "'KiB'", "GB/s")),
        ('"MHz"', '"mhz"', ("clock", "'mhz'", "MHz")),
        ("value = 1000,", "value = 0,", ("clock", "above 0")),
        ("value = 2,", "value = -2,", ("units", "negative")),
        ("value = 2,", "value = 1.5,", ("units", "whole number")),
        ("value = 2,", 'value = "two",', ("units", "not a number")),
        ("value = 2,", "value = inf,", ("units", "not a number")),
        ("value = 2,", "value = true,", ("units", "not a number")),
        ('{ value = 2, unit = "SM" }', "2", ("units", "no unit")),
        ('{ value = 2, unit = "SM" }', '{ value = 2, unit = "SM", note = "" }', ("units", "note")),
        ('{ value = 2, unit = "SM" }', "{ value = 2 }", ("units", "'unit' is missing")),
        (
            'value = 48, unit = "KiB" }\nbandwidth',
            'value = 0, unit = "KiB" }\nbandwidth',
            ("shared", "above 0"),
        ),
        ("transaction = { value = 32", "transaction = { value = 48", ("dram", "does not divide")),
        ('float32 = { value = 128, unit = "FLOP/clk/unit" }', "", ("float32", "missing")),
        ('clock = { value = 1000, unit = "MHz" }', "", ("clock", "missing")),
        ('scope = "unit"', 'scope = "block"', ("shared", "block")),
        ('scope = "unit"\n', "", ("level.shared.scope", "missing")),
        ('name = "toy"', "name = 7", ("name", "not text")),
        ('name = "toy"', "", ("name", "missing")),
        ('kind = "gpu"', 'kind = "abacus"', ("kind", "abacus")),
        ('kind = "gpu"', 'kind = "gpu"\nformat = 2', ("format",)),
        ('kind = "gpu"', 'kind = "gpu"\nbase = "mine.toml"', ("circle",)),
        ('kind = "gpu"', 'kind = "gpu"\nlevel = 3', ("level",)),
        ('kind = "gpu"', 'kind = "gpu', ("not TOML", "line 3")),
        ("value = 0.1,", "value = 1000,", ("shared", "slower than dram")),
        ('unit = "SM" }', 'unit = "SM", source = "[wp]" }', ("units", "[wp]", "documents")),
    ],
)
def test_bad_files_are_refused_by_name(write, old, new, words):
    assert old in WHOLE
    text = WHOLE.replace(old, new, 1)
    if "level = 3" in new:
        text = text[: text.index("[level.dram]")] + "[peak]\n"
    refused(write(text), *words)


def test_unknown_base(write):
    refused(write('base = "h300"'), "h300", "v100", error=UnknownDevice)


def test_unknown_device_lists_the_known_ones():
    with pytest.raises(UnknownDevice) as caught:
        load_device("v10")
    assert "'v100'" in str(caught.value) and "rtx4090" in str(caught.value) and caught.value.exit_code == 2


def test_missing_and_unreadable_file(tmp_path):
    with pytest.raises(UnknownDevice, match="no spec file"):
        load_device(tmp_path / "nothing.toml")
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot be read"):
        load_device(tmp_path / "x.toml")
