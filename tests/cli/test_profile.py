"""``roller-tvm profile`` on machines that are made up."""

from __future__ import annotations

import json

import pytest

from roller_tvm import cli
from roller_tvm.cli import profile
from roller_tvm.device import DeviceSpec, cpu_profile, cuda_profile, load_device
from roller_tvm.device.cpu_profile import cpu_report
from roller_tvm.device.cuda_profile import cuda_report

from ..device.conftest import FakeMachine, make_facts
from ..device.made_up_card import MadeUpRunner


@pytest.fixture(autouse=True)
def made_up(tmp_path, monkeypatch):
    """A CPU and a card; returns them, so that a test may spoil what they measure."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu_profile, "_remembered", {})
    cpu, card = FakeMachine(make_facts()), MadeUpRunner()
    monkeypatch.setattr(profile, "cpu_report", lambda refresh: cpu_report(refresh=refresh, facts=cpu.facts, runner=cpu))
    monkeypatch.setattr(profile, "cuda_report", lambda n, refresh: cuda_report(n, refresh, runner=card))
    return cpu, card


def main(capsys, *words):
    code = cli.main(["profile", *map(str, words)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_measured_once_then_from_the_cache(made_up, capsys):
    code, out, _ = main(capsys)
    assert code == 0 and "measured in" in out and "4      " in out and "<- as far as threads scale" in out
    calls = made_up[0].calls
    assert "median below best" in main(capsys)[1] and made_up[0].calls == calls
    main(capsys, "--refresh")
    assert made_up[0].calls > calls


def test_a_card(capsys, monkeypatch):
    code, out, _ = main(capsys, "--device", "cuda:0")
    assert code == 0 and "nvidia-toy-100" in out and "measured: read, whole device" in out
    assert "read, MiB" in out and "target: cuda -arch=sm_90" in out
    assert "read from the cache" in main(capsys, "--device", "cuda")[1]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_spec_file_makes_the_same_device(tmp_path, capsys, device):
    file = tmp_path / "mine.toml"
    code, out, _ = main(capsys, "--device", device, "--out", file, "--json")
    assert code == 0 and load_device(file) == DeviceSpec.from_json(out)
    assert load_device(file).source == "profiled"


def test_the_spec_file_may_lie_where_others_write_too(tmp_path, capsys):
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o777)
    code, _, err = main(capsys, "--out", shared / "mine.toml")
    assert code == 0 and not err and load_device(shared / "mine.toml").kind == "cpu"


@pytest.mark.parametrize(("device", "which"), [("cpu", 0), ("cuda:0", 1)])
def test_noise_is_an_error_and_the_earlier_profile_stays(made_up, capsys, device, which):
    good = json.loads(main(capsys, "--device", device, "--json")[1])
    made_up[0].change = lambda r, rate, call: [rate / call**2]
    made_up[1].change = lambda r, rates, call: [rates[0] / call**2]
    code, out, err = main(capsys, "--device", device, "--refresh", "--json")
    kept = json.loads(out)
    assert code == 1 and "cannot be believed" in err and "remedy: " in err and "--refresh" in err
    assert "earlier profile is kept" in kept["notes"][-1] and kept["levels"] == good["levels"]


def test_mistakes(tmp_path, capsys, monkeypatch):
    code, _, err = main(capsys, "--device", "h200")
    assert code == 2 and "cuda:0" in err
    code, _, err = main(capsys, "--out", tmp_path / "no" / "folder.toml")
    assert code == 2 and "mkdir -p" in err
    monkeypatch.setattr(profile, "cuda_report", cuda_report)
    monkeypatch.setattr(cuda_profile, "CudaRunner", lambda ordinal: MadeUpRunner(_NoDriver()))
    code, _, err = main(capsys, "--device", "cuda:0")
    assert code == 1 and "no CUDA driver" in err and "--device h200" in err


class _NoDriver:
    @property
    def facts(self):
        from roller_tvm.device.cuda_driver import Driver

        return Driver(())
