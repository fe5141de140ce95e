"""Predicted beside measured times of a model's operators."""

import json

import numpy as np
import pytest

pytestmark = pytest.mark.relax
pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")

from onnx import helper, numpy_helper  # noqa: E402

from roller_bench.figures import main  # noqa: E402
from roller_bench.running import keep_inputs  # noqa: E402


def test_operators_of_a_model(tmp_path, capsys):
    weights, x = np.ones((64, 96), "float32"), np.ones((128, 64), "float32")
    info = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", (128, 64)), ("y", (128, 96)))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    graph = helper.make_graph(nodes, "net", info[:1], info[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx"
    )
    keep_inputs({"x": x}, tmp_path / "net.npz")
    asked = ["predictions", "--folder", str(tmp_path), "--threads", "1", "--plans", "2"]
    assert main(asked) == 0
    (row,) = map(json.loads, (tmp_path / "predictions.jsonl").read_text().splitlines())
    assert len(row["predicted"]) == len(row["seconds"]) == 2 and min(row["seconds"]) > 0
    assert [len(half) for half in row["halves"]] == [2, 2] and 1 <= len(row["spread"]["seconds"]) <= 2
    assert row["spread"]["predicted"][0] == row["predicted"][0]
    said = capsys.readouterr().out
    assert "predicted over measured" in said and "best plans: rank correlation none" in said
    assert main(asked) == 0  # nothing is left to time
    assert len((tmp_path / "predictions.jsonl").read_text().splitlines()) == 1
    assert main([*asked, "--written"]) == 0
    row = json.loads((tmp_path / "predictions.jsonl").read_text().splitlines()[1])
    assert "written by its cores" in row["cpu"] and len(row["seconds"]) == 2 and min(row["seconds"]) > 0
