"""Files that TVM's importers read, damaged: each ends in an error of ours or is read, none ends the process."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")

from roller_check.damage import ended, poor  # noqa: E402
from roller_check.damage.tvm_readers import readers  # noqa: E402

FEW = 12


@pytest.mark.one_line("relay")
def test_a_sample():
    said = checked("faults", "--readers", ",".join(readers()), "--inputs", str(FEW))
    assert said.count(f"{FEW} ") >= len(readers())


def checked(*words):
    # A process of its own: a fork of this one would miss the threads that TVM has started here.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    run = subprocess.run([sys.executable, "-m", "roller_check", *words], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.one_line("relax")
def test_a_machine_that_lacks_something():
    said = checked("poor", "--only", "compile", "--lack", "room for temporary files", "--points", "1")
    assert "1 points, 0 faults" in said


@pytest.mark.nightly
def test_machines_that_lack_something():
    assert "96 points, 0 faults" in checked("poor", "--points", "96")


@pytest.mark.parametrize(
    ("status", "said", "fault"),
    [
        (0, "m.so: built", ""),
        (1, "roller-tvm: error: no space left; remedy: free some", ""),
        (1, "roller-tvm: internal error: KeyError", "exit status 1"),
        (-6, "LLVM ERROR: IO failure on output stream", "signal 6"),
        (0, "left to TVM's own schedule: crash: exit code 1", "a crash"),
        (1, "Traceback (most recent call last)", "a traceback"),
        (0, "FOUND: left over: m.o", "FOUND"),
    ],
)
def test_an_end_is_judged_by_its_words(status, said, fault):
    found = poor._judged(status, said, "room for temporary files")
    assert found.startswith(fault) and bool(found) == bool(fault)


def test_faults_of_an_earlier_run_are_told_and_count(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ended, "warm", lambda: None)
    row = {"line": ended.line(), "command": "cache", "how": "kill", "seed": 0, "wrong": "a traceback: KeyError"}
    out = tmp_path / "points.jsonl"
    again = ["--points", "1", "--how", "kill", "--out", str(out)]
    out.write_text(json.dumps(row) + "\n", "utf-8")
    assert ended.main(again) == 1
    assert "cache, kill, seed 0: a traceback: KeyError" in capsys.readouterr().out
    out.write_text(json.dumps({**row, "wrong": ""}) + "\n", "utf-8")
    assert ended.main(again) == 0
