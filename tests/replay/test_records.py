"""Reading record files: every line is a record, or is skipped by its number with a reason."""

import gzip

import pytest

from roller_bench.replay.records import find_files, parse_line, read_file
from roller_tvm.errors import BadInput
from tests.replay.examples import matmul_record

GOOD = matmul_record()


def test_foreign_and_truncated_lines_are_skipped_by_number(tmp_path):
    path = tmp_path / "a.json"
    lines = ["# roller-tvm {}", GOOD, "hello", '{"a": 1}', "", GOOD.replace("v0.6", "v9.9"), "[" * 100000, GOOD[:-20]]
    path.write_text("\n".join(lines))
    file = read_file(path)
    assert [r.number for r in file.records] == [2]
    assert [s.number for s in file.skipped] == [3, 4, 6, 7, 8]
    assert "v9.9" in file.skipped[2].reason and "cut off" in file.skipped[4].reason
    assert str(file.skipped[0]).startswith("line 3: ")


def test_a_gzip_file_that_ends_early_keeps_what_was_whole(tmp_path):
    path = tmp_path / "a.json.gz"
    packed = gzip.compress("".join(f"{matmul_record(seconds=n / 1e6)}\n" for n in range(1, 400)).encode())
    path.write_bytes(packed[: len(packed) // 2])
    file = read_file(path)
    assert 0 < len(file.records) < 399
    assert file.skipped[-1].number > len(file.records) and "cut off" in file.skipped[-1].reason


@pytest.mark.parametrize("change", ['"r": [["x"]', '"r": [[]', '"r": [[0.0]', '"r": [[NaN]'])
def test_times_that_are_none_are_refused(change):
    with pytest.raises(ValueError):
        parse_line(1, GOOD.replace('"r": [[0.001]', change))


def test_what_did_not_run_is_a_record_all_the_same(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(matmul_record(error=4) + "\n" + GOOD + "\n")
    file = read_file(path)
    assert len(file.records) == 2 and [r.number for r in file.ran] == [2]


def test_folders_are_searched_and_wrong_paths_named(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "b.json").write_text(GOOD)
    (tmp_path / "notes.txt").write_text("no")
    assert [p.name for p in find_files([tmp_path])] == ["b.json"]
    with pytest.raises(BadInput, match="no such file"):
        find_files([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no record file"):
        find_files([tmp_path / "empty"])
