"""A server's CPU, detected and profiled there by programs that are compiled here."""

import os
import platform
import shutil

import pytest

pytestmark = [pytest.mark.te, pytest.mark.slow]
pytest.importorskip("tvm")

from roller_bench.farm import Farm  # noqa: E402
from roller_tvm.device import cpu_profile  # noqa: E402
from roller_tvm.device.cpu_detect import detect_cpu  # noqa: E402
from roller_tvm.device.cpu_measure import estimated_profile  # noqa: E402
from roller_tvm.device.rates import Request  # noqa: E402
from roller_tvm.errors import ProfileError, ToolchainError  # noqa: E402
from roller_tvm.tuning import remote_profile  # noqa: E402
from roller_tvm.tuning.remote import Tracker  # noqa: E402
from roller_tvm.tuning.remote_profile import remote_cpu_report  # noqa: E402

OTHER = "riscv64-linux-gnu"


@pytest.mark.nightly
def test_a_server_is_profiled_as_this_machine_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no profile of this machine
    asked = Request("fma32", 1, budget_ms=5, repeats=3)

    def measured(facts, run):
        assert asked in run([asked])
        return estimated_profile(facts)

    monkeypatch.setattr(cpu_profile, "measure_cpu", measured)
    with Farm(tmp_path) as farm:
        server = farm.start_server()
        farm.wait(1)
        report = remote_cpu_report(farm.where, refresh=True)
        here = detect_cpu(affinity=frozenset(os.sched_getaffinity(server.pid)))
        assert (report.facts.model, report.facts.caches, report.facts.simd) == (here.model, here.caches, here.simd)
        assert report.facts.logical == here.logical and report.spec.source == "profiled"
        own = f"{platform.machine()}-linux-gnu"
        assert remote_cpu_report(farm.where, own).facts.machine == here.machine
        monkeypatch.setattr(remote_profile, "_compiler", lambda triple: shutil.which("gcc") or shutil.which("cc"))
        with pytest.raises(ProfileError, match=f"not of {OTHER}"):
            remote_cpu_report(farm.where, OTHER)


def test_without_a_compiler_for_it_the_package_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ToolchainError) as caught:
        remote_cpu_report(Tracker("127.0.0.1", 1, "test"), OTHER)
    assert "gcc-riscv64-linux-gnu" in str(caught.value)
