"""Planning times of this checkout beside those of another commit."""

import numpy as np
import pytest

from roller_bench.figures import main
from roller_bench.figures.plan_against import _change
from roller_bench.running import keep_inputs

from ..relay.onnx_models import convolution


def test_another_commit_is_planned_in_turns(tmp_path, capsys):
    file = tmp_path / "few.csv"
    file.write_text("id,operator,params\nA,matmul,m=64 n=64 k=64\nB,relu,shape=8\n")
    assert main(["plan-against", "HEAD", str(file), "--devices", "v100", "--top", "2", "--repeat", "1"]) == 0
    assert "v100: top-2, 2 operators, CPU time: median" in capsys.readouterr().out


def test_no_such_commit(capsys):
    assert main(["plan-against", "absent"]) != 0
    assert "name a commit of this repository" in capsys.readouterr().err


def test_a_changed_plan_is_priced_by_this_checkouts_model():
    old, new = ("matmul on v100\ngpu.tiled a", 2e-6), ("matmul on v100\ngpu.tiled b", 3e-6)
    assert _change([old], [new]) == "gpu.tiled a (not among today's plans) now gpu.tiled b (3.00 us)"
    assert _change([old], [new, (old[0], 5e-6)]) == "gpu.tiled a (5.00 us) now gpu.tiled b (3.00 us)"
    assert not _change([old], [old, new])


@pytest.mark.relax
@pytest.mark.nightly
def test_operators_of_a_model_are_planned_once_each(tmp_path, capsys):
    file = convolution(tmp_path / "net.onnx")
    keep_inputs({"x": np.zeros((1, 3, 16, 16), "float32")}, file.with_suffix(".npz"))
    words = ["plan-against", "HEAD", "--models", f"{file},{file}", "--devices", "cpu", "--top", "2", "--repeat", "1"]
    assert main(words) == 0
    assert "cpu: top-2, 3 operators, CPU time: median" in capsys.readouterr().out
