"""The model.onnx of the pages: a convolution, a pooling and a dense layer, with seeded weights."""

import numpy as np


def save(path):
    """Write the model to `path`; its input is x, float32, 1x3x32x32."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    shapes = {"kernel": (16, 3, 3, 3), "bias": (16,), "dense": (16, 10)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype("float32"), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "kernel", "bias"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "dense"], ["y"], "dense_layer"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "small", [value("x", TensorProto.FLOAT, [1, 3, 32, 32])], [value("y", TensorProto.FLOAT, [1, 10])],
        weights,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
