"""Tools beside the product are found by name; without them the product says what is missing."""

import sys

import pytest

from roller_tvm.cli import main
from roller_tvm.errors import BadInput
from roller_tvm.tools import tool


def test_a_tool_that_is_not_installed_is_one_line_with_a_remedy(monkeypatch, capsys):
    for name in [m for m in sys.modules if m.startswith(("roller_check.", "roller_bench."))]:
        monkeypatch.delitem(sys.modules, name)
    for package in ("roller_check", "roller_bench"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadInput, match="the package roller_check is not installed") as caught:
        tool("roller_check.build")
    assert "PYTHONPATH" in caught.value.remedy
    assert main(["replay", "records.json", "--device", "v100"]) == BadInput.exit_code
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "the package roller_bench is not installed" in said


def test_what_a_tool_itself_lacks_is_told_as_it_is(monkeypatch):
    monkeypatch.delitem(sys.modules, "roller_check.build", raising=False)
    monkeypatch.setitem(sys.modules, "roller_check.translate", None)
    monkeypatch.setitem(sys.modules, "hashlib", None)
    with pytest.raises(ModuleNotFoundError, match="hashlib"):
        tool("roller_check.build")
