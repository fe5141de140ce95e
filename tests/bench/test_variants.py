"""A model in several implementations: outputs compared with onnxruntime's."""


import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.te

from roller_bench.variants import Variant, compare, onnx_model  # noqa: E402
from roller_tvm.errors import BadInput, WrongAnswer  # noqa: E402

from ..relay.onnx_models import convolution  # noqa: E402


@pytest.fixture
def small(tmp_path):
    return convolution(tmp_path / "small.onnx")


def test_a_wrong_output_is_an_error(small, tmp_path):
    model = onnx_model(str(small), tmp_path)
    variant = Variant("wrong", lambda: [np.ones((1, 10), np.float32)])
    with pytest.raises(WrongAnswer, match="wrong differs from onnxruntime by 1"):
        compare(model, [variant], [np.full((1, 10), 0.5, np.float32)])


def test_only_what_onnxruntime_runs_too(tmp_path):
    with pytest.raises(BadInput, match="testing:mlp"):
        onnx_model("testing:mlp", tmp_path)
