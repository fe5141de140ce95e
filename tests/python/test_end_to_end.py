"""A model tuned, built as users build it, compared with onnxruntime and timed beside it."""

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.tvm

from python import end_to_end  # noqa: E402
from roller_tvm.errors import WrongAnswer  # noqa: E402

from ..relay.onnx_models import convolution  # noqa: E402

ARGUMENTS = ["--models", "small", "--layouts", "imported", "--trials", "2", "--rounds", "1", "--seconds", "0.1"]


@pytest.fixture
def small(monkeypatch):
    def prepared(folder):
        folder.mkdir(parents=True, exist_ok=True)
        image = np.random.default_rng(0).standard_normal((1, 3, 16, 16), np.float32)
        return end_to_end.Prepared("small", convolution(folder / "small.onnx"), {"x": image})

    monkeypatch.setitem(end_to_end.MODELS, "small", prepared)


@pytest.mark.nightly
def test_a_model_is_tuned_once_and_its_table_written(small, tmp_path, capsys):
    out = tmp_path / "table.txt"
    arguments = [*ARGUMENTS, "--folder", str(tmp_path / "work")]
    assert end_to_end.main([*arguments, "--out", str(out)]) == 0
    assert "4 operators, 4 of them tuned now" in capsys.readouterr().out
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
    model = end_to_end.MODELS["small"](tmp_path)
    variant = end_to_end.Variant("wrong", lambda: [np.ones((1, 10), np.float32)])
    with pytest.raises(WrongAnswer, match="wrong differs from onnxruntime by 1"):
        end_to_end.compare(model, [variant], [np.full((1, 10), 0.5, np.float32)])
