"""Small ONNX models for tests."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def convolution(path, shape=(1, 3, 16, 16), operator="Relu"):
    """Convolution, an activation, a matrix product: four tasks in half a second."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((8, 3, 3, 3), np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal((8 * 16 * 16, 10), np.float32), "f"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node(operator, ["c"], ["r"], name="act1"),
        helper.make_node("Flatten", ["r"], ["l"]),
        helper.make_node("MatMul", ["l", "f"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path


def normalised(path):
    """Two convolutions, each with a batch normalisation after it."""
    rng = np.random.default_rng(1)

    def weight(name, *shape):
        return numpy_helper.from_array(rng.uniform(0.5, 1.5, shape).astype("float32"), name)

    nodes, weights, last, channels = [], [], "x", 3
    for n in (1, 2):
        names = [f"{kind}{n}" for kind in ("scale", "shift", "mean", "variance")]
        weights += [weight(f"w{n}", 8, channels, 3, 3), *(weight(name, 8) for name in names)]
        nodes += [
            helper.make_node("Conv", [last, f"w{n}"], [f"c{n}"], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", [f"c{n}", *names], [f"b{n}"]),
            helper.make_node("Relu", [f"b{n}"], [f"r{n}"]),
        ]
        last, channels = f"r{n}", 8
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 16, 16))
    y = helper.make_tensor_value_info(last, TensorProto.FLOAT, (1, 8, 16, 16))
    graph = helper.make_graph(nodes, "normalised", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path


def residual(path):
    """A convolution added to what it reads, by ONNX's ``Sum``."""
    rng = np.random.default_rng(2)
    weight = numpy_helper.from_array(rng.standard_normal((3, 3, 3, 3)).astype("float32"), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Sum", ["c", "x"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 3, 16, 16)) for name in "xy")
    graph = helper.make_graph(nodes, "residual", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path


def three_products(path):
    """Three products of one input, added up."""
    rng = np.random.default_rng(3)
    weights = [rng.standard_normal((32, 8)).astype("float32") for _ in range(3)]
    graph = helper.make_graph(
        [*(helper.make_node("MatMul", ["x", f"w{n}"], [f"p{n}"]) for n in range(3)),
         helper.make_node("Add", ["p0", "p1"], ["s"]), helper.make_node("Add", ["s", "p2"], ["y"])], "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path
