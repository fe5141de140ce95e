"""Rules of the code that reading its text can hold: broad excepts say what they expect, imports make no circle."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
BROAD = re.compile(r"except(\s+\(?.*\b(Base)?Exception\b.*)?:|suppress\((Base)?Exception\)")


@cache
def modules():
    """Return name -> (path, tree) of the modules of the product and the tools."""
    found = {}
    for top in ("roller_tvm", "python/roller_bench", "python/roller_check"):
        for path in (ROOT / top).rglob("*.py"):
            name = ".".join(path.relative_to((ROOT / top).parent).with_suffix("").parts).removesuffix(".__init__")
            found[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    return found


def typing_only(tree):
    """Return the imports that a type checker alone sees."""
    tests = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    return {id(part) for test in tests for part in ast.walk(test)}


def imported(name, known):
    """Return the modules of ours that one imports, wherever in its text."""
    path, tree = modules()[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    seen, hidden = set(), typing_only(tree)
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            seen |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            seen |= {inner if (inner := f"{base}.{alias.name}") in known else base for alias in node.names}
    return seen & known - {name}


def test_a_broad_except_says_what_it_expects():
    silent = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for top in ("roller_tvm", "python", "tests")
        for path in (ROOT / top).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if BROAD.search(line) and line.strip().startswith(("except", "with")) and "#" not in line
    ]
    assert not silent


def test_no_circle_of_imports_not_even_within_functions():
    """Packages themselves are left out: they hand out what is in them, by name, when it is asked for."""
    known = {name for name, (path, _) in modules().items() if path.name != "__init__.py"}
    graph = {name: imported(name, known) for name in known}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_a_circle_is_found(monkeypatch):
    texts = {"a.b": "def f():\n    from .c import g", "a.c": "from a import b"}
    made = {name: (ROOT / f"{name}.py", ast.parse(text)) for name, text in texts.items()}
    monkeypatch.setitem(globals(), "modules", lambda: made)
    assert imported("a.b", set(texts)) == {"a.c"} and imported("a.c", set(texts)) == {"a.b"}
