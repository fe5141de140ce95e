"""Times by events, without TVM: a driver of NVIDIA's that is none, kernels that sleep."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from roller_tvm.errors import MeasureError
from roller_tvm.explore.device_times import UNHELD, Driver, EventTable
from roller_tvm.explore.dispatch import FFI, Site, Variant, source

CODE = Path(__file__).parents[1] / "fake_card" / "fake_cuda.cc"
SITES = [
    Site("dense", ("a", "b"), (Variant("slow", (0,)), Variant("quick", (0,)))),
    Site("relu", ("a",), (Variant("quick", (0,)),)),
]
KERNELS = """
#include <unistd.h>
extern "C" {
void* stream(int, int) { return 0; }
int __tvm_ffi_slow(void*, const void*, int, void*) { return usleep(2000); }
int __tvm_ffi_quick(void*, const void*, int, void*) { return 0; }
}
"""


def linked(folder, name, *files):
    made = folder / name
    subprocess.run(["g++", "-O1", "-w", "-shared", "-fPIC", *map(str, files), "-o", str(made), "-ldl"], check=True)
    return made


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    (folder / "sites.cc").write_text(source(SITES, FFI, events=True))
    (folder / "kernels.cc").write_text(KERNELS)
    return linked(folder, "driver.so", CODE), linked(folder, "sites.so", folder / "sites.cc", folder / "kernels.cc")


@pytest.fixture
def table(parts):
    driver, sites = parts
    return EventTable(sites, len(SITES), Driver(str(driver)), ctypes.CDLL(str(sites)).stream)


def run(parts):
    for n in range(len(SITES)):
        assert ctypes.CDLL(str(parts[1]))[f"__tvm_ffi_roller_tvm_site_{n}"](None, bytes(16), 1, None) == 0


def test_each_site_has_the_time_of_its_own_kernel(parts, table):
    for chosen in (0, 1):
        table.choose([chosen, 0])
        assert all(s != s for s in table.seconds()), "times of a run before"
        run(parts)
        first, second = table.seconds()
        assert (first > 2e-3) == (chosen == 0) and 0 <= second < 2e-3
        assert table.chosen == [chosen, 0]


def test_without_events_nothing_is_timed(parts, table):
    table.choose([1, 0])
    run(parts)
    before = table.seconds()
    table.timing(False)
    table.choose([0, 0])
    run(parts)
    assert table.seconds() == before


def test_runs_are_held_for_longer_than_it_took_to_queue_them(parts, table):
    table.choose([0, 0])
    for _ in range(UNHELD + 1):
        assert table.hold_s == 0
        table.start()
        run(parts)
    table.start()
    assert 2e-3 < table.hold_s <= 0.05


def test_a_driver_that_refuses_is_told(parts, monkeypatch):
    driver = Driver(str(parts[0]))
    driver.library.cuTensorMapEncodeTiled.argtypes = ()
    with pytest.raises(MeasureError, match="cuTensorMapEncodeTiled of NVIDIA's driver fails with 801"):
        driver._call("cuTensorMapEncodeTiled")
