"""Figures on known data: ratios, groups, tables, CSV, JSON, pictures, the page."""

import csv
import importlib.util
import io
import json
import math
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from roller_bench.cases import WHOLE, Case
from roller_bench.comparison import COLUMNS, make_report, to_csv, to_json
from roller_bench.losses import explain, verdict
from roller_bench.page import page, write
from roller_bench.pictures import pictures
from roller_bench.results import Prepared, Results, Timed, Tuned
from roller_bench.tables import markdown, text
from roller_bench.tuners import Tuner, default_tuners, parse_tuners
from roller_tvm.errors import UsageError
from roller_tvm.stats import at_time, best_over_time, geomean, paired_ratio, quantile, spread

TUNERS = parse_tuners("roller:1,roller,ansor:1000")
MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
#: What others read: a name that changes here breaks them.
CASE = ["id", "title", "group", "weight", "flops", "io_bytes", "environment"]
RESULT = ["tuner", "status", "reason", "tune_s", "trials", "seconds", "spread", "gflops", "ratio", "claimed_s",
          "predicted_s", "build_s", "error", "curve", "tiles", "environment"]  # fmt: skip
FIRST, SECOND, THIRD = (
    Case("first", "matmul", "m=64 n=64 k=64"), Case("second <&>", "softmax", "shape=8x8", "rows"),
    Case("third", "relu", "shape=8"),
)  # fmt: skip


def test_ansor_measures_nothing_with_a_single_trial():
    assert Tuner.parse("ansor:2").trials == 2 and Tuner.parse("roller:1").trials == 1
    with pytest.raises(UsageError, match="ansor needs 2 or more trials"):
        Tuner.parse("ansor:1")


@pytest.fixture
def report(tmp_path):
    """Roller is twice as fast as Ansor on the first case, half as fast on the second; the third nobody can do."""
    results = Results(tmp_path / "results.jsonl")
    results.add({"id": "here", "cpu": "Some <CPU>", "threads": 2, "gflops": 500.0, "gbytes_per_s": 40.0})
    for case, flops in ((FIRST, 524288.0), (SECOND, 300.0)):
        results.add(Prepared(case, "task", flops, 49152.0))
        for tuner, spent in zip(TUNERS, (0.1, 4.0, 2000.0), strict=True):
            curve = [(spent / 2, 9e-6), (spent, 3e-6)]
            results.add(Tuned(case.digest, tuner.label, "ok", seconds=spent, trials=tuner.trials, claimed_s=3e-6,
                              curve=curve, kernel=tuner.label, tiles=f"tiles of {tuner.label}",
                              predicted_s=2e-6))  # fmt: skip
    results.add(Prepared(THIRD, reason="it is odd"))
    for tuner in TUNERS:
        results.add(Tuned(THIRD.digest, tuner.label, "unsupported", "it is odd"))
    kernels = tuple((t.label, t.label) for t in TUNERS)
    ours = tuple(4e-6 * f for f in (1.0, 1.1, 5.0, 1.0))  # the third round was disturbed, for all
    for case, ratio in ((FIRST, 2.0), (SECOND, 0.5)):
        rounds = (tuple(1.5 * s for s in ours), ours, tuple(ratio * s for s in ours))
        results.add(Timed(case.digest, kernels, rounds))
    return make_report(Results(results.path), (FIRST, SECOND, THIRD), TUNERS, "here")


def test_machines_are_told_apart_by_what_environments_tell(report):
    """An older line of the same machine is no other machine; one that differs in its target alone is."""
    old = {"cpu": "Xeon", "target": "llvm"}
    new = {**old, "cpu_id": "family 6", "caches": "L2 1M"}

    def placed(*environments):
        rows = tuple(replace(row, environment=e) for row, e in zip(report.rows, environments, strict=True))
        return replace(report, rows=rows, environment={**report.environment, **new})

    assert [len(rows) for rows in placed(old, new, new).places().values()] == [3]
    assert not any(note.startswith("on ") for note in placed(old, new, new).notes())
    apart = placed(new, {**new, "target": "llvm -mcpu=znver4"}, old).places()
    assert [len(rows) for rows in apart.values()] == [2, 1] and "target llvm -mcpu=znver4" in list(apart)[1]


