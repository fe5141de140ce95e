"""The figure of recurrent networks: what each environment builds computes what onnxruntime does."""

import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")

from roller_bench.figures import main, recurrences  # noqa: E402
from roller_bench.figures.recurrences import KNOWN, Shape  # noqa: E402
from roller_bench.running import Runnable, relative_error  # noqa: E402


def test_what_is_built_computes_the_same(tmp_path, monkeypatch, capsys):
    shape = Shape("GRU", 2, 2, 16, 5, ways=2)
    monkeypatch.setattr(recurrences, "SHAPES", (shape,))
    assert main(["recurrences", "--build", "--folder", str(tmp_path)]) == 0
    found = {path.name.removesuffix(KNOWN): Runnable.read(path) for path in (tmp_path / shape.folder).glob(f"*{KNOWN}")}
    assert "onnxruntime" in found and len(found) == 2
    one, other = (runnable.open().outputs() for runnable in found.values())
    assert relative_error(one, other) < 1e-5
    assert main(["recurrences", "--folder", str(tmp_path), "--seconds", "0"]) == 1  # nothing is timed yet
    assert "cores" in capsys.readouterr().out
