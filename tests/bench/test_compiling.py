"""Compiled plans held against the prediction: what counts as right, and what is told of what is not."""

from types import SimpleNamespace

import numpy as np
import pytest

from roller_bench.figures import compile_tasks
from roller_bench.figures.compile_tasks import Tasks, with_batch
from roller_bench.figures.resources import summary
from roller_tvm.errors import UnsupportedOperator


def result(own, status="ok", predicted=64, registers=64, shared=4096, **more):
    kernel = {"recipe": "gpu.tiled", "predicted_registers": predicted, "predicted_shared": 4096, "threads": 64,
              "sm_80": [registers, 0, shared]}  # fmt: skip
    base = {"id": own, "rank": 0, "device": "a100", "dtype": "float32", "status": status}
    if status != "ok":
        return base | {"error": "needs 8 B of local memory"} | more
    return base | {"recipe": ["gpu.tiled"], "variant": "", "build_s": 0.1, "kernels": [kernel]} | more


def test_a_quarter_more_registers_are_borne_and_not_more():
    text = summary([result("a", registers=85), result("b", registers=86), result("c", registers=20)])
    assert "within 25% or above: 2" in text and "shared memory as predicted 3" in text


def test_what_has_no_plan_left_is_named():
    text = summary([result("a", "spills"), result("a", rank=1), result("b", "fallback")], "tasks")
    assert "3 plans of 2 tasks" in text and "a#0 spills: needs 8 B of local memory" in text
    assert "fallbacks to TVM's default schedule: 1 b" in text


def test_shared_memory_that_differs_is_counted():
    assert "shared memory as predicted 1" in summary([result("a", shared=4100), result("b")])


def test_newer_architectures_stand_after_older_ones():
    row = result("a")
    row["kernels"][0] |= {"sm_100": [64, 0, 4096]}
    text = summary([row])
    assert text.index("sm_80: 1 kernels") < text.index("sm_100: 1 kernels")


def test_tasks_are_compiled_once_for_each_architecture_and_go_on_where_they_were(monkeypatch):
    def plans(base, reading, device, archs, *_):
        return [base | {"rank": 0, "status": "ok", "archs": archs, "reading": reading}]

    def read(task, arch):
        if task.name == "sort":
            raise UnsupportedOperator("cannot be planned")
        return task.id, None

    monkeypatch.setattr(compile_tasks, "compile_plans", plans)
    tasks = [SimpleNamespace(id=n, name=name) for n, name in enumerate(("conv", "sort", "dense"))]
    device = SimpleNamespace(name="a100")
    taken = Tasks(tasks, {"sm_80": device, "sm_90": device}, read)
    done = {("net_b1:0@sm_80", 0): "ok"}
    found = {r["id"]: r["status"] for r in taken.compiled("net_b1", 1, done, set())}
    assert found == {
        "net_b1:0@sm_90": "ok", "net_b1:1@sm_80": "fallback", "net_b1:1@sm_90": "fallback", "net_b1:2@sm_80": "ok",
        "net_b1:2@sm_90": "ok",
    }  # fmt: skip
    assert [r["id"] for r in taken.compiled("net_b1", 1, done, {"net_b1:0", "dense"})] == [
        "net_b1:0@sm_90", "net_b1:2@sm_80", "net_b1:2@sm_90",
    ]  # fmt: skip


@pytest.mark.relax
def test_a_network_file_of_batch_1_gets_another(tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    from roller_tvm.relax import load_model

    shape = numpy_helper.from_array(np.array([1, 12], np.int64), "shape")
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])], "flat",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 12))], [shape],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(tmp_path / "flat.onnx"))
    main = load_model(with_batch(tmp_path / "flat.onnx", 64)).mod["main"]
    assert [int(e) for e in main.params[0].ty.shape] == [64, 3, 4]
    assert [int(e) for e in main.ret_ty.shape] == [64, 12]
