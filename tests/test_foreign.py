"""The one reader of files that others wrote. No TVM."""

import gzip
import os
import zlib

import pytest

from roller_bench.replay.records import read_file
from roller_tvm import foreign
from roller_tvm.errors import BadInput


def test_what_unpacks_to_more_than_its_limit_is_refused_and_an_option_raises_it(tmp_path, monkeypatch):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress((b"0" * 2047 + b"\n") * (3 << 10)))  # 6 KB that hold 6 MB
    monkeypatch.setattr(foreign, "TEXT_MIB", 2)
    with pytest.raises(BadInput, match="longer than 2 MiB") as caught:
        list(foreign.lines(path, 2))
    assert "ROLLER_LIMIT_MIB=4" in caught.value.remedy
    monkeypatch.setenv("ROLLER_LIMIT_MIB", "8")
    assert sum(1 for _ in foreign.lines(path, 2)) == 3 << 10
    monkeypatch.setenv("ROLLER_LIMIT_MIB", "many")
    with pytest.raises(BadInput, match="whole number of MiB"):
        foreign.limit_bytes(1)


def test_lines_without_end_are_refused(tmp_path):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"\n" * 5000))
    with pytest.raises(BadInput, match="has more than 4096 lines") as caught:
        list(foreign.lines(path, 4))
    assert "ROLLER_LIMIT_MIB=8" in caught.value.remedy
    assert sum(1 for _ in foreign.lines(path, 5)) == 5000


def test_a_line_without_end_is_refused_by_its_number(tmp_path, monkeypatch):
    path = tmp_path / "log.json"
    path.write_bytes(b"#\n" + b"[" * (3 << 20))
    with pytest.raises(BadInput, match=r"log.json:2: the line is longer than 1 MiB"):
        list(foreign.lines(path, line_mib=1))
    assert read_file(path).skipped[0].number == 2  # within the usual limits, and no record


def test_pipes_and_folders_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert foreign.read_bytes(tmp_path / "pipe") == b""
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        foreign.read_bytes(tmp_path)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_zlib_s_content_is_whole_or_refused(cut):
    packed = zlib.compress(os.urandom(100))
    with pytest.raises(ValueError):
        foreign.decompressed(packed[:-cut], 1000)


def test_text_that_is_not_utf_8_names_the_byte(tmp_path):
    (tmp_path / "m.json").write_bytes(b"abc\xff")
    with pytest.raises(BadInput, match="byte 3 .0xff. is not UTF-8"):
        foreign.read_text(tmp_path / "m.json")
