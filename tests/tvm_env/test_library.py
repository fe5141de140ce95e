"""Half a library is told from a whole one."""

import shutil
import sys
from pathlib import Path

import pytest

from roller_tvm.tvm_env.library import is_cut_off

WHOLE = Path(sys.executable).resolve()


@pytest.mark.skipif(WHOLE.read_bytes()[:6] != b"\x7fELF\x02\x01", reason="Python is no 64 bit ELF file here")
def test_a_library_that_lacks_its_end(tmp_path):
    copy = tmp_path / "copy.so"
    shutil.copy(WHOLE, copy)
    assert not is_cut_off(copy)
    data = copy.read_bytes()
    for size in (40, 5000, len(data) // 2, len(data) - 1):
        copy.write_bytes(data[:size])
        assert is_cut_off(copy)


@pytest.mark.parametrize("data", [b"", b"text", b"\x7fELF\x01\x01" + bytes(100)])
def test_what_is_no_such_file_is_left_to_others(tmp_path, data):
    path = tmp_path / "other.so"
    path.write_bytes(data)
    assert not is_cut_off(path)
