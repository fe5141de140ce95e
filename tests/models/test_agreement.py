"""Imports held against ONNX: nodes that an importer misreads come out right, or are refused by name."""

import numpy as np
import pytest
from onnx import helper

from roller_tvm.errors import BadInput, UnsupportedOperator

from .imports import LINE, computed, expected, load_model, one_node, write

pytestmark = pytest.mark.te
RNG = np.random.default_rng(5)
X = (RNG.random((2, 3, 4, 5)) - 0.5).astype("float32")
POSITIVE = np.abs(X) + np.float32(0.5)
PICTURE = (RNG.random((1, 2, 6, 8)) - 0.5).astype("float32")


def ints(*values):
    return np.array(values, "int64")


def number(value):
    return np.array(value, "float32")


REDUCTIONS = [
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
]  # fmt: skip


class TestComeOutRight:
    """TVM 0.17 gives a wrong shape or wrong values for each of these, and no error."""

    def check(self, path, inputs):
        got, wanted = computed(load_model(path), inputs), expected(path, inputs)
        for ours, theirs in zip(got, wanted, strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

    @pytest.mark.one_line("relay")
    @pytest.mark.parametrize("operator", REDUCTIONS)
    def test_axes_as_an_input(self, tmp_path, operator):
        self.check(*one_node(tmp_path / "m.onnx", operator, [POSITIVE], [ints(1, -1)], keepdims=0))

    def test_axes_of_a_constant_node(self, tmp_path):
        nodes = [
            helper.make_node("Constant", [], ["axes"], value_ints=[0, 2]),
            helper.make_node("ReduceMax", ["x", "axes"], ["y"], keepdims=1),
        ]
        self.check(write(tmp_path / "m.onnx", nodes, {"x": X}), {"x": X})

    @pytest.mark.one_line("relay")
    @pytest.mark.parametrize("operator", ["ReduceL2", "ReduceSum", "ReduceSumSquare", "ReduceMax"])
    @pytest.mark.parametrize("axes", [[], [ints()]])
    def test_no_axes(self, tmp_path, operator, axes):
        self.check(*one_node(tmp_path / "m.onnx", operator, [POSITIVE], axes))
        self.check(*one_node(tmp_path / "n.onnx", operator, [POSITIVE], axes, noop_with_empty_axes=1))

    def test_a_scalar_reduced_is_a_scalar(self, tmp_path):
        self.check(*one_node(tmp_path / "m.onnx", "ReduceMax", [number(-2.5)], keepdims=0))

    @pytest.mark.parametrize("bounds", [[-0.25], [None, 0.25], [-0.25, 0.25], [0.25, -0.25]])
    def test_clip(self, tmp_path, bounds):
        constants = [None if bound is None else number(bound) for bound in bounds]
        self.check(*one_node(tmp_path / "m.onnx", "Clip", [X], constants, opset=13))

    def test_clip_with_one_bound_computed(self, tmp_path):
        self.check(*one_node(tmp_path / "m.onnx", "Clip", [X, number(-0.25)], [number(0.1)], opset=13))

    def test_dropout_with_its_ratio(self, tmp_path):
        self.check(*one_node(tmp_path / "m.onnx", "Dropout", [X], [number(0.4), np.array(False)], opset=13))

    def test_uneven_parts(self, tmp_path):
        self.check(*one_node(tmp_path / "m.onnx", "Split", [X], outputs=("y", "z"), axis=-1, num_outputs=2))

    def test_pads_of_some_axes(self, tmp_path):
        self.check(*one_node(tmp_path / "m.onnx", "Pad", [X], [ints(1, 2, 0, 1), number(0.5), ints(-1, 1)]))

    @pytest.mark.parametrize("axes", [(0, -1), (-1, -3), (4, 0)])
    def test_axes_of_unsqueeze_in_any_order(self, tmp_path, axes):
        self.check(*one_node(tmp_path / "m.onnx", "Unsqueeze", [X], [ints(*axes)], opset=13))

    def test_odd_norm_of_negative_numbers(self, tmp_path):
        self.check(*one_node(tmp_path / "m.onnx", "LpPool", [PICTURE], opset=11, kernel_shape=[2, 2], p=3))

    def test_odd_norm_of_everything(self, tmp_path):
        self.check(*one_node(tmp_path / "m.onnx", "GlobalLpPool", [PICTURE], opset=2, p=3))

    @pytest.mark.skipif(LINE != "relay", reason="the pipeline of the Relax line leaves them out")
    def test_running_sums_of_nothing_are_left_out(self, tmp_path):
        """TVM's loop writes one element, behind the memory of the output."""
        path, inputs = one_node(tmp_path / "m.onnx", "CumSum", [X[:0]], [np.array(0, "int64")], exclusive=1, opset=14)
        assert "cumsum" not in str(load_model(path).mod)
        self.check(path, inputs)

    def test_gelu_by_tanh(self, tmp_path):
        self.check(*one_node(tmp_path / "m.onnx", "Gelu", [X * 6], opset=20, approximate="tanh"))

    @pytest.mark.skipif(LINE == "relax", reason="the Relax line has no DFT")
    @pytest.mark.parametrize("axis", [[], [None, np.array(1, "int64")]])
    def test_axis_of_a_fourier_transform(self, tmp_path, axis):
        x = RNG.random((1, 6, 4, 1)).astype("float32")
        self.check(*one_node(tmp_path / "m.onnx", "DFT", [x], axis, opset=20))


REFUSED = {
    "antialias": (("Resize", [PICTURE], [None, number([1, 1, 0.5, 0.5])]), {"mode": "linear", "antialias": 1}, ""),
    "scale": (("Resize", [PICTURE], [None, number([1, 1, 1.3, 1])]), {"mode": "linear"}, ""),
    "axes of resize": (("Resize", [PICTURE], [None, number([2, 2])]), {"mode": "linear", "axes": [2, 3]}, ""),
    "aspect": (
        ("Resize", [PICTURE], [None, None, ints(1, 2, 9, 9)]),
        {"mode": "linear", "keep_aspect_ratio_policy": "not_larger"},
        "",
    ),
    **{
        f"rounding {mode}": (
            ("Resize", [PICTURE], [None, number([1, 1, 2, 2])]),
            {"mode": "nearest", "nearest_mode": mode},
            "relay",
        )
        for mode in ("ceil", "round_prefer_ceil")
    },
    "upsample": (("Upsample", [PICTURE], [number([1, 1, 1.3, 1])]), {"opset": 9}, ""),
    "scales of upsample": (("Upsample", [PICTURE], []), {"opset": 7, "scales": [1.0, 1.0, 2.0, 2.0]}, "relax"),
    "training": (("Dropout", [X], [number(0.4), np.array(True)]), {"opset": 13}, "relay"),
    "diagonal": (("EyeLike", [X[0, 0]], []), {"opset": 9, "k": 1}, "relay"),
    "roi max": (
        ("RoiAlign", [PICTURE, number([[0, 0, 4, 4]])], [ints(0)]),
        {"mode": "max", "coordinate_transformation_mode": "output_half_pixel"},
        "",
    ),
    "roi pixels": (("RoiAlign", [PICTURE, number([[0, 0, 4, 4]])], [ints(0)]), {}, "relay"),
    "computed axes": (("ReduceMax", [X, ints(1)], []), {}, "relay"),
    "infinity": (("IsInf", [X], []), {"detect_negative": 0}, "relax"),
}


class TestRefused:
    @pytest.mark.parametrize("name", REFUSED)
    def test_by_node_and_reason(self, tmp_path, name):
        arguments, attributes, line = REFUSED[name]
        if line not in ("", LINE):
            pytest.skip(f"the {LINE} line reads it right")
        path, _ = one_node(tmp_path / "m.onnx", *arguments, **attributes)
        with pytest.raises(UnsupportedOperator) as error:
            load_model(path)
        assert f"misreads {arguments[0]} 'node'" in error.value.what and error.value.remedy


#: Nodes whose wrong type only the comparison with ONNX finds: operator, constants, outputs, attributes.
MISREAD = {
    "relay": ("MaxPool", [], ("p",), {"kernel_shape": [2, 2], "strides": [4, 4], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    "relax": (
        "ConvTranspose",
        [np.ones((2, 3, 3, 3), "float32")],
        ("p",),
        {"strides": [2, 2], "output_shape": [12, 16]},
    ),
}


class TestTypes:
    def misread(self, path, last):
        """Write a model with a misread node between two others."""
        operator, constants, outputs, attributes = MISREAD[LINE]
        weights = {f"c{n}": constant for n, constant in enumerate(constants)}
        nodes = [
            helper.make_node("Relu", ["x"], ["r"], name="first"),
            helper.make_node(operator, ["r", *weights], outputs, name="second", **attributes),
            helper.make_node(last, ["p"], ["y"], name="third"),
        ]
        x = np.ones((1, 1, 3, 3), "float32") if LINE == "relay" else PICTURE
        return write(path, nodes, {"x": x}, weights=weights, opset=22)

    @pytest.mark.parametrize("last", ["Relu", "GlobalAveragePool"])
    def test_the_first_node_that_differs_is_named_even_if_the_output_agrees(self, tmp_path, last):
        with pytest.raises(UnsupportedOperator) as error:
            load_model(self.misread(tmp_path / "m.onnx", last))
        assert f"reads {MISREAD[LINE][0]} 'second' otherwise than ONNX: its output 'p' is float32 [" in error.value.what
        assert "and ONNX infers float32 [" in error.value.what and error.value.remedy

    def test_onnxruntime_finds_it_too(self, tmp_path, monkeypatch):
        from roller_tvm.models import importing

        monkeypatch.setattr(importing, "inferred_types", lambda *_: {})
        path = self.misread(tmp_path / "m.onnx", "Relu")
        with pytest.raises(UnsupportedOperator, match="output 'y' is float32 .* by onnxruntime"):
            load_model(path)
        assert load_model(path, verify=False).inputs

    @pytest.mark.skipif(LINE != "relax", reason="the Relay line's importer leaves such outputs out")
    def test_dtype_of_an_output(self, tmp_path):
        path, _ = one_node(tmp_path / "m.onnx", "Dropout", [X], outputs=("y", "mask"), opset=13)
        with pytest.raises(UnsupportedOperator, match="'mask' is float32 .* ONNX infers bool"):
            load_model(path)

    def test_a_model_that_onnxruntime_cannot_run_has_a_note(self, tmp_path):
        path, _ = one_node(tmp_path / "m.onnx", "Relu", [X], opset=999)
        (note,) = load_model(path).notes
        assert note.startswith("not compared with onnxruntime, which cannot run it")

    def test_large_tensors_have_a_note(self, tmp_path, monkeypatch):
        from roller_tvm.models import reference

        monkeypatch.setattr(reference, "MOST_ELEMENTS", 8)
        path, _ = one_node(tmp_path / "m.onnx", "Relu", [X])
        (note,) = load_model(path).notes
        assert note == "not compared with onnxruntime: a tensor has more than 8 elements"

    def test_a_negative_size_is_refused_by_its_node(self, tmp_path):
        window = np.ones((1, 2, 3, 3), "float32")
        path, _ = one_node(tmp_path / "m.onnx", "Conv", [PICTURE], [window], pads=[-20] * 4, kernel_shape=[3, 3])
        with pytest.raises(BadInput, match=r"^.*Conv .* has an output of negative size: float32 \[1, 1, -36, -34\]"):
            load_model(path)

    def test_large_weights_have_a_note(self, tmp_path, monkeypatch):
        from roller_tvm.models import reference

        monkeypatch.setattr(reference, "LARGEST", 8)
        path, _ = one_node(tmp_path / "m.onnx", "Add", [X], [np.ones((4, 5), "float32")])
        assert "above" in load_model(path).notes[0]
