"""The models that demo and benchmarks run: a wrong kernel must show in their outputs."""

import importlib.util

import numpy as np
import pytest

from roller_tvm.compare.whole.zoo import light, normalised, text_detection, text_lines
from roller_tvm.errors import BadInput

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def outputs_of_every_layer(prepared):
    model = onnx.load(str(prepared.path))
    for node in model.graph.node:
        if node.op_type in ("Conv", "Relu", "Sum", "Add", "Gemm"):
            model.graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], 1, None))
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, prepared.inputs)


@pytest.mark.parametrize("network", ["resnet50", "squeezenet"])
@pytest.mark.nightly
def test_activations_neither_die_nor_explode(tmp_path, network):
    prepared = light(network, tmp_path)
    first, *layers = outputs_of_every_layer(prepared)
    assert all(0.05 < float(a.std()) < 50 for a in layers)
    assert np.unique(first).size > first.size / 3  # as shipped, all are 0.001
    again = light(network, tmp_path / "again")
    assert again.path.read_bytes() == prepared.path.read_bytes()
    assert all(np.array_equal(a, b) for a, b in zip(again.inputs.values(), prepared.inputs.values(), strict=True))


def test_unknown_network(tmp_path):
    with pytest.raises(BadInput, match="no network"):
        light("resnet5", tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("rapidocr_onnxruntime") is None, reason="rapidocr-onnxruntime")
def test_the_text_of_the_picture_is_found(tmp_path):
    prepared = text_detection(tmp_path)
    session = onnxruntime.InferenceSession(str(prepared.path))
    assert text_lines(session.run(None, prepared.inputs)[0]) == 5
    assert (tmp_path / "text.png").is_file()
    from PIL import Image

    white = {"x": normalised(Image.new("RGB", (320, 320), "white"))}
    assert text_lines(session.run(None, white)[0]) == 0
