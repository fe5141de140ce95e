"""A model tuned, built as users build it, compared with onnxruntime and timed beside it."""

import re

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.te

from roller_bench.figures import main  # noqa: E402
from roller_bench.variants import Variant, compare, onnx_model  # noqa: E402
from roller_tvm.errors import WrongAnswer  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402

from ..relay.onnx_models import convolution  # noqa: E402

ARGUMENTS = ["--layouts", "imported", "--trials", "2", "--rounds", "1", "--seconds", "0.1"]


@pytest.fixture
def small(tmp_path):
    return convolution(tmp_path / "small.onnx")


@pytest.mark.nightly
def test_a_model_is_tuned_once_and_its_table_written(small, tmp_path, capsys):
    out = tmp_path / "table.txt"
    arguments = ["--models", str(small), *ARGUMENTS, "--folder", str(tmp_path / "work")]
    assert main(["end-to-end", *arguments, "--out", str(out)]) == 0
    told = re.search(r"(\d) operators, (\d) of them tuned now", capsys.readouterr().out)
    least = {"relay": "4", "relax": "2"}[line()]  # data laid out anew, on some CPUs, is one more
    assert told and told[1] == told[2] >= least
    table = out.read_text()
    assert "geomean onnxruntime/ours over 1 models, imported: " in table
    row = next(text for text in table.splitlines() if text.startswith("small"))
    assert float(row.split()[-1]) < 1e-5  # the error
    (library,) = (tmp_path / "work").glob("small.*.imported.top2.so")
    built = library.stat().st_mtime_ns
    assert main(["end-to-end", *arguments]) == 0
    assert "tuned now" not in capsys.readouterr().out
    assert library.stat().st_mtime_ns == built


def test_a_wrong_output_is_an_error(small, tmp_path):
    model = onnx_model(str(small), tmp_path)
    variant = Variant("wrong", lambda: [np.ones((1, 10), np.float32)])
    with pytest.raises(WrongAnswer, match="wrong differs from onnxruntime by 1"):
        compare(model, [variant], [np.full((1, 10), 0.5, np.float32)])


def test_only_what_onnxruntime_runs_too(tmp_path, capsys):
    assert main(["end-to-end", "--models", "testing:mlp", "--folder", str(tmp_path)]) != 0
    assert "testing:mlp" in capsys.readouterr().err
