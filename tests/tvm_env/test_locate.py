import os
import sys
from pathlib import Path

import pytest

from roller_tvm.errors import NoTvm, TvmLineError
from roller_tvm.tvm_env import locate
from roller_tvm.tvm_env.locate import Line, TvmFound, import_relax_tvm, import_relay_tvm, line, line_of

WHICH = (
    "from roller_tvm.tvm_env import find_tvm; f = find_tvm();"
    "print(f and (f.version, f.line.value, f.from_wheel))"
)


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.12.9", Line.UNSUPPORTED),
        ("0.13.0", Line.RELAY),
        ("0.17.dev0", Line.RELAY),
        ("0.19.0+git", Line.RELAY),
        ("0.20.0", Line.UNSUPPORTED),
        ("0.24.1", Line.UNSUPPORTED),
        ("0.25.0.post1", Line.RELAX),
        ("0.100", Line.RELAX),  # numbers, not strings
        ("1.0", Line.RELAX),
        ("unknown", Line.UNSUPPORTED),
    ],
)
def test_lines_by_version(version, line):
    assert line_of(version) is line


def test_found_without_being_imported(fresh, make_tvm, tmp_path):
    tvm = make_tvm(tmp_path, "0.14.0", body="raise SystemExit('imported')")
    assert fresh(WHICH, tvm) == "('0.14.0', 'relay', False)"


def test_none_found(fresh, tmp_path):
    (tmp_path / "tvm").mkdir()  # a bare folder is not a TVM
    assert fresh(WHICH, tmp_path) == "None"


def test_importing_roller_imports_no_tvm(fresh, make_tvm, tmp_path):
    tvm = make_tvm(tmp_path, "0.14.0", body="raise SystemExit('imported')")
    assert fresh("import roller_tvm, roller_tvm.tvm_env, sys; print('tvm' in sys.modules)", tvm) == "False"


def test_import_says_what_to_install(monkeypatch):
    monkeypatch.setattr(locate, "find_tvm", lambda: None)
    with pytest.raises(NoTvm, match=r"tuning needs TVM 0\.13 to 0\.19(.|\n)*roller-tvm install-tvm"):
        import_relay_tvm("tuning")


def test_import_refuses_the_other_line(monkeypatch, tmp_path):
    monkeypatch.setattr(locate, "find_tvm", lambda: TvmFound(tmp_path, "0.26.0", Line.RELAX, False))
    with pytest.raises(TvmLineError, match=r"got 0\.26\.0"):
        import_relay_tvm("tuning")


@pytest.mark.parametrize(
    ("found", "said"),
    [(None, r"needs TVM 0\.25 or later, and no TVM"), ("0.17.0", r"0\.25 or later \(got 0\.17\.0\)")],
)
def test_the_relax_line_says_what_to_install(monkeypatch, tmp_path, found, said):
    there = found and TvmFound(tmp_path, found, line_of(found), True)
    monkeypatch.setattr(locate, "find_tvm", lambda: there)
    with pytest.raises(NoTvm, match=rf"{said}(.|\n)*pip install 'roller-tvm\[relax\]'"):
        import_relax_tvm("tuning")


@pytest.mark.parametrize(("version", "expected"), [("0.17.0", "relay"), ("0.27.0", "relax"), ("0.20.0", None)])
def test_the_line_in_a_word(monkeypatch, tmp_path, version, expected):
    monkeypatch.setattr(locate, "find_tvm", lambda: TvmFound(tmp_path, version, line_of(version), False))
    assert line() == expected
    monkeypatch.setattr(locate, "find_tvm", lambda: None)
    assert line() is None


def test_a_broken_tvm_is_an_error_of_ours(monkeypatch, make_tvm, tmp_path):
    make_tvm(tmp_path, "0.14.0", body="raise OSError('libtvm.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tvm", raising=False)
    with pytest.raises(NoTvm, match="cannot be imported: libtvm.so"):
        import_relay_tvm()


@pytest.mark.tvm
def test_real_tvm_is_of_the_relay_line():
    tvm = import_relay_tvm()
    found = locate.find_tvm()
    assert (found.line, found.version) == (Line.RELAY, tvm.__version__)
    assert Path(tvm.__file__).is_relative_to(found.root)


def test_tvm_017_has_a_place_for_its_data_where_the_home_is_read_only(monkeypatch, tmp_path):
    (tmp_path / "home").write_text("no folder")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TEST_DATA_ROOT_PATH", "")
    monkeypatch.delenv("TEST_DATA_ROOT_PATH")
    locate._have_data_folder()
    assert Path(os.environ["TEST_DATA_ROOT_PATH"]).is_dir()
