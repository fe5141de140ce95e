"""``roller-tvm replay`` as a user meets it."""

import json

import pytest

from roller_tvm.cli import main
from tests.replay.examples import ON_A_CPU, matmul_record

TILES = [
    {"rows": (1, 8, 1, 8), "columns": (1, 8, 1, 8)}, {"rows": (2, 8, 2, 2), "columns": (1, 16, 1, 4)},
    {"rows": (1, 1, 1, 1), "columns": (1, 32, 1, 1)}, {"rows": (1, 64, 1, 1), "columns": (1, 4, 1, 8)},
    {"rows": (1, 2, 8, 16), "columns": (1, 2, 8, 16)},
]  # fmt: skip


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.json"
    lines = [matmul_record(seconds=0.001 * (n + 1), **tiles) for n, tiles in enumerate(TILES)]
    path.write_text("\n".join([lines[0], "not a record", *lines[1:], lines[0][:50]]))
    return path


def test_a_log_is_judged_and_its_bad_lines_named(log, tmp_path, capsys):
    plot = tmp_path / "plot.svg"
    assert main(["replay", str(log), "--device", "v100", "--no-xgboost", "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert "5 records, 5 of them ran, 5 read back; 2 lines skipped" in out
    assert "log.json line 2: " in out and "log.json line 7: " in out
    assert "bound by" in out and plot.read_text().count("<circle") == 5 + 1


def test_json_holds_every_figure(log, capsys):
    assert main(["replay", str(log), "--device", "v100", "--no-xgboost", "--json", "--first", "3"]) == 0
    data = json.loads(capsys.readouterr().out)
    (file,) = data["files"]
    assert file["first"]["model"]["count"] == 3 and file["all"]["random"]["count"] == 5
    assert file["share_read"] == pytest.approx(5 / 7) and [s["line"] for s in file["skipped"]] == [2, 7]
    assert data["summary"]["matmul"]["first"]["model"]["top1"] >= 1.0


@pytest.mark.parametrize("words, code, told", [
    (["--device", "v101"], 2, "known: "),
    (["--device", "avx"], 2, "known: "),
    (["--device", "v100", "--without", "magic"], 2, "bank_conflicts"),
    (["--device", "ipu_mk1"], 2, "GPUs"),
    (["--device", "v100", "--input-shapes", "x:[1,8]"], 2, "--tasks-of"),
    (["--device", "v100", "--desired-layout", "NHWC"], 2, "--tasks-of"),
    (["--device", "v100", "--input-shapes", "x:[1,8]", "--tasks-of", "resnet50"], 2, "resnet50 has shapes of its own"),
    (["--device", "v100", "--input-shapes", "x:[1,8]", "--tasks-of", "testing:squeezenet_v1.1"], 2, "of its own"),
])  # fmt: skip
def test_wrong_words_are_refused_with_what_is_known(log, words, code, told, capsys):
    assert main(["replay", str(log), *words]) == code
    assert told in capsys.readouterr().err


def test_records_of_a_cpu_are_refused(tmp_path, capsys):
    path = tmp_path / "cpu.json"
    path.write_text(ON_A_CPU + "\n")
    assert main(["replay", str(path), "--device", "v100", "--no-xgboost"]) == 2
    assert "bound to no GPU threads" in capsys.readouterr().err


def test_leaving_an_effect_out_changes_the_times(log, capsys):
    def predicted(*words):
        main(["replay", str(log), "--device", "v100", "--no-xgboost", "--json", *words])
        return json.loads(capsys.readouterr().out)["files"][0]["misses"][1]["predicted_s"]

    assert predicted("--without", "latency", "--without", "issue_rate") != predicted()
