"""The figure of image pipelines: kernels of the line here beside numpy, and what is said of a missing Halide."""

import json

import numpy as np
import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")

from roller_bench.figures import main, pipelines  # noqa: E402
from roller_bench.image_pipelines import PIPELINES, Numpy  # noqa: E402
from roller_tvm.stats import geomean  # noqa: E402


def test_what_is_built_computes_what_numpy_does(tmp_path):
    pipeline = PIPELINES["unsharp"]
    picture = pipeline.picture(20, 50)
    expected = pipeline.build(Numpy(), picture, picture.shape)
    seconds, plan = pipelines.build("unsharp", picture.shape, tmp_path, 2)
    assert seconds > 0 and plan
    (tmp_path / "result.json").write_text(json.dumps(expected.shape))
    for way in (pipelines.OURS, pipelines.PLAIN):
        (got,) = pipelines.open_kernel(tmp_path / f"{way}.so", {"picture": picture}, 2).outputs()
        np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_without_halide_it_is_left_out_and_told(tmp_path, capsys):
    assert main(["pipelines", "--folder", str(tmp_path), "--seconds", "0"]) == 1
    assert "Halide is left out: pip install halide" in capsys.readouterr().err


@pytest.mark.parametrize("words, told", [
    (["--halide", "/bin/false"], "cannot import halide; pip install halide there"),
    (["--size", "12"], "a size is ROWSxCOLUMNS"), (["--size", "0x5"], "at least 1x1"), (["--only", "blurr"], "'blurr'"),
    (["--halide", "/no/such/python"], "cannot import halide"),
])  # fmt: skip
def test_wrong_words_are_named(words, told, tmp_path, capsys):
    assert main(["pipelines", "--folder", str(tmp_path), *words]) == 2
    assert told.split(";")[0] in capsys.readouterr().err


def test_the_faster_of_halides_schedules_counts():
    rows = [{"pipeline": "blur", "seconds": {"ours": 1e-3, "TVM": 8e-3, "Adams2019": 3e-3, "Mullapudi2016": 2e-3},
             "predicted": 1e-3, "failed": {}},
            {"pipeline": "harris", "seconds": {"ours": 1e-3, "TVM": 8e-3, "Adams2019": 1e-3}, "predicted": 1e-3,
             "failed": {"Mullapudi2016": "ended by signal 11"}}]  # fmt: skip
    text = pipelines.table(rows)
    assert f"Halide, the faster one: 2 pipelines, {geomean([2, 1]):.2f} of ours" in text
    assert "Mullapudi2016: ended by signal 11" in text
