"""The product does not import the tools; the commands of tools are found by name."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import roller_bench
from roller_tvm import cli

PRODUCT = Path(cli.__file__).parents[1]
#: Tools that still stand among the product's folders.
TOOLS = {"kit", "replay"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_product_imports_no_tool():
    product = [p for p in PRODUCT.rglob("*.py") if not TOOLS & {*p.relative_to(PRODUCT).parts, p.stem}]
    assert len(product) > 100
    found = [f"{p}: {m}" for p in product for m in imports(p) if m.split(".")[0] == "roller_bench"]
    assert not found


def test_a_command_whose_package_is_not_installed_is_not_offered(monkeypatch, capsys):
    monkeypatch.setitem(cli.TOOLS, "compare", "no_such_package.command")
    with pytest.raises(SystemExit):
        cli.make_parser(None).parse_args(["--help"])
    told = capsys.readouterr().out
    assert "tune" in told and "    compare" not in told


def test_the_tools_have_no_circle_not_even_one_hidden_in_a_function():
    root = Path(roller_bench.__file__).parent
    names = {p: ".".join(p.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
             for p in root.rglob("*.py")}  # fmt: skip
    known = set(names.values())
    below = {name: {m for m in imports(path) if m in known} - {name} for path, name in names.items()}
    assert len(list(TopologicalSorter(below).static_order())) == len(known)  # raises CycleError
