"""Rules of the code that reading its text can hold: excepts, imports, one number for one name of the core."""

import ast
import re
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Folders whose rules, plans and predictions share numbers.
CORE = ("ir", "device", "roller", "micro_perf", "recipes", "planner", "rammer", "codegen")
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


def is_number(node):
    """Whether an expression is of numbers alone."""
    known = ast.operator | ast.unaryop | ast.expr_context | ast.BinOp | ast.UnaryOp | ast.Tuple
    return node is not None and all(
        isinstance(part, known) or isinstance(part, ast.Constant) and isinstance(part.value, int | float)
        for part in ast.walk(node)
    )


def numbers(tree):
    """Yield (name, value) of a module's public constants that are numbers, or tuples of numbers."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        pairs = [(target, getattr(node, "value", None))]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        for name, value in pairs:
            if isinstance(name, ast.Name) and name.id.isupper() and name.id[0] != "_" and is_number(value):
                yield name.id, ast.unparse(value)


def test_a_name_of_the_core_has_one_number():
    values = defaultdict(set)
    for module, (_, tree) in modules().items():
        if module.startswith(tuple(f"roller_tvm.{folder}." for folder in CORE)):
            for name, value in numbers(tree):
                values[name].add((value, module))
    assert not {name: found for name, found in values.items() if len({value for value, _ in found}) > 1}


def test_two_numbers_of_one_name_are_seen():
    tree = ast.parse("A = 1\nA, B = 2, (3, -4)\n_C = 5\nD = f(6)\ne = 7\nF: int = 1 << 8\nG = '9'")
    assert list(numbers(tree)) == [("A", "1"), ("A", "2"), ("B", "(3, -4)"), ("F", "1 << 8")]
