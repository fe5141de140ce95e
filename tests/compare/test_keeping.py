"""What is kept is whole: a process that is killed leaves nothing under a kernel's or a reference's name."""

import doctest
import json
from pathlib import Path

import pytest

from roller_tvm.compare import keeping
from roller_tvm.compare.keeping import keep_folder, keep_kernel


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


def test_examples():
    assert doctest.testmod(keeping).failed == 0
