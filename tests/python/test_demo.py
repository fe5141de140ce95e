"""The demonstration's budget, table and picture."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("rich", reason="the demonstration shows its progress with rich")
pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parents[2] / "python"))

import demo  # noqa: E402
from roller_bench.zoo import Prepared  # noqa: E402


def at(clock, seconds):
    clock.now = lambda: clock.begun + seconds
    return clock


def test_what_is_left_is_shared_and_each_model_can_still_be_built():
    clock = demo.Clock(180.0)
    first = at(clock, 30.0).for_tuning(20.0, 1)
    assert first == pytest.approx((180 - 30 - (20 + demo.TIMING_S)) / 2 - 20 - demo.TIMING_S)
    assert at(clock, 120.0).for_tuning(20.0, 0) == pytest.approx(60 - 20 - demo.TIMING_S)
    slow = at(clock, 100.0).for_tuning(90.0, 1)
    assert slow < demo.WORTH_S, "a slow machine tunes nothing rather than taking longer"


@pytest.fixture
def rows():
    model = Prepared("MobileNet v2", Path("m.onnx"), {})
    times = {"ort": 2e-3, "planned": 1.6e-3, "tuned": 1e-3}
    tuned = demo.Row(model, 9.0, 20.0, "12 of 40 operators tuned", times, 1e-6)
    return [tuned, demo.Row(model, 9.0, 0.0, "no time left to tune", {"ort": 2e-3, "planned": 4e-3}, 1e-6)]


def test_the_table_has_every_figure(rows):
    from rich.console import Console

    console = Console(width=120, record=True)
    console.print(demo.table(rows, 2))
    text = console.export_text()
    for figure in ("2.00", "1.60 (1.25x)", "1.00 (2.00x)", "4.00 (0.50x)", "12 of 40 operators tuned", "1.0e-06"):
        assert figure in text


def test_the_picture_has_a_bar_for_each_time(rows):
    drawn = ElementTree.fromstring(demo.picture(rows, "Speed"))
    bars = [e for e in drawn.iter() if e.tag.endswith("rect") and any(c.tag.endswith("title") for c in e)]
    assert len(bars) == 5
    assert max(float(b.get("width")) for b in bars) == pytest.approx(420)


@pytest.mark.parametrize("build_s, models", [(5.0, 2), (50.0, 1)])
def test_a_slow_machine_leaves_the_second_model_out(rows, tmp_path, monkeypatch, capsys, build_s, models):
    clock, done = demo.Clock(60.0), []

    def run(name, folder, clock, models_left):
        done.append(name)
        at(clock, build_s)
        return demo.Row(rows[0].model, build_s, 0.0, "", rows[0].latency, 1e-6)

    monkeypatch.setattr(demo, "run", run)
    monkeypatch.setattr("roller_tvm.device.cpu_device", lambda: Machine())
    assert demo.demonstrate(tmp_path, clock) == 0
    assert len(done) == models
    assert (tmp_path / "demo.svg").is_file()
    assert ("no time left for mobilenet_v2" in capsys.readouterr().err) == (models == 1)


class Machine:
    """A device that nobody measured."""

    units, title = 2, "CPU"


def test_a_busy_machine_is_named(tmp_path, monkeypatch, capsys, rows):
    monkeypatch.setattr(demo, "run", lambda *args: rows[0])
    monkeypatch.setattr("roller_tvm.device.cpu_device", lambda: Machine())
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    assert demo.demonstrate(tmp_path, demo.Clock(60.0)) == 0
    assert "this machine was busy" in capsys.readouterr().err
