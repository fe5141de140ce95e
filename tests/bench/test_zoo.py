"""The models that demo and benchmarks run: a wrong kernel must show in their outputs."""

import importlib.util

import numpy as np
import pytest

from roller_bench.zoo import PARTS, TEXT, find_model, known_models, light, normalised, ocr_model, onnx_model
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
    with pytest.raises(BadInput, match="no model 'resnet5'") as caught:
        find_model("resnet5", tmp_path)
    assert all(name in str(caught.value) for name in ("bert_base", "direction", "squeezenet", "testing:resnet-18"))
    with pytest.raises(BadInput, match="no network 'resnet-5'") as caught:
        find_model("testing:resnet-5", tmp_path)
    assert "resnet-18" in str(caught.value)


def test_every_name_that_is_told_is_known(tmp_path):
    names = known_models()
    assert len(names["light networks of the onnx package"]) >= 9
    assert {find_model(name, tmp_path).path.name for name in names["relay.testing (Relay line)"]} >= {"testing:mlp"}




def text_lines(probability):
    """The number of text lines in a map of probabilities: bands of rows above a threshold."""
    rows = (probability.reshape(probability.shape[-2:]) > 0.3).any(axis=1)
    return int(np.count_nonzero(np.diff(rows.astype(np.int8), prepend=0) == 1))


OCR = pytest.mark.skipif(importlib.util.find_spec("rapidocr_onnxruntime") is None, reason="rapidocr-onnxruntime")


@OCR
def test_the_text_of_the_picture_is_found(tmp_path):
    prepared = ocr_model("detection", tmp_path)
    session = onnxruntime.InferenceSession(str(prepared.path))
    assert text_lines(session.run(None, prepared.inputs)[0]) == 5
    assert (tmp_path / "detection.png").is_file()
    from PIL import Image

    white = {"x": normalised(Image.new("RGB", (320, 320), "white"))}
    assert text_lines(session.run(None, white)[0]) == 0


@OCR
def test_the_line_is_read(tmp_path):
    prepared = ocr_model("recognition", tmp_path)
    session = onnxruntime.InferenceSession(str(prepared.path))
    (scores,) = session.run(None, prepared.inputs)
    letters = [None, *session.get_modelmeta().custom_metadata_map["character"].splitlines(), " "]
    best = scores[0].argmax(axis=1)
    kept = [n for before, n in zip([0, *best], best, strict=False) if n and n != before]  # CTC: 0 stands between
    assert "".join(str(letters[n]) for n in kept) == TEXT[2].rstrip("!")  # too thin a letter


@OCR
def test_which_way_up_a_line_is(tmp_path):
    from PIL import Image

    prepared = ocr_model("direction", tmp_path)
    session = onnxruntime.InferenceSession(str(prepared.path))
    assert session.run(None, prepared.inputs)[0][0, 0] > 0.9
    picture = Image.open(tmp_path / "direction.png").rotate(180)
    assert session.run(None, {"x": normalised(picture, PARTS["direction"])})[0][0, 1] > 0.9


def test_only_what_onnxruntime_runs_too(tmp_path):
    with pytest.raises(BadInput, match="testing:mlp"):
        onnx_model("testing:mlp", tmp_path)