def test_ratios_are_over_the_roller_that_measures_most(report):
    assert report.base == "roller:10"
    assert report.ratios("ansor:1000") == pytest.approx([2.0, 0.5])
    assert geomean(report.ratios("ansor:1000")) == pytest.approx(1.0)
    assert report.ratios("ansor:1000", "rows") == pytest.approx([0.5])
    assert report.compile_ratios("ansor:1000") == pytest.approx([500.0, 500.0])
    assert report.compile_ratios("roller:1") == pytest.approx([0.025, 0.025])


def test_times_of_an_earlier_kernel_do_not_count(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    for tuner in TUNERS:
        results.add(Tuned(FIRST.digest, tuner.label, "ok", kernel="new.so" if tuner.name == "ansor" else "same.so"))
    kernels = (("roller:1", "same.so"), ("roller:10", "same.so"), ("ansor:1000", "old.so"))
    results.add(Timed(FIRST.digest, kernels, ((1e-6,), (1e-6,), (2e-6,))))
    (row,) = make_report(results, (FIRST,), TUNERS, "").rows
    assert [c.timed for c in row.cells] == [True, True, False] and row.cells[0].ratio == 1.0


def test_a_curve_ends_where_the_kernel_is_timed(report):
    curve = report.rows[0].cell("ansor:1000").curve
    assert curve[-1] == pytest.approx((2000.0, 2 * 4.2e-6)) and curve[0][1] == pytest.approx(3 * curve[-1][1])


def test_each_result_tells_the_commit_that_it_is_of(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    for name in ("old", "new"):
        results.add({"id": name, "commit": f"{name}er"})
    of = {"roller:1": "new", "roller:10": "old", "ansor:1000": "old"}
    for case, same in ((FIRST, False), (SECOND, True)):
        for tuner in TUNERS:
            where = "new" if same and tuner.name == "roller" else of[tuner.label]
            results.add(Tuned(case.digest, tuner.label, "ok", kernel=tuner.label, environment=where))
        results.add(Timed(case.digest, tuple((t.label, t.label) for t in TUNERS), ((1e-6,),) * 3, "new"))
    report = make_report(results, (FIRST, SECOND), TUNERS, "new")
    assert report.notes() == ["first: roller:1 of commit newer, roller:10 of commit older (--again roller)"]
    told = to_json(report)
    assert {r["tuner"]: r["environment"] for r in told["cases"][0]["results"]} == of
    assert set(told["environments"]) == {"old", "new"}
    rows = [line for line in csv.DictReader(io.StringIO(to_csv(report).partition("\nid,")[2]), ("id", *COLUMNS[1:]))]
    assert [row["environment"] for row in rows[1:4]] == list(of.values())


def test_the_table(report):
    told = text(report)
    assert re.search(r"first +matmul.* 2\.00x", told)
    assert "unsupported" in told and "it is odd (1 case)" in told
    (line,) = (x for x in told.splitlines() if x.startswith("Ansor, 1000 trials"))
    assert line.split()[3:] == ["2", "1.00x", "0.50", "500x", "20000x", "rows"]


def test_the_json_is_stable_and_the_csv_says_the_same(report):
    data = to_json(report)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert set(data) == {"version", "base", "environment", "environments", "tuners", "summary", "notes", "cases"}
    assert data["summary"]["ansor:1000"] == {
        "cases": 2, "speed_ratio": pytest.approx(1.0), "tune_ratio": pytest.approx(500.0),
        "tune_ratio_top1": pytest.approx(20000.0),
        "groups": {"matmul": pytest.approx(2.0), "rows": pytest.approx(0.5), "relu": None},
    }  # fmt: skip
    written = to_csv(report)
    rows = list(csv.DictReader(io.StringIO("".join(x + "\n" for x in written.splitlines() if x[0] != "#"))))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 9
    results = [result for case in data["cases"] for result in case["results"]]
    assert all(list(case) == [*CASE, "results"] for case in data["cases"]) and all(list(r) == RESULT for r in results)
    assert set(COLUMNS) == {*CASE, *RESULT} - {"curve", "tiles"}
    assert "# cpu: Some <CPU>" in written
    assert [float(r["ratio"]) for r in rows if r["tuner"] == "ansor:1000" and r["ratio"]] == pytest.approx([2.0, 0.5])


def test_the_table_for_a_readme(report):
    lines = markdown(report, "roller-tvm compare").splitlines()
    assert lines[0] == "| operator | Roller top-10 | Roller top-1 | Ansor, 1000 trials |"
    assert lines[2].split(" | ")[0] == "| `matmul m=64 n=64 k=64`" and lines[2].endswith("| 2.00 |")
    assert "GFLOP/s" in lines[2] and lines[4].endswith("| unsupported | - | - |")
    assert "geometric mean of 2**" in lines[5] and "**1.00**" in lines[5] and lines[5].endswith("| **1.00** |")
    assert lines[6].endswith("| 500 |") and lines[7].endswith("| 20000 |")  # tuning
    assert all(line.count("|") == 5 for line in lines[:8]) and "Some <CPU>" in lines[9]
    assert lines[9].endswith("Made by `roller-tvm compare`.") and lines[10] == ""
    assert lines[11] == f"- {', '.join(t.label for t in TUNERS)}: unsupported, it is odd (1 case)"


def test_a_mean_tells_how_many_it_is_of_where_that_is_not_all(report):
    first, second, _ = report.rows
    without = replace(second, cells=(*second.cells[:2], replace(second.cells[2], seconds=math.nan, ratio=math.nan)))
    assert "| **2.00** of 1 |" in markdown(replace(report, rows=(first, without)))


def test_searches_that_ended_by_themselves_are_told(report):
    def after(row, trials, **changes):
        cells = [c if c.tuner.name == "roller" else replace(c, trials=trials, **changes) for c in row.cells]
        return replace(row, cells=tuple(cells))

    first, second, third = report.rows
    assert report.trials() == []
    told = replace(report, rows=(after(first, 60), after(second, 1008), third)).trials()
    assert told == ["ansor:1000: found nothing new to measure: first after 60",
                    "ansor:1000: measured in whole rounds: 1008 on second <&>"]  # fmt: skip
    assert replace(report, rows=(after(first, 60, status="failed"), second, third)).trials() == []


def test_tuners_of_which_the_same_is_to_be_said_share_a_line(report):
    def built(cell, reason):
        return replace(cell, reason=reason)

    first, second, third = report.rows
    cells = (built(first.cells[0], "packed; stacked"), built(first.cells[1], "stacked"), first.cells[2])
    told = replace(report, rows=(replace(first, cells=cells), second, third)).remarks()
    labels = [t.label for t in TUNERS]
    assert told == [f"{labels[0]}: packed (1 case)", f"{labels[0]}, {labels[1]}: stacked (1 case)",
                    f"{', '.join(labels)}: unsupported, it is odd (1 case)"]  # fmt: skip
    failed = replace(third, cells=tuple(replace(c, status="failed", reason="one; two") for c in third.cells))
    assert replace(report, rows=(failed,)).remarks() == [f"{', '.join(labels)}: failed, one; two (1 case)"]


@pytest.mark.skipif(not MATPLOTLIB, reason="matplotlib draws them")
def test_pictures_are_whole(report):
    drawn = pictures(report)
    assert set(drawn) == {"tuning_against_speed", "speed_over_time"}
    told = {}
    for name, svg in drawn.items():
        tree = ElementTree.fromstring(svg)
        assert "http" not in re.sub("http://www.w3.org/(2000/svg|1999/xlink)", "", svg)
        numbers = [float(v) for e in tree.iter() for k in ("x", "y") if (v := e.get(k))]
        _, _, width, height = map(float, tree.get("viewBox").split())
        assert all(math.isfinite(n) and -1 <= n <= max(width, height) for n in numbers)
        told[name] = [e.text for e in tree.iter() if e.tag.endswith("title")]
    assert len(told["tuning_against_speed"]) == 6 + 3  # a point a case and tuner, and each tuner's mean
    assert "second <&>" in " ".join(told["tuning_against_speed"])
    assert pictures(report) == drawn  # the same each time


def test_pictures_say_what_they_need(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match="need matplotlib") as caught:
        pictures(report)
    assert caught.value.one_line().endswith("pip install 'roller-tvm[bench]'")


def test_the_page_is_one_file_for_a_phone(report):
    drawings = pictures(report) if MATPLOTLIB else dict.fromkeys("ab", "<svg/>")
    told = page(report, drawings, explain(report), "roller-tvm compare --suite 'a&b'")

    class Reader(HTMLParser):
        tags, links = [], []

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)
            self.links += [v for k, v in attrs if k in ("src", "href")]

    Reader().feed(told)
    assert not Reader.links and "script" not in Reader.tags and Reader.tags.count("svg") == 2
    assert 'name="viewport"' in told and "Some &lt;CPU&gt;" in told and "second &lt;&amp;&gt;" in told


def test_where_it_loses_says_what_the_model_got_wrong(report):
    told = explain(report)
    assert told.startswith("second <&>") and "2.00 times as long" in told
    assert "tiles of ansor:1000" in told and "tiles of roller:10" in told
    assert "its own kernel takes 2.10 times the 2.0 us" in told and "it would have won" in told
    assert "noise" not in told  # a disturbed round disturbed all
    assert "ranking was off: the plan thought best takes 1.50 times" in told


def test_a_search_that_ends_at_the_same_plan_is_no_loss(report):
    """The second case: Ansor's kernel in half the time, and the learned model's, whose plan may be Roller's own."""
    row = report.rows[1]
    ours, ansor = row.cell(report.base), row.cell("ansor:1000")

    def told(tiles):
        searched = replace(ansor, tuner=parse_tuners("xgboost:200")[0], ratio=0.25, tiles=tiles)
        cells = (ours, ansor, searched)
        changed = replace(report, rows=(report.rows[0], replace(row, cells=cells), report.rows[2]))
        return [(r.case.id, c.tuner.name) for r, c in changed.worst()], explain(changed)

    assert told("others")[0] == [(SECOND.id, "xgboost")] and "same plan" not in told("others")[1]
    worst, words = told(ours.tiles)
    assert worst == [(SECOND.id, "ansor")]
    assert words.endswith("so that ratios below 1 are noise: second <&> (xgboost:200 0.25).\n")


def test_a_plan_of_the_same_space_and_a_whole_model_are_no_mystery(report):
    row, other = report.worst(1)[0]
    ours = row.cell(report.base)
    first = replace(row.cell("roller:1"), seconds=ours.seconds)
    plan = replace(other, tuner=parse_tuners("xgboost:200")[0])
    told = " ".join(verdict(row, ours, plan, first))
    assert "what is faster is thought slower" in told and "not in its space" not in told
    assert "not in its space" in " ".join(verdict(row, ours, other, first))
    whole = replace(row, case=replace(row.case, operator="", params="", task=WHOLE, model="net.onnx"))
    assert "own plans" not in " ".join(verdict(whole, ours, other, first))


@pytest.mark.parametrize(
    "predicted, words", [(0.5e-6, "it would have won"), (1.5e-6, "the plan is worse"), (3e-6, "does not tell which")]
)
def test_what_a_prediction_tells(report, predicted, words):
    row, other = report.worst(1)[0]
    ours = replace(row.cell(report.base), seconds=2e-6, predicted_s=predicted)
    told = verdict(row, ours, replace(other, seconds=1e-6), None)
    assert words in " ".join(told)
    assert sum(w in " ".join(told) for w in ("it would have won", "the plan is worse", "does not tell which")) == 1


def test_files(report, tmp_path):
    assert write(report, tmp_path / "out", {"speed_over_time": "<svg/>"}).read_text().startswith("<!DOCTYPE html>")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"results.csv", "results.json", "table.txt", "table.md", "losses.txt", "speed_over_time.svg"} <= names


