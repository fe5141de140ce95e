"""The pages' Python blocks run in order on the line that each names, and their commands parse."""

import re
import shlex
from pathlib import Path

import pytest

from roller_tvm.cli import make_parser
from roller_tvm.tvm_env import line

from . import small_model

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```python\n(?P<code>.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^ {4}(roller-tvm [a-z].*)$", re.M)
# The pages measure as much as a user would; here plans are checked without, or one an operator is measured.
FEWER = {
    "10 * len(tasks)": "0", "trials=10)": "trials=0)", "trials=2)": "trials=1)", '"records", 1000)': '"records", 3)',
}  # fmt: skip


def blocks(page):
    """Return the mark and the code of each Python block of a page."""
    return [(found["mark"], found["code"]) for found in BLOCK.finditer(page.read_text())]


def test_every_block_says_its_line_or_why_it_does_not_run():
    marks = {(page.name, mark) for page in PAGES for mark, _ in blocks(page)}
    assert all(mark in ("relay", "relax") or (mark or "").startswith("no-run: ") for _, mark in marks), marks
    assert {"relay", "relax"} <= {mark for _, mark in marks}


@pytest.mark.te
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
def test_blocks_run(page, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnx")
    codes = [code for mark, code in blocks(page) if mark == line()]
    if not codes:
        pytest.skip(f"no block of {page.name} is for the {line()} line")
    monkeypatch.chdir(tmp_path)
    small_model.save("model.onnx")
    names = surroundings()
    for code in codes:
        for many, few in FEWER.items():
            code = code.replace(many, few)
        exec(compile(code, str(page), "exec"), names)


def surroundings():
    """Return the names that a page takes for given: a model of the user's own, imported, and its target."""
    import numpy as np
    import tvm

    names = {"tvm": tvm, "x": np.zeros((1, 3, 32, 32), "float32")}
    if line() == "relay":
        from tvm import relay

        from roller_tvm.relay.importers import load_model

        model = load_model("model.onnx")
        return {**names, "relay": relay, "mod": model.mod, "params": model.params, "target": tvm.target.Target("llvm")}
    from tvm import relax

    from roller_tvm.relax import load_model, prepare
    from roller_tvm.relax.targets import make_target

    target = make_target("llvm")
    mod = prepare(load_model("model.onnx").mod, target)
    return {**names, "relax": relax, "mod": mod, "params": None, "target": target}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page):
    text = re.sub(r"^\|.*$", "", page.read_text(), flags=re.M)  # tables of errors hold commands that are wrong
    for command in COMMAND.findall(text):
        words = shlex.split(command, comments=True)[1:]
        if words and not words[0].startswith("-"):
            make_parser(words[0]).parse_args(words)


def test_the_sites_pages_exist():
    named = re.findall(r"^  - [^:\n]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert "index.md" in named and all((ROOT / "docs" / name).is_file() for name in named)
    assert {p.name for p in (ROOT / "docs").glob("*.md")} == set(named)
