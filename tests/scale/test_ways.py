"""Every axis along which an operator may be shared: nodes that compute parts get what one node gets."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from roller_tvm.errors import RollerError
from roller_tvm.scale.onnx_reader import read_graph
from tests.scale.kit import expected, forced, run
from tests.scale.models import Weights, inputs_of, model, node

A, B = [4, 6, 8], [8, 5]
#: Name -> (node, its other inputs as constants, input shape).
CASES = {
    "relu": (node("Relu", "x", "y"), {}, A),
    "add": (node("Add", "x w", "y"), {"w": (6, 1)}, A),
    "where": (node("Where", "c x w", "y"), {"c": np.arange(8) % 3 == 0, "w": (4, 1, 8)}, A),
    "clip": (node("Clip", "x lo", "y"), {"lo": np.float32(0.2)}, A),
    "matmul": (node("MatMul", "x w", "y"), {"w": (8, 5)}, A),
    "batched": (node("MatMul", "x w", "y"), {"w": (4, 8, 5)}, A),
    "broadcast": (node("MatMul", "w x", "y"), {"w": (3, 1, 2, 6)}, A),
    "gemm": (node("Gemm", "x w b", "y", transB=1), {"w": (5, 8), "b": (5,)}, [6, 8]),
    "gemm_turned": (node("Gemm", "x w", "y", transA=1, alpha=0.5), {"w": (8, 5)}, [8, 6]),
    "softmax": (node("Softmax", "x", "y", axis=1), {}, A),
    "norm": (node("LayerNormalization", "x g b", "y", axis=-1), {"g": (8,), "b": (8,)}, A),
    "transpose": (node("Transpose", "x", "y", perm=[2, 0, 1]), {}, A),
    "heads": (node("Reshape", "x s", "y"), {"s": np.array([4, 6, 4, 2])}, A),
    "join": (node("Reshape", "x s", "y"), {"s": np.array([4, 48])}, A),
    "flatten": (node("Flatten", "x", "y", axis=2), {}, A),
    "squeeze": (node("Squeeze", "x a", "y"), {"a": np.array([1])}, [4, 1, 8]),
    "unsqueeze": (node("Unsqueeze", "x a", "y"), {"a": np.array([1])}, A),
    "expand": (node("Expand", "x s", "y"), {"s": np.array([4, 6, 8])}, [4, 1, 8]),
    "sum": (node("ReduceSum", "x a", "y", keepdims=0), {"a": np.array([1])}, A),
    "mean": (node("ReduceMean", "x", "y", axes=[-1]), {}, A),
    "argmax": (node("ArgMax", "x", "y", axis=1), {}, A),
    "concat": (node("Concat", "x w", "y", axis=-1), {"w": (4, 6, 3)}, A),
    "slice": (node("Slice", "x b e a", "y"), {"b": np.array([1]), "e": np.array([5]), "a": np.array([2])}, A),
    "gather": (node("Gather", "x i", "y", axis=1), {"i": np.array([[0, 3], [2, 5], [1, 1]])}, A),
    "cumsum": (node("CumSum", "x a", "y"), {"a": np.array(2)}, A),
    "conv": (node("Conv", "x w b", "y", pads=[1, 1, 1, 1]), {"w": (6, 4, 3, 3), "b": (6,)}, [2, 4, 8, 9]),
    "conv_sum": (node("Conv", "x w", "y", strides=[2, 2], pads=[1, 0, 0, 1]), {"w": (6, 4, 3, 3)}, [2, 4, 11, 9]),
    "conv_apart": (node("Conv", "x w", "y", dilations=[2, 2]), {"w": (6, 4, 3, 3)}, [2, 4, 11, 9]),
    "depthwise": (node("Conv", "x w", "y", group=4, pads=[1, 1, 1, 1]), {"w": (4, 1, 3, 3)}, [2, 4, 8, 9]),
    "groups": (node("Conv", "x w", "y", group=2), {"w": (6, 2, 3, 3)}, [2, 4, 8, 9]),
    "max_pool": (node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2]), {}, [2, 4, 9, 9]),
    "padded_pool": (node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), {}, [2, 4, 9, 9]),
    "global_pool": (node("GlobalAveragePool", "x", "y"), {}, [2, 4, 6, 6]),
    "batch_norm": (node("BatchNormalization", "x s b m v", "y"),
                   {"s": (4,), "b": (4,), "m": (4,), "v": np.full(4, 2.0, np.float32)}, [2, 4, 6, 6]),
}  # fmt: skip
#: Those that are known for more than that nobody shares them: the number of axes.
AXES = {"matmul": 4, "conv": 4, "conv_sum": 5, "max_pool": 4, "padded_pool": 2, "softmax": 2, "depthwise": 4,
        "groups": 3, "heads": 3, "argmax": 2, "sum": 3}  # fmt: skip


def made(name):
    """The model of a case; operators before and after it tie its tensors to nothing."""
    one, constants, shape = CASES[name]
    weights = Weights(4)
    for key, value in constants.items():
        if isinstance(value, tuple):
            weights.new(key, *value)
        else:
            weights[key] = value
    kind = TensorProto.INT64 if name == "argmax" else TensorProto.FLOAT
    found = model([one], {"x": shape}, {"y": ([None], kind)}, weights)
    del found.graph.output[0].type.tensor_type.shape.dim[:]
    found.graph.output[0].type.tensor_type.ClearField("shape")
    import onnx

    return onnx.shape_inference.infer_shapes(found)


@pytest.mark.parametrize("name", CASES)
def test_parts_are_those_of_the_whole(name):
    one = made(name)
    op = read_graph(one, name).graph.ops[0]
    ways = [way for way in op.ways if way.axis]
    assert ways and len(ways) == AXES.get(name, len(ways))
    inputs = inputs_of(one)
    outputs = read_graph(one, name).graph.outputs
    wanted = expected(one, inputs)[0]
    for way in ways:
        for nodes in (2, 3):
            if way.fits(nodes):
                source, program = forced(one, nodes, {op.outputs[0]: way.axis})
                found = run(source, program, inputs)[1][0]
                for output in outputs:
                    np.testing.assert_allclose(found[output], wanted[output], rtol=1e-4, atol=1e-5, err_msg=str(way))


@pytest.mark.parametrize(("change", "told"), [
    (lambda m: m.graph.input[0].type.tensor_type.shape.dim[0].Clear(), "is open"),
    (lambda m: m.graph.node[0].__setattr__("domain", "com.other"), "domain"),
    (lambda m: m.opset_import[0].__setattr__("version", 9), "opset 9"),
])  # fmt: skip
def test_what_cannot_be_shared_is_refused(change, told):
    one = made("relu")
    change(one)
    with pytest.raises(RollerError, match=told):
        read_graph(one, "model")


def test_states_are_checked():
    one = made("relu")
    with pytest.raises(RollerError, match="no output 'z'"):
        read_graph(one, "model", states={"x": "z"})
    other = made("transpose")
    with pytest.raises(RollerError, match="alike"):
        read_graph(other, "model", states={"x": "y"})
    assert helper.printable_graph(one.graph)