def test_nothing_done_yet(tmp_path):
    empty = make_report(Results(tmp_path / "results.jsonl"), (FIRST,), TUNERS, "")
    assert "0 cases" not in text(empty) and pictures(empty) == {} and markdown(empty) == ""
    assert page(empty, {}, explain(empty)).endswith("</html>\n")


def test_statistics():
    assert paired_ratio([2.0, 40.0, 2.2], [1.0, 20.0, 1.0]) == 2.0
    assert quantile([4.0, 1.0, 2.0], 0.5) == 2.0 and spread([1.0, 2.0, 3.0]) == 0.25
    assert math.isnan(geomean([])) and math.isnan(at_time([(1.0, 5.0)], 0.5))
    assert best_over_time([(3.0, 4.0), (1.0, 5.0), (2.0, math.inf), (2.5, 6.0)]) == [(1.0, 5.0), (3.0, 4.0)]


def test_tuners():
    assert [t.label for t in parse_tuners("roller:1,roller,ansor,untuned", 1000)] == [
        "roller:1", "roller:10", "ansor:1000", "untuned",
    ]  # fmt: skip
    assert all(t.searches and t.trials == 64 for t in parse_tuners("xgboost,metaschedule,ansor"))
    assert Tuner.parse("dlight").refusal("relax", "cpu") and not Tuner.parse("dlight").refusal("relax", "gpu")
    assert "ansor" in default_tuners("relay", "cpu") and "metaschedule" in default_tuners("relax", "gpu")
    for wrong in ("hope", "untuned:5", "roller:0", "", "ansor:x"):
        with pytest.raises(UsageError):
            parse_tuners(wrong)
