"""Input shapes as users write them."""

import pytest

from roller_tvm.errors import BadInput, UsageError
from roller_tvm.models import existing, parse_shapes
from roller_tvm.models.shapes import example


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("x:[1,3,320,320]", {"x": (1, 3, 320, 320)}),
        ("x:1,3,320,320", {"x": (1, 3, 320, 320)}),
        ("sr:[]", {"sr": ()}),
        ("sr: [ ] x:[1,2] n:[]", {"sr": (), "x": (1, 2), "n": ()}),
        ("gpu_0/data_0:[1, 3] other.name:0:[2,4]", {"gpu_0/data_0": (1, 3), "other.name:0": (2, 4)}),
    ],
)
def test_shapes(text, shapes):
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize("text", ["", "x", "x:", "x:[", "x:[,]", "x:[1,-1]", "x:[1,a]", "x:[1,2] y", "x:[1,0]"])
def test_shapes_that_are_none(text):
    with pytest.raises(UsageError):
        parse_shapes(text)


@pytest.mark.parametrize(
    ("shape", "tried"),
    [("[N, 3, h, w]", "[1,3,224,224]"), ("[2, ?]", "[2,3]"), ("[]", "[]"), ("of unknown rank", "[1,3,224,224]")],
)
def test_example_keeps_what_is_known(shape, tried):
    assert example(shape) == tried


def test_a_folder_is_no_model(tmp_path):
    with pytest.raises(BadInput, match="is a folder\n.*the path of an ONNX model"):
        existing(tmp_path, "an ONNX model")
    assert existing(__file__, "a test").name == "test_shapes.py"
