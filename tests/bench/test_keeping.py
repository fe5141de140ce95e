"""What is kept is whole: a process that is killed leaves nothing under a kernel's or a reference's name."""

import json
import math
from pathlib import Path

import pytest

from roller_bench import files
from roller_bench.cases import Case
from roller_bench.files import CurveFile, keep_folder, keep_kernel
from roller_bench.task import OpenedTask, first_right

from ..plan.devices import device


def killed(place):
    path = Path(place, "in0.npy") if Path(place).is_dir() else Path(place)
    path.write_text("half")
    raise KeyboardInterrupt


def test_half_a_kernel_is_none(tmp_path):
    path = tmp_path / "c0ffee.so"
    with pytest.raises(KeyboardInterrupt):
        keep_kernel(path, killed, {"wrong": ""})
    assert not path.exists()
    keep_kernel(path, lambda name: Path(name).write_text("whole"), {"wrong": "off"})
    assert path.read_text() == "whole" and json.loads(path.with_suffix(".json").read_text()) == {"wrong": "off"}
    assert len(list(tmp_path.iterdir())) == 2


def test_half_a_reference_is_made_again(tmp_path):
    path = tmp_path / "references" / "key"
    with pytest.raises(KeyboardInterrupt):
        keep_folder(path, killed)
    assert not path.exists()
    keep_folder(path, lambda part: Path(part, "out0.npy").touch())
    keep_folder(path, killed)  # is there: not filled again
    assert [p.name for p in path.iterdir()] == ["out0.npy"]


def opened(folder):
    case = Case("x", "matmul", "m=8 n=8 k=8")
    (folder / "kernels").mkdir()
    return OpenedTask(case, "llvm", device("avx512"), "key", folder)


def test_what_is_told_of_a_kernel_becomes_its_result(tmp_path):
    task = opened(tmp_path)
    built = {"wrong": "", "unrun": "built, neither run nor timed: no cuda device here"}
    told = {"a": {"wrong": ""}, "b": {"wrong": "off by 3"}, "c": built}
    found = {}
    for name, values in told.items():
        kernel = keep_kernel(task.kernels / f"{name}.so", lambda file: Path(file).touch(), {**values, "build_s": 0.5})
        found[name] = task.found(kernel, 2.0, remark="packed")
        assert files.build_seconds(kernel) == 0.5
    assert (found["a"]["status"], found["a"]["reason"], found["a"]["kernel"]) == ("ok", "packed", "kernels/a.so")
    assert (found["b"]["status"], found["b"]["reason"]) == ("wrong answer", "off by 3")
    assert found["c"]["status"] == "ok" and "no cuda device here; packed" in found["c"]["reason"]
    assert found["c"]["kernel"] == ""  # nothing that could be timed


def test_the_first_that_is_right(tmp_path):
    task = opened(tmp_path)

    def build(number):
        if number == 0:
            raise ValueError("does not build")
        wrong = "" if number > 1 else "wrong numbers"
        return keep_kernel(task.kernels / f"{number}.so", lambda file: Path(file).touch(), {"wrong": wrong})

    chosen, kernel, _ = first_right(range(4), build, ValueError)
    assert chosen == 2 and kernel.name == "2.so"
    assert first_right([0, 1], build, ValueError) == (None, None, "wrong answer: wrong numbers")
    assert first_right([0], build, ValueError)[2] == "failed: does not build"


def test_tuning_goes_on_with_its_seconds(tmp_path):
    path = tmp_path / "curve.jsonl"
    first = CurveFile(path)
    first.leave_out(-5.0)  # as if five seconds had gone by
    first.note([2.0, float("inf")])
    with path.open("a") as file:
        file.write("[7.")  # killed while it wrote
    again = CurveFile(path)
    assert again.trials == 2 and again.best == 2.0 and again.noted == first.noted >= 5.0
    again.leave_out(1000.0)
    again.leave_out(-1003.0)
    again.note([1.0])
    assert 8.0 <= again.noted < 60.0 and again.points[-1][1] == 1.0
    assert CurveFile(path).points == again.points


def test_why_no_kernel_worked(tmp_path):
    curve = CurveFile(tmp_path / "curve.jsonl")
    assert curve.none_worked() == "none of 0 kernels worked"
    curve.note([math.inf], "traceback\nLocalBuilder: Timeout, killed after 120.0 seconds\n")
    curve.note([math.inf, math.inf])
    assert curve.none_worked() == "none of 3 kernels worked: LocalBuilder: Timeout, killed after 120.0 seconds"
