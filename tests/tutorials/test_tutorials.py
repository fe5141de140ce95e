"""Every tutorial runs to its end as a script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tutorials() -> list[object]:
    """Those that tune take half a minute (with Ansor, two) and need a TVM of their line, the others seconds."""
    told = {"relay": [pytest.mark.tvm, pytest.mark.nightly], "relax": [pytest.mark.relax, pytest.mark.nightly],
            "auto_scheduler": [pytest.mark.tvm, pytest.mark.nightly]}  # fmt: skip
    found = []
    for path in sorted((ROOT / "tutorials").glob("*.py")):
        imported = re.findall(r"^from tvm import .*\b(relay|relax|auto_scheduler)\b", path.read_text(), re.M)
        marks = [told[line] for line in imported]
        found.append(pytest.param(path.name, marks=marks[0] if marks else []))
    return found


@pytest.mark.parametrize("tutorial", tutorials())
def test_tutorial_runs(tutorial: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    script = ROOT / "tutorials" / tutorial
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "agree" in done.stdout.splitlines()[-1]
