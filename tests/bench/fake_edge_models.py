"""Whole models without TVM: what comes of one depends on the tuner."""

import time
from pathlib import Path

import numpy as np

from roller_bench.running import Running


def build(model, output, tuner, trials, target, work, search=True):
    if tuner == "metaschedule":
        raise RuntimeError("no such model was ever built")
    output.write_text(tuner)
    return {"file": str(output), "seconds": 2.0 * trials, "build_s": 1.0, "trials": trials, "schedule": tuner}


def open_model(file, inputs, threads):
    tuner = Path(file).read_text()
    off = 0.5 if tuner == "ansor" else 0.0

    def run():
        time.sleep({"roller": 0.001, "untuned": 0.004}.get(tuner, 0.002))

    return Running(run, lambda: [inputs["x"] * 2 + off])


def doubled(path):
    """An ONNX file that doubles its input."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 4))
    node = helper.make_node("Mul", ["x", "two"], ["y"])
    two = numpy_helper.from_array(np.array(2.0, np.float32), "two")
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "doubled", [value], [made], [two]),
                              opset_imports=[helper.make_opsetid("", 13)])  # fmt: skip
    model.ir_version = 8
    onnx.save(model, str(path))
    return path
