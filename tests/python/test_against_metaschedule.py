"""against_metaschedule.py: what it keeps, and the table that it makes of it. No TVM."""

import pytest

from python import against_metaschedule as script


def row(**changes):
    given = {"model": "resnet50", "number": 1, "weight": 3, "kind": "convolution", "name": "fused_conv2d_relu",
             "theirs": 4e-4, "ours": 2e-4, "ratio": 2.0, "flops": 1e8, "wrong": "", "theirs_s": 90.0,
             "ours_s": 3.0}  # fmt: skip
    return {**given, **changes}


def test_the_table_leads_with_what_loses_most_and_weighs_by_calls():
    rows = [row(), row(name="fused_matmul", number=2, kind="matmul", weight=1, theirs=1e-4, ours=2e-4, ratio=0.5)]
    text = script.report(rows, 546.0, 42, 64, "cpu, 2 threads")
    assert text.index("fused_matmul") < text.index("fused_conv2d_relu")
    assert "2 of 42 tasks" in text
    assert "all             1.00   least  0.50   2 tasks" in text
    assert "A run of resnet50 in these kernels: MetaSchedule 1.30 ms, Roller 0.80 ms" in text
    assert "MetaSchedule 180 s, Roller 6 s, 30 times less" in text
    assert "WRONG" in script.report([row(wrong="  ours WRONG: error 1")], 546.0, 1, 64, "cpu")


def test_records_are_kept_one_a_task_the_last_counts(tmp_path):
    log = tmp_path / "records.jsonl"
    assert script.read_tuned(log) == {}
    for seconds in (5.0, 7.0):
        script.append(log, script.Tuned("key", 64, seconds, "[]", "llvm"))
    assert script.read_tuned(log)["key"].seconds == 7.0


@pytest.mark.parametrize(
    "name, kind", [("fused_depthwise_conv2d_add", "depthwise"), ("fused_conv2d_blocked3", "convolution"),
                   ("fused_matmul4_add41", "matmul"), ("max_pool2d1", "pool"), ("less_add", "other")],
)  # fmt: skip
def test_kinds(name, kind):
    assert script.kind(name) == kind
