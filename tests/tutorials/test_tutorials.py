"""Every tutorial runs to its end as a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tutorials() -> list[object]:
    """Those that tune take half a minute and need a TVM of their line, the others seconds and nothing."""
    found = []
    for path in sorted((ROOT / "tutorials").glob("*.py")):
        text = path.read_text()
        lines = {"import_relay_tvm": pytest.mark.tvm, "import_relax_tvm": pytest.mark.relax}
        marks = [[mark, pytest.mark.slow] for name, mark in lines.items() if name in text]
        found.append(pytest.param(path.name, marks=marks[0] if marks else []))
    return found


@pytest.mark.parametrize("tutorial", tutorials())
def test_tutorial_runs(tutorial: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    script = ROOT / "tutorials" / tutorial
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "agree" in done.stdout.splitlines()[-1]
