"""Whole models beside those of another commit."""

import numpy as np
import pytest

from roller_bench.figures import main
from roller_bench.figures.models_against import _compare
from roller_bench.running import keep_inputs
from roller_tvm.errors import MeasureError

from ..relay.onnx_models import convolution


@pytest.mark.relax
@pytest.mark.nightly
@pytest.mark.slow
def test_a_model_is_built_by_both_and_run_in_turns(tmp_path, capsys):
    file = convolution(tmp_path / "net.onnx")
    keep_inputs({"x": np.ones((1, 3, 16, 16), "float32")}, file.with_suffix(".npz"))
    words = ["models-against", "HEAD", "--models", str(file), "--turns", "1", "--time", "0.01"]
    assert main(words) == 0
    assert "geometric mean" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [0.0, np.nan])
def test_outputs_that_differ_are_an_error(tmp_path, wrong):
    then, now = tmp_path / "then.npz", tmp_path / "now.npz"
    np.savez(then, np.ones(3))
    np.savez(now, np.array([1, 1.00001, 1]))
    _compare("net", then, now)
    np.savez(now, np.array([1, wrong, 1]))
    with pytest.raises(MeasureError, match="outputs differ"):
        _compare("net", then, now)
