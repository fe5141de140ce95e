"""Options of the whole test run, and which of TVM's two lines a test needs.

One process imports one TVM, so each line's tests run in an environment of their own. A module says its line
(``pytestmark = pytest.mark.tvm``, ``relax``, ``te``), or it follows from its folder; where the TVM here is of
another line the module is not even imported, and shows as skipped.
"""

import re
from pathlib import Path

import pytest

from roller_tvm.tvm_env import line

TESTS = Path(__file__).parent
NEEDS = {
    "tvm": ("relay", "a TVM of the Relay line: make venv, .venv/relay"),
    "relax": ("relax", "a TVM of the Relax line: make venv, .venv/relax"),
    "te": ("relay or relax", "a TVM, of either line"),
}
FOLDERS = {"tir": "relax", "relax": "relax"}
MARK = re.compile(rf"^pytestmark = .*\bpytest\.mark\.({'|'.join(NEEDS)})\b", re.M)
LINE = line()


def missing(mark):
    """Why tests with this marker cannot run here, or None."""
    lines, what = NEEDS[mark]
    return None if LINE in lines.split(" or ") else f"needs {what}"


def mark_of(path):
    """The line that a test module needs as a whole, or None: it says so itself, or its folder does."""
    named = MARK.search(path.read_text(encoding="utf-8"))
    return named[1] if named else FOLDERS.get(path.relative_to(TESTS).parts[0])


class OtherLine(pytest.Module):
    """A test module for another TVM than the one here."""

    def collect(self):
        pytest.skip(missing(mark_of(self.path)), allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    mark = mark_of(module_path) if TESTS in module_path.parents else None
    return OtherLine.from_parent(parent, path=module_path) if mark and missing(mark) else None


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("nightly") and not config.getoption("--nightly"):
            item.add_marker(pytest.mark.skip(reason="runs in make nightly"))
        if mark_of(item.path) == "relax" and not item.get_closest_marker("relax"):
            item.add_marker("relax")
        for mark in NEEDS:
            if item.get_closest_marker(mark) and (why := missing(mark)):
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="run what is too long for every change, too")
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew instead of comparing")


@pytest.fixture
def golden(request):
    """``golden(name, text)`` compares with the file golden/<name>.txt beside the test."""

    def check(name, text):
        path = Path(request.node.path).parent / "golden" / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest with --update-golden, and read what it writes"
        assert text == path.read_text(), f"differs from {path.name}; if meant, run pytest with --update-golden"

    return check


@pytest.fixture
def pocl(request):
    """OpenCL on the CPU, or a skip that says what is missing; a nightly run without its witness is a failed one."""
    from roller_tvm.emulate.opencl import queue
    from roller_tvm.errors import ToolchainError

    try:
        queue()
    except ToolchainError as error:
        missing_it = pytest.fail if request.config.getoption("--nightly") else pytest.skip
        missing_it(f"{error.what}: {error.remedy}")
