"""The pictures of docs/architecture.md: the functions named there are called on the way, first called in that order."""

import re
import sys
from pathlib import Path

import pytest

import roller_tvm
from roller_tvm.device import load_device
from roller_tvm.ir.operators import parse_operator
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.tvm_env import line

from . import small_model

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/architecture.md", ROOT / "docs/changes.md", ROOT / "CONTRIBUTING.md"]
PICTURE = re.compile(r"^```\n(.*?)^```$", re.M | re.S)
STEP = re.compile(r"^ *(\S+\.py) +([A-Za-z_][\w.]*)", re.M)
FOLDERS = ("", "roller_tvm", "python", "tests", "python/roller_bench")


def way(title):
    """Return the (file, function) pairs of the picture after a title or sentence."""
    text = PAGES[0].read_text()
    return STEP.findall(PICTURE.search(text, text.index(title))[1])


def called(run):
    """Return the (file, function) pairs that a function calls, in the order in which they are called first."""
    seen = {}
    package = f"{Path(roller_tvm.__file__).parent}/"

    def look(frame, event, _argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
            seen.setdefault((code.co_filename.removeprefix(package), name))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(before)
    return list(seen)


def check(title, run):
    steps = way(title)
    assert len(steps) > 6
    found = called(run)
    assert [step for step in steps if step not in found] == []
    assert sorted(steps, key=found.index) == steps


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 tells the class of a function")
def test_the_way_of_an_operator():
    def run():
        a100 = load_device("a100")
        lower(construct(parse_operator(["matmul", "m=256", "n=256", "k=64"]), a100).best.plan)

    check("## The way of an operator", run)


@pytest.mark.one_line("relax")
@pytest.mark.te
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 tells the class of a function")
def test_the_way_of_a_model(tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    import numpy as np

    monkeypatch.chdir(tmp_path)
    small_model.save("model.onnx")
    file = "m.so" if line() == "relax" else "m.tar"

    def run():
        model = roller_tvm.compile("model.onnx")
        model(np.zeros((1, 3, 32, 32), "float32"))
        model.save(file)
        roller_tvm.load(file)

    check("## The way of a model" if line() == "relax" else "On the Relay line", run)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page):
    """A name without a folder is that of a file somewhere."""
    text = page.read_text()
    named = set(re.findall(r"`([\w./-]+\.(?:py|toml|csv|txt))`", text)) | {file for file, _ in STEP.findall(text)}
    names = {path.name for path in ROOT.glob("*.toml")}
    names |= {path.name for top in ("roller_tvm", "python", "tests", "tutorials") for path in (ROOT / top).rglob("*.*")}
    lost = [n for n in named if not any((ROOT / f / n).exists() for f in FOLDERS) and ("/" in n or n not in names)]
    assert not lost
