"""Proofs of whole models, on either line: the report says what is proven; a refuted kernel is no model."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.te

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import roller_tvm  # noqa: E402
from roller_tvm import cli  # noqa: E402
from roller_tvm.errors import RefutedKernel, UsageError  # noqa: E402
from roller_tvm.schedules.proofs import REFUTED, UNDECIDED, Finding, prove  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402


def gather(rows=4, columns=16):
    """A product, whose rows are then gathered by an input."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((8, columns)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Gather", ["p", "i"], ["y"], axis=0)]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 8]),
             helper.make_tensor_value_info("i", TensorProto.INT64, [3])]  # fmt: skip
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, columns])
    graph = helper.make_graph(nodes, "gather", given, [result], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_rows_that_an_input_gathers():
    answers = [plan.proof for plan in roller_tvm.compile(gather(), prove=True).report().plans]
    if line() == "relax":  # they are those of the function before its schedule
        assert answers and set(answers) == {"proven"}
    else:
        assert "proven" in answers
        _executed(next(answer for answer in answers if answer != "proven"))


def test_what_no_proof_can_know_is_executed(monkeypatch):
    monkeypatch.setattr(prove, "bounds", lambda kernel, known=(): Finding("bounds", UNDECIDED, "lv[i]"))
    report = roller_tvm.compile(gather(6, 24), prove=True).report()
    new = [plan.proof for plan in report.plans if plan.proof != "proven"]  # an earlier model has the others
    assert new
    for answer in new:
        _executed(answer)
        assert answer in str(report)


def _executed(answer):
    assert answer.startswith("undecided: ") and "all elements agree with the reference" in answer


def test_a_refuted_kernel_is_an_error_before_anything_is_written(monkeypatch, tmp_path, capsys):
    told = "C[0] is written at i=0 and written at i=1, threads at the same time"
    monkeypatch.setattr(prove, "races", lambda kernel: Finding("races", REFUTED, told))
    model = gather(5)  # another kernel than those that are proven already
    with pytest.raises(RefutedKernel, match="at the same time"):
        roller_tvm.compile(model, prove=True)
    onnx.save(model, str(path := tmp_path / "model.onnx"))
    assert cli.main(["compile", str(path), "--prove", "-o", str(tmp_path / "model.so")]) == 1
    assert "remedy: " in capsys.readouterr().err and not (tmp_path / "model.so").exists()


def test_tvms_own_schedules_are_not_proven():
    with pytest.raises(UsageError, match="TVM's own schedules"):
        roller_tvm.compile(gather(), prove=True, schedules="tvm")
