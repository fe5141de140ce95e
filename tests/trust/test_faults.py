"""Files that TVM's importers read, damaged: each ends in an error of ours or is read, none ends the process."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")

from roller_check.damage import ended  # noqa: E402
from roller_check.damage.tvm_readers import readers  # noqa: E402

FEW = 12


@pytest.mark.one_line("relay")
def test_a_sample():
    # A process of its own: a fork of this one would miss the threads that TVM has started here.
    words = ["-m", "roller_check", "faults", "--readers", ",".join(readers()), "--inputs", str(FEW)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count(f"{FEW} ") >= len(readers())


def test_faults_of_an_earlier_run_are_told_and_count(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ended, "_warm", lambda: None)
    row = {"line": ended.line(), "command": "cache", "how": "kill", "seed": 0, "wrong": "a traceback: KeyError"}
    out = tmp_path / "points.jsonl"
    again = ["--points", "1", "--how", "kill", "--out", str(out)]
    out.write_text(json.dumps(row) + "\n", "utf-8")
    assert ended.main(again) == 1
    assert "cache, kill, seed 0: a traceback: KeyError" in capsys.readouterr().out
    out.write_text(json.dumps({**row, "wrong": ""}) + "\n", "utf-8")
    assert ended.main(again) == 0
