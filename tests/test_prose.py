"""Plain English, as far as it can be counted: docstrings, help texts, error messages and remedies of the package.

A text does not start with a relative word, and no sentence of it has more than two of them.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest

from roller_tvm import errors

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "roller_tvm", ROOT / "python" / "roller_bench", ROOT / "python" / "roller_check")
SOURCES = [path for package in PACKAGES for path in package.rglob("*.py")]
# Top-level folders and modules of the product, and the tools.
FOLDERS = sorted({"/".join(p.relative_to(ROOT).parts[:2]) for p in SOURCES}
                 - {"roller_tvm/__init__.py", "roller_tvm/version.py"})  # fmt: skip
# Words that a text must not start with.
STARTS = {
    "docstring": {"what", "that", "of", "where", "whether", "which"},
    "help": {"what", "that", "of", "where", "whether", "which"},
    "message": {"what", "that", "of"},
}
RELATIVE = re.compile(r"\b(what|that|which|where|whose|who)\b", re.I)
MOST_RELATIVE = 2

EXAMPLES = re.compile(r"^Examples?\n-{3,}\n.*?(?=^\w[\w ]*\n-{3,}\n|\Z)", re.M | re.S)
CODE = re.compile(r"(`+).*?\1", re.S)
# A blank line, a bullet, a parameter ("name : type"), a section's underline, the end of a sentence.
BREAK = re.compile(r"\n\s*\n|\n\s*[-*] |^[\w*, ]+ : .*$|^-{3,}$|[.!?](?=\s|$)", re.M)


def sentences(text):
    """Return the sentences of a text, without inline code and sections "Examples"."""
    text = CODE.sub("`", EXAMPLES.sub("", inspect.cleandoc(text)))
    return [" ".join(s.split()) for s in BREAK.split(text) if s and s.strip()]


def faults(kind, text):
    """Yield one line per broken rule of a text; `kind` is a key of `STARTS`."""
    first = re.match(r"\w+", text.strip())
    if first and first[0].lower() in STARTS[kind]:
        yield f"starts with {first[0]!r}: {' '.join(text.split())[:100]}"
    for sentence in sentences(text):
        words = RELATIVE.findall(sentence)
        if len(words) > MOST_RELATIVE:
            yield f"{len(words)} relative words ({', '.join(words)}) in one sentence: {sentence}"


def literals(node):
    """Yield the string literals of an expression, a placeholder for each value of an f-string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "`" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from literals(node.left)


def called(call):
    """Return the last name of the called function: `RecordError` of `errors.RecordError(...)`."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def error_classes(trees):
    """Return the names of the classes of `roller_tvm.errors` and of all classes derived from them."""
    names = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.RollerError)}
    classes = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    while derived := {c.name for c in classes for b in c.bases if getattr(b, "id", "") in names} - names:
        names |= derived
    return names


def texts(tree, classes):
    """Yield `(kind, line, text)` for each docstring, help text, and message or remedy of an error."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if doc := ast.get_docstring(node):
                yield "docstring", node.body[0].lineno, doc
        elif isinstance(node, ast.Call):
            messages = node.args if called(node) in classes else []
            found = [("message", a) for a in messages]
            found += [("message", k.value) for k in node.keywords if k.arg == "remedy"]
            found += [("help", k.value) for k in node.keywords if k.arg == "help"]
            for kind, argument in found:
                for text in literals(argument):
                    yield kind, argument.lineno, text


def check(source, classes=frozenset({"RecordError"})):
    """Return `line: fault` for each broken rule of a module's source."""
    return [f"{line}: {f}" for kind, line, text in texts(ast.parse(source), classes) for f in faults(kind, text)]


@pytest.fixture(scope="module")
def classes():
    return error_classes([ast.parse(p.read_text(encoding="utf-8")) for p in SOURCES])


@pytest.mark.parametrize("folder", FOLDERS)
def test_plain(folder, classes):
    path = ROOT / folder
    found = [
        f"{p.relative_to(ROOT)}:{fault}"
        for p in sorted(path.rglob("*.py") if path.is_dir() else [path])
        for fault in check(p.read_text(encoding="utf-8"), classes)
    ]
    assert not found, f"{len(found)} texts to rewrite:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('"""What is below 0."""', "starts with 'What'"),
        ('def f():\n    """Whether it runs."""', "starts with 'Whether'"),
        ('def f():\n    """Return what that is which waits. Good."""', "3 relative words"),
        ('def f():\n    """Fine.\n\n    x : int\n        Rows that hold what that is.\n    """', "3 relative words"),
        ('p.add_argument("--x", help="of all records")', "starts with 'of'"),
        ('raise RecordError(f"{n} of those that hold what that is")', "3 relative words"),
        ('raise errors.RecordError("no", remedy="of one" if x else "two")', "starts with 'of'"),
    ],
)
def test_finds(source, fault):
    (found,) = check(source)
    assert fault in found


@pytest.mark.parametrize(
    "source",
    [
        '"""Return the rows. One that waits is a row that runs. Which is: `what that which where`."""',
        'def f():\n    """Return.\n\n    Examples\n    --------\n    >>> what, that, which\n    """',
        'raise RecordError(f"{what} fails", "where it is")',
        'raise RecordError(f"{what} fails", f"{x}" + "of")',
        'p.add_argument("--x", help="report only the first records")',
        'raise ValueError("what is wrong")',
    ],
)
def test_passes(source):
    assert check(source) == []
