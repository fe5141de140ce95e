"""Products by a constant, built as their user builds them, beside onnxruntime."""

import json

import pytest

pytestmark = pytest.mark.relax
pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")

from roller_bench.figures import LEFT, main  # noqa: E402


def test_products_are_built_timed_and_not_timed_again(tmp_path, capsys):
    asked = ["products", "--folder", str(tmp_path), "--peers", "onnxruntime", "--shapes", "4x32x48,7x16x16"]
    assert main([*asked, "--build"]) == 0
    assert main([*asked, "--seconds", "0"]) == LEFT
    assert main(asked) == main(asked) == 0
    rows = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert [row["shape"] for row in rows] == [[4, 32, 48], [7, 16, 16]]
    assert all(set(row["seconds"]) == {"ours", "onnxruntime"} and row["predicted"] > 0 for row in rows)
    assert "against onnxruntime  2 shapes" in capsys.readouterr().out


def test_a_shape_of_two_extents_is_told(tmp_path, capsys):
    assert main(["products", "--folder", str(tmp_path), "--shapes", "4x32"]) == 2
    assert "a shape is ROWSxKxN (got '4x32')" in capsys.readouterr().err
