"""A model tuned, built as users build it, compared with onnxruntime and timed beside it."""

import re

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.tvm

from python import end_to_end  # noqa: E402
from python.side_by_side import onnx_model  # noqa: E402
from roller_tvm.errors import WrongAnswer  # noqa: E402

from ..relay.onnx_models import convolution  # noqa: E402

ARGUMENTS = ["--layouts", "imported", "--trials", "2", "--rounds", "1", "--seconds", "0.1"]


@pytest.fixture
def small(tmp_path):
    return convolution(tmp_path / "small.onnx")


@pytest.mark.nightly
def test_a_model_is_tuned_once_and_its_table_written(small, tmp_path, capsys):
    out = tmp_path / "table.txt"
    arguments = ["--models", str(small), *ARGUMENTS, "--folder", str(tmp_path / "work")]
    assert end_to_end.main([*arguments, "--out", str(out)]) == 0
    told = re.search(r"(\d) operators, (\d) of them tuned now", capsys.readouterr().out)
    assert told and told[1] == told[2] >= "4"  # data laid out anew, on some CPUs, is one more
    table = out.read_text()
    assert "geomean ort/ours, imported: " in table
    row = next(line for line in table.splitlines() if line.startswith("small"))
    assert float(row.split()[-1]) < 1e-5  # the error
    library = tmp_path / "work" / "small.imported.roller.so"
    built = library.stat().st_mtime_ns
    assert end_to_end.main(arguments) == 0
    assert "0 of them tuned now" in capsys.readouterr().out
    assert library.stat().st_mtime_ns == built


def test_a_wrong_output_is_an_error(small, tmp_path):
    model = onnx_model(str(small), tmp_path)
    variant = end_to_end.Variant("wrong", lambda: [np.ones((1, 10), np.float32)])
    with pytest.raises(WrongAnswer, match="wrong differs from onnxruntime by 1"):
        end_to_end.compare(model, [variant], [np.full((1, 10), 0.5, np.float32)])


def test_only_what_onnxruntime_runs_too(tmp_path, capsys):
    assert end_to_end.main(["--models", "testing:mlp", "--folder", str(tmp_path)]) != 0
    assert "testing:mlp" in capsys.readouterr().err
