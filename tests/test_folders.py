"""Folders of this user alone, and temporary folders that go with their process. No TVM."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from roller_tvm import folders
from roller_tvm.children import python
from roller_tvm.errors import BadInput, DiskFull
from roller_tvm.folders import beside, cache_folder, check_space, private_folder, sweep, temporary_folder, work_folder

ROOT = Path(__file__).parents[1]
#: Makes a file in its temporary folder, tells the folder, and stays.
CHILD = """
import sys
from pathlib import Path
from roller_tvm.folders import temporary_folder, work_folder

with work_folder() as inner:
    Path(inner, "half").write_text("half")
    print(temporary_folder(), flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def child(place):
    """Run CHILD with its temporary files in a folder; give the process and its own folder."""
    environment = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(ROOT)}
    command = python("-c", CHILD)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process, Path(process.stdout.readline().strip())


def test_a_killed_process_leaves_a_folder_that_the_next_removes(tmp_path):
    with child(tmp_path) as (first, left), child(tmp_path) as (second, lives):
        first.kill()
        first.wait()
        assert left.is_dir() and any(left.rglob("half"))
        sweep(tmp_path)
        assert not left.exists() and any(lives.rglob("half")), "of a process that lives"
        second.stdin.close()
        assert second.wait() == 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "roller-tvm-file").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / folders.OWNER).write_text("")
    (tmp_path / "roller-tvm-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "roller-tvm-young").mkdir()
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4 and (tmp_path / "elsewhere" / folders.OWNER).exists()


def test_work_is_within_the_process_s_own_folder():
    with work_folder() as folder:
        assert Path(folder).parent == temporary_folder() and oct(temporary_folder().stat().st_mode)[-3:] == "700"
    assert not os.path.exists(folder)


def test_a_file_beside_is_whole_or_not_there(tmp_path):
    place = tmp_path / "model.so"
    with pytest.raises(ValueError), beside(place) as made:
        made.write_text("half")
        raise ValueError
    assert list(tmp_path.iterdir()) == []
    with beside(place) as made:
        made.write_text("whole")
    assert place.read_text() == "whole" and list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, mode):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(BadInput, match="others may write to it") as caught:
        private_folder(folder)
    assert "chmod 700" in caught.value.remedy


def test_a_folder_in_one_that_others_may_write_to_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(BadInput, match="others may write to .*open above it"):
        private_folder(tmp_path / "open" / "cache")
    (tmp_path / "open").chmod(0o1777)  # as /tmp
    assert private_folder(tmp_path / "open" / "cache").is_dir()


def test_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(BadInput, match="symbolic link"):
        private_folder(tmp_path / "link")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 12345, 12345)
    with pytest.raises(BadInput, match="belongs to somebody else"):
        private_folder(tmp_path / "cache")


def test_the_cache_goes_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a{b}"))
    assert cache_folder() == tmp_path / "a{b}" / "roller_tvm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "roller_tvm"


def test_a_full_folder_is_named(monkeypatch, tmp_path):
    check_space(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "LEAST_FREE", 1 << 62)
    with pytest.raises(DiskFull, match=f"{tmp_path}: no space left in the temporary folder") as caught:
        check_space()
    assert "TMPDIR" in caught.value.remedy


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 has -P")
def test_no_module_of_the_current_folder_runs_in_a_child(tmp_path, monkeypatch):
    """A model comes with a module that has the name of one of Python's."""
    from roller_tvm.tuning.supervise import Worker

    for name in ("signal", "socket", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    worker = Worker(1, "tests.tuning.plain_worker")
    try:
        assert worker.call("echo", ("here", 0.0), 60).ok
    finally:
        worker.kill()
    assert not (tmp_path / "ran").exists()


def test_one_place_starts_python():
    """Nothing else names the interpreter to start it; the kit stands alone, with no folder of a stranger's."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("roller_tvm", "python")
        for path in (ROOT / folder).rglob("*.py")
        if "[sys.executable" in path.read_text(encoding="utf-8")
    }
    assert found <= {"roller_tvm/children.py", "python/roller_bench/kit/run.py", "python/roller_bench/kit/watchdog.py"}
