"""The model beside recorded runs of the kit: plans are predicted as when they were made."""

from __future__ import annotations

import json
import math

import pytest

from roller_bench.kit.model import RECORDS, main, predicted, read_record, today, write_record
from roller_bench.kit.results_text import by_family, timed
from roller_tvm.device import load_device
from roller_tvm.errors import BadInput
from roller_tvm.ir.operators import matmul
from roller_tvm.planner import construct
from roller_tvm.planner.predict_programs import predict_plan
from roller_tvm.roller.features import Features


@pytest.fixture(scope="module")
def rows():
    return [row for path in RECORDS for row in read_record(path)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_predicts_a_plan_again_as_it_was_constructed(dtype):
    device = load_device("h200")
    tensor_ir = Features.of_tensor_ir(device)
    for ranked in construct(matmul(m=256, n=512, k=1024, dtype=dtype), device, 6, tensor_ir).plans:
        assert math.isclose(predict_plan(ranked.plan, device), ranked.seconds, rel_tol=1e-9)


def test_predicts_every_recorded_plan(rows):
    assert len(rows) > 190
    some = rows[::12]
    assert all(predicted(row, load_device(row["planned_for"])).keys() == row["plans"].keys() for row in some)


def test_today_keeps_the_plans_in_the_order_of_their_predictions(rows):
    row = today(rows[0])
    told = [plan["predicted_us"] for plan in row["plans"].values()]
    assert told == sorted(told) and len(timed(row)) == len(rows[0]["plans"])


def test_a_record_is_read_as_written(tmp_path, rows, capsys):
    path = tmp_path / "record.jsonl.gz"
    write_record(path, rows[:3])
    assert read_record(path) == json.loads(json.dumps(rows[:3]))
    assert main([str(path)]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in by_family({"operators": {row["name"]: row for row in rows[:3]}}))
    assert main([str(path), "--plans"]) == 0
    assert rows[0]["name"] in capsys.readouterr().out


def test_an_absent_record_is_refused(tmp_path, capsys):
    with pytest.raises(BadInput, match="cannot be read"):
        read_record(tmp_path / "absent")
    assert main([str(tmp_path / "absent")]) == BadInput.exit_code
    assert "cannot be read" in capsys.readouterr().err
