"""Paths of databases are told from files of Ansor by their names; without the right TVM the command says what to do."""

import pytest

from roller_bench.replay.databases import NOTES, RECORDS, WORKLOADS, apart, file_of
from roller_bench.replay.records import parse_line
from roller_tvm.cli import main
from roller_tvm.errors import BadInput
from roller_tvm.tvm_env import line


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "logs" / "tuned"
    inside.mkdir(parents=True)
    for name in (WORKLOADS, f"{RECORDS}.gz", NOTES, "ansor.json"):
        (inside / name).write_text("")
    (tmp_path / "logs" / "other.json").write_text("")
    return tmp_path / "logs"


def test_databases_are_found_within_folders(folder):
    assert apart([folder]) == ([folder / "tuned"], [folder / "other.json", folder / "tuned" / "ansor.json"])
    assert apart([folder / "tuned" / WORKLOADS, folder / "tuned" / f"{RECORDS}.gz"])[0] == [folder / "tuned"]
    assert apart([folder / "other.json"]) == ([], [folder / "other.json"])


def test_half_a_database_names_what_is_missing(folder):
    assert file_of(folder / "tuned", RECORDS).name == f"{RECORDS}.gz"
    (folder / "tuned" / WORKLOADS).unlink()
    with pytest.raises(BadInput, match=WORKLOADS):
        file_of(folder / "tuned", WORKLOADS)


@pytest.mark.skipif(line() == "relax", reason="the TVM here reads databases")
def test_without_the_relax_line_the_command_says_what_to_install(folder, capsys):
    assert main(["replay", str(folder / "tuned"), "--device", "v100"]) == 1
    assert "pip install" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['[0, [[[], []], [0.1], "cuda"]]', '{"key": "0123", "record": "[]"}'])
def test_records_without_their_workload_are_refused_by_name(text):
    with pytest.raises(ValueError, match=r"MetaSchedule.*give"):
        parse_line(1, text)
