"""Pretend environments: TVMs made of a few small files, seen by a fresh interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def make_tvm():
    """Write a package that looks like TVM to the locator."""

    def make(folder: Path, version: str, body: str = "") -> Path:
        (folder / "tvm" / "_ffi").mkdir(parents=True)
        (folder / "tvm" / "_ffi" / "libinfo.py").write_text(f'# current version\n__version__ = "{version}"\n')
        (folder / "tvm" / "__init__.py").write_text(f'__version__ = "{version}"\n{body}')
        return folder

    return make


@pytest.fixture
def fresh():
    """Run code in a fresh interpreter without site-packages; returns its standard output."""

    def run(code: str, *path: Path, check: bool = True):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT]))}
        env.pop("TOPHUB_LOCATION", None)  # set here once some test imported the wheel's TVM
        done = subprocess.run(
            [sys.executable, "-S", "-c", code], capture_output=True, text=True, env=env, timeout=60
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip() if check else done

    return run
