"""ONNX's own types of a model's values, and nodes rewritten on them; no TVM."""

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

from roller_tvm.models.onnx_file import Onnx  # noqa: E402
from roller_tvm.models.rewriting import rewrite  # noqa: E402
from roller_tvm.models.tvm_017 import TVM_017  # noqa: E402
from roller_tvm.models.types import TensorType, inferred_types, weight_bytes  # noqa: E402


def model(nodes, inputs, outputs=("y",), weights=()):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    graph = helper.make_graph(nodes, "g", values, [onnx.ValueInfoProto(name=name) for name in outputs], list(weights))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    made.ir_version = 8
    return made


class TestInferred:
    def test_weights_of_any_size_are_not_read(self):
        """A weight of 16 GB whose data is not there takes no memory and no time."""
        weight = TensorProto(name="w", dims=[1 << 16, 1 << 16], data_type=TensorProto.FLOAT)
        large = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 1 << 16]}, weights=[weight])
        assert inferred_types(large, {})["y"] == TensorType((2, 1 << 16), "float32")
        assert weight_bytes(large) == 1 << 34

    def test_given_shapes_replace_those_of_the_file(self):
        relu = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 3]})
        relu.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3]))
        assert inferred_types(relu, {"x": (4, 3)})["y"].shape == (4, 3)
        assert inferred_types(relu, {"x": ("n", 3)})["y"].shape == (None, 3)
        assert relu.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 1

    def test_shapes_computed_in_the_graph(self):
        nodes = [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Constant", [], ["two"], value=onnx.numpy_helper.from_array(np.array([2], "int64"))),
            helper.make_node("Concat", ["s", "two"], ["t"], axis=0),
            helper.make_node("Expand", ["z", "t"], ["y"]),
        ]
        assert inferred_types(model(nodes, {"x": [3, 4], "z": [1]}), {})["y"].shape == (3, 4, 2)

    def test_nothing_is_known_of_an_unknown_operator(self):
        nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Frobnicate", ["r"], ["y"], domain="my.ops")]
        made = model(nodes, {"x": [2]})
        made.opset_import.append(helper.make_opsetid("my.ops", 1))
        known = inferred_types(made, {})
        assert known["r"] == TensorType((2,), "float32") and "y" not in known

    @pytest.mark.parametrize(("opset", "known"), [(12, False), (22, True)])
    def test_pools_that_round_up_are_known_since_opset_22(self, opset, known):
        """ONNX counted a last window in the padding before; onnxruntime and TVM do not."""
        pool = helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[4, 4], pads=[1] * 4, ceil_mode=1)
        made = model([pool, helper.make_node("Relu", ["p"], ["y"])], {"x": [1, 2, 6, 8]})
        made.opset_import[0].version = opset
        found = inferred_types(made, {})
        assert [found[name].shape for name in "py" if name in found] == ([(1, 2, 2, 3)] * 2 if known else [])

    @pytest.mark.parametrize(
        ("one", "other", "differ"),
        [
            (TensorType((1, None), "float32"), TensorType((1, 5), "float32"), False),
            (TensorType(None, "float32"), TensorType((1, 5), ""), False),
            (TensorType((1, 4), "float32"), TensorType((1, 5), "float32"), True),
            (TensorType((), "float32"), TensorType((1,), "float32"), True),
            (TensorType((1,), "int32"), TensorType((1,), "int64"), True),
        ],
    )
    def test_types_contradict_each_other_only_in_what_both_know(self, one, other, differ):
        assert one.contradicts(other) is differ and other.contradicts(one) is differ


def test_nodes_of_a_branch_are_rewritten_with_constants_around_it():
    bound = onnx.numpy_helper.from_array(np.float32(0), "low")
    branch = helper.make_graph(
        [helper.make_node("Clip", ["x", "low"], ["b"])], "branch", [], [onnx.ValueInfoProto(name="b")]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    made = model([node], {"x": [2], "c": []}, weights=[bound])
    rewrite(Onnx(made, Path("m.onnx"), "TVM 0.17", {}, {}), TVM_017)
    assert [a.g.node[0].op_type for a in made.graph.node[0].attribute] == ["Max", "Max"]
