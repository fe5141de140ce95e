"""Every tutorial runs to its end as a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tutorials() -> list[object]:
    """Those that tune take half a minute and need TVM, the others seconds and nothing."""
    found = []
    for path in sorted((ROOT / "tutorials").glob("*.py")):
        tunes = "tvm import" in path.read_text().replace("roller_tvm import", "")
        found.append(pytest.param(path.name, marks=[pytest.mark.tvm, pytest.mark.slow] if tunes else []))
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
