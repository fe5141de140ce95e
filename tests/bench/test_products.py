"""Single operators, built as their user builds them, beside onnxruntime."""

import json

import pytest

pytestmark = pytest.mark.relax
pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")

from roller_bench.figures import LEFT, main  # noqa: E402
from roller_bench.running import relative_error  # noqa: E402
from roller_bench.singles import INPUT, MEMORY_BOUND, open_onnxruntime  # noqa: E402

from ..sampling import sampled  # noqa: E402


@pytest.mark.nightly
def test_products_are_built_timed_and_not_timed_again(tmp_path, capsys):
    asked = ["products", "--folder", str(tmp_path), "--peers", "onnxruntime", "--shapes", "4x32x48,7x16x16"]
    assert main([*asked, "--build"]) == 0
    assert main([*asked, "--seconds", "0"]) == LEFT
    assert main(asked) == main(asked) == 0
    rows = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert [row["name"] for row in rows] == ["4x32x48", "7x16x16"]
    assert all(set(row["seconds"]) == {"ours", "onnxruntime"} and row["predicted"] > 0 for row in rows)
    assert "against onnxruntime  2 operators" in capsys.readouterr().out


def test_a_shape_of_two_extents_is_told(tmp_path, capsys):
    assert main(["products", "--folder", str(tmp_path), "--shapes", "4x32"]) == 2
    assert "a shape is ROWSxKxN (got '4x32')" in capsys.readouterr().err


@pytest.mark.parametrize("single", sampled(MEMORY_BOUND, 3), ids=lambda s: s.name)
def test_onnx_means_what_numpy_computes(single, tmp_path):
    """The operators' models, answers and shapes belong to one another."""
    onnx = pytest.importorskip("onnx")
    onnx.save(single.model(), str(tmp_path / "model.onnx"))
    found = open_onnxruntime(tmp_path / "model.onnx", {INPUT: single.values()[0]}, 1).outputs()
    assert found[0].shape == single.result
    assert relative_error(found, [single.answer()]) < 1e-5


def test_memory_bound_operators_are_chosen_by_the_starts_of_their_names(tmp_path, capsys):
    asked = ["memory-bound", "--folder", str(tmp_path), "--peers", "onnxruntime", "--kinds", "global mean 8x,none"]
    assert main(asked) == 0
    assert "of the roof          1 operators" in capsys.readouterr().out
    assert main([*asked[:-1], "none"]) == 2
    assert "no operator starts with none" in capsys.readouterr().err
