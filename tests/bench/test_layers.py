"""The tools among themselves; that the product imports none is a contract in pyproject.toml."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import roller_bench


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_tools_have_no_circle_not_even_one_hidden_in_a_function():
    root = Path(roller_bench.__file__).parent
    names = {p: ".".join(p.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
             for p in root.rglob("*.py")}  # fmt: skip
    known = set(names.values())
    below = {name: {m for m in imports(path) if m in known} - {name} for path, name in names.items()}
    assert len(list(TopologicalSorter(below).static_order())) == len(known)  # raises CycleError
