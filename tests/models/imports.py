"""ONNX models of a few nodes, imported and run on the line of TVM at hand."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from roller_tvm.models.line import model_line
from roller_tvm.tvm_env import Line, line

LINE = line()


def load_model(path, shapes=None, **options):
    """Import a model file with the line's importer."""
    return model_line(Line(LINE)).importer.load(path, shapes, **options)


def value(name, array):
    """Return the type of an input like this array."""
    array = np.asarray(array)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def write(path, nodes, inputs, outputs=("y",), weights=None, opset=18, domains=()):
    """Write a model whose outputs have no declared type.

    Parameters
    ----------
    path : Path
    nodes : list of onnx.NodeProto
    inputs : dict
        Name -> array, for dtype and shape.
    outputs : tuple of str
    weights : dict, optional
        Name -> array.
    """
    graph = helper.make_graph(
        nodes,
        "small",
        [value(name, array) for name, array in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in domains)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    for output in model.graph.output:  # onnxruntime wants a type; its shape stays open
        known = {o.name: o for o in onnx.shape_inference.infer_shapes(model).graph.output}[output.name]
        elem = known.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
        output.type.tensor_type.elem_type = elem
    onnx.save(model, str(path))
    return path


def one_node(path, operator, inputs, constants=(), outputs=("y",), opset=18, **attributes):
    """Write a model of the node 'node': inputs are arrays; constants are arrays, or None for an absent one."""
    given = {f"x{n}": np.asarray(array) for n, array in enumerate(inputs)}
    weights = {f"c{n}": array for n, array in enumerate(constants) if array is not None}
    names = [*given, *(f"c{n}" if f"c{n}" in weights else "" for n in range(len(constants)))]
    node = helper.make_node(operator, names, outputs, name="node", **attributes)
    return write(path, [node], given, outputs, weights, opset), given


def computed(model, inputs):
    """Return the outputs of an imported model, built with TVM's own schedules."""
    import tvm

    if LINE == "relay":
        from tvm import relay
        from tvm.contrib import graph_executor

        with tvm.transform.PassContext(opt_level=1):
            built = relay.build(model.mod, "llvm", params=model.params)
        run = graph_executor.GraphModule(built["default"](tvm.cpu()))
        run.set_input(**inputs)
        run.run()
        return [run.get_output(n).numpy() for n in range(run.get_num_outputs())]
    from tvm import relax

    machine = relax.VirtualMachine(tvm.compile(model.mod, tvm.target.Target("llvm")), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(inputs[name]) for name in model.inputs))
    return [r.numpy() for r in ([result] if hasattr(result, "numpy") else result)]


def expected(path, inputs):
    """Return the outputs that onnxruntime computes."""
    import onnxruntime

    return onnxruntime.InferenceSession(str(path)).run(None, inputs)
