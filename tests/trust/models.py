"""Small ONNX models for what must never be wrong, and onnxruntime's answers."""

import onnx
from onnx import TensorProto, helper, numpy_helper

KINDS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64,
         "bool": TensorProto.BOOL}  # fmt: skip


def model(nodes, inputs, outputs, weights=None, opset=17):
    """A model of (operator, inputs, outputs, attributes); inputs and outputs are name -> (dtype, shape)."""
    made = [helper.make_node(kind, ins, outs, **attrs) for kind, ins, outs, attrs in nodes]
    values = [[helper.make_tensor_value_info(name, KINDS[dtype], shape) for name, (dtype, shape) in given.items()]
              for given in (inputs, outputs)]  # fmt: skip
    constants = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(made, "g", *values, constants)
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    result.ir_version = 8
    onnx.checker.check_model(result)
    return result


def answers(of, inputs):
    import onnxruntime

    return onnxruntime.InferenceSession(of.SerializeToString()).run(None, inputs)
