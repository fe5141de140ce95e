#!/usr/bin/env python3
"""Mutants of the core: one number, comparison or sign changed at a time; do the tests notice?

    python tests/mutants.py --count 200 --seed 1 --output build/mutants.jsonl

A mutant lives in a fork of this process that imports the package with one place changed. First every test of the core
is run once, to see which functions it calls; a mutant then runs the tests that call its function, until two test files
have failed. Results are kept line by line: a second run, or one beside it with
another ``--part``, goes on with what is missing. The places are drawn by the seed alone.

Exit codes: 0 at least 90 % were killed and no test file is the only killer of more than a fifth of them, 1 otherwise,
2 the tests fail without any mutant.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np  # noqa: F401 - once, for all forks
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("roller", "micro_perf", "recipes", "planner", "rammer")
#: Folders of their tests.
CORE = ("expr", "plan", "model", "explain", "lower", "rammer")
#: Wanted share of killed mutants, and the most that one test file may be the only killer of.
WANTED, ALONE = 0.9, 0.2
#: Seconds of CPU time for the tests of one mutant; one that makes them run longer is killed.
LIMIT_S = 180
#: Seconds of CPU time in which a second file is looked for.
SECOND_S = 15
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"}
TEXT = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
        ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//"}  # fmt: skip
# Failures are counted, not shrunk, and each run draws the same examples.
hypothesis.settings.register_profile("mutants", database=None, derandomize=True, deadline=None,
                                     phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed place.

    Parameters
    ----------
    path : str
        File, relative to the repository.
    line : int
    start, end : int
        Characters of the file that `new` replaces.
    old, new : str
    """

    path: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.old} -> {self.new} (character {self.start})"

    def text(self) -> str:
        """Return the changed file."""
        source = (ROOT / self.path).read_text()
        return source[: self.start] + self.new + source[self.end :]


def places(path: Path) -> Iterator[Mutant]:
    """Yield the mutants of one file.

    Examples
    --------
    >>> {f"{m.old} -> {m.new}" for m in places(Path(__file__))} >= {"0.9 -> (0.9 * 3)", "1 -> 2", "== -> !="}
    True
    """
    source = path.read_text()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def position(line: int, column: int) -> int:  # columns count bytes
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())

    tree = ast.parse(source)
    texts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    name = str(path.relative_to(ROOT))
    for node in ast.walk(tree):
        if id(node) in texts:
            continue
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            start, end = position(node.lineno, node.col_offset), position(node.end_lineno, node.end_col_offset)
            near = abs(node.value) < 3 and type(node.value) is int or node.value == 0
            new = repr(node.value + 1) if near else f"({node.value!r} * 3)"
            yield Mutant(name, node.lineno, start, end, source[start:end], new)
        elif isinstance(node, ast.Compare | ast.BinOp):
            left, right = (node.left, node.comparators[0]) if isinstance(node, ast.Compare) else (node.left, node.right)
            kind = type(node.ops[0] if isinstance(node, ast.Compare) else node.op)
            new = (COMPARISONS if isinstance(node, ast.Compare) else SIGNS).get(kind)
            start, end = position(left.end_lineno, left.end_col_offset), position(right.lineno, right.col_offset)
            at = source.find(TEXT.get(kind, "\0"), start, end)
            words = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (left, right))
            if new and at >= 0 and not words:
                yield Mutant(name, left.end_lineno, at, at + len(TEXT[kind]), TEXT[kind], new)


def core() -> list[Path]:
    """Return the files that are changed."""
    return [path for folder in FOLDERS for path in sorted((ROOT / "roller_tvm" / folder).rglob("*.py"))]


def drawn(count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of the core."""
    return random.Random(seed).sample([mutant for path in core() for mutant in places(path)], count)


def examples() -> list[str]:
    """Return the tests of the core's examples in docstrings."""
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in core()
             if path.name != "__init__.py" and "\n    >>> " in path.read_text()]  # fmt: skip
    return [f"tests/docs/test_examples.py::test_examples[{name}]" for name in names]


class Changed(importlib.machinery.SourceFileLoader):
    """Loads one module of the package with its place changed; stands first among the finders of a fork."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"),
                         str(ROOT / mutant.path))  # fmt: skip
        self.text = mutant.text()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return where the changed module is, None of any other."""
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> Any:
        """Return the changed module's code."""
        return compile(self.text, self.path, "exec", dont_inherit=True)


class Calls:
    """pytest plugin: which functions of the core each test calls, and how long it takes.

    The calls of a fixture that several tests share are those of each of them.
    """

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.seen: set[tuple[str, int]] = set()
        self.fixtures: dict[Any, set[tuple[str, int]]] = defaultdict(set)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        """Note the calls of one fixture, those that it uses with it."""
        outer, self.seen = self.seen, self.fixtures[fixturedef]
        try:
            return (yield)
        finally:
            outer |= self.seen
            self.seen = outer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Note the calls of one test, its fixtures with it."""
        self.seen = set()
        core = str(ROOT / "roller_tvm")
        start = time.process_time()

        def called(frame: Any, event: str, argument: Any) -> None:
            code = frame.f_code
            if code.co_filename.startswith(core):
                self.seen.add((code.co_filename, code.co_firstlineno))

        sys.settrace(called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            used = [self.fixtures[f] for found in item._fixtureinfo.name2fixturedefs.values() for f in found]
            by_file = defaultdict(list)
            for path, line in sorted(self.seen.union(*used)):
                by_file[str(Path(path).relative_to(ROOT))].append(line)
            self.told[item.nodeid] = {"calls": by_file, "seconds": time.process_time() - start}


class Killers:
    """pytest plugin: runs some tests, the fastest first, until two files have failed."""

    def __init__(self, tests: dict[str, float]) -> None:
        self.tests, self.told, self.until = tests, [], 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests asked for."""
        items[:] = [item for item in items if item.nodeid in self.tests]
        items.sort(key=lambda item: self.tests[item.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Pass over what is left of a file that has failed."""
        if item.nodeid.partition("::")[0] in self.told:
            pytest.skip("its file has failed")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self) -> None:
        """End a while after the first file has failed: a second would be welcome, no more."""
        if self.told and time.process_time() > self.until:
            pytest.exit("one file has failed", returncode=1)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a file that has failed."""
        name = report.nodeid.partition("::")[0]
        if report.failed and name not in self.told:
            self.told.append(name)
            self.until = time.process_time() + SECOND_S
            if len(self.told) == 2:
                pytest.exit("two files have failed", returncode=1)


def forked(plugin: Calls | Killers, tests: list[str], before: Callable[[], None]) -> tuple[int, Any]:
    """Return pytest's exit code in a fork, and what the plugin has to tell."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told")
        child = os.fork()
        if not child:
            code = 70
            with suppress(BaseException):  # whatever happens, the fork ends here
                signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
                nothing = os.open(os.devnull, os.O_RDWR)
                for stream in range(3):
                    os.dup2(nothing, stream)
                before()
                marks = ["-m", "not (tvm or relax or te or slow)", "-p", "no:cacheprovider", "--tb=no", "-q"]
                profile = ["--hypothesis-profile=mutants"]
                code = int(pytest.main([*marks, *profile, f"--rootdir={ROOT}", *tests], plugins=[plugin]))
                told.write_text(json.dumps(plugin.told))
            os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status, json.loads(told.read_text()) if told.exists() else None


def run_on(mutant: Mutant, tests: dict[str, float]) -> list[str]:
    """Return the test files that fail on a mutant, two at most; ``time`` and ``import`` are killers too."""
    plugin, files = Killers(tests), sorted({name.partition("::")[0] for name in tests})
    code, told = forked(plugin, files, lambda: sys.meta_path.insert(0, Changed(mutant)))
    if code == -signal.SIGPROF:
        return ["time"]
    return told if told or code in (0, 5) else ["import"]


def function_of(mutant: Mutant) -> int:
    """Return the line on which the mutant's function begins, its first decorator's if it has any; 0 in no function."""
    inside = 0
    for node in ast.walk(ast.parse((ROOT / mutant.path).read_text())):  # outer functions come before inner ones
        if isinstance(node, ast.FunctionDef) and node.lineno <= mutant.line <= node.end_lineno:
            inside = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return inside


def killers(mutant: Mutant, known: dict[str, Any]) -> list[str]:
    """Return the test files that kill a mutant, two at most, among the tests that call its function.

    A number outside all functions is asked of the test files that call anything in its file, of all if none does.
    """
    line, seconds = function_of(mutant), {name: test["seconds"] for name, test in known.items()}
    lines = {name: test["calls"].get(mutant.path, ()) for name, test in known.items()}
    files = {name.partition("::")[0] for name, called in lines.items() if called}
    near = {name: seconds[name] for name, called in lines.items()
            if (line in called if line else name.partition("::")[0] in files)}  # fmt: skip
    if not near and not line:
        near = seconds
    return run_on(mutant, near) if near else []


def main() -> int:
    """Run the mutants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="number of mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "build/mutants.jsonl", help="results, one a line")
    parser.add_argument(
        "--part", default="0/1", help="0/2: every second mutant, from the first on (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant after these seconds")
    parser.add_argument("tests", nargs="*", help="test files and folders (default: those of the core)")
    args = parser.parse_args()
    begun = time.monotonic()
    tests = args.tests or [*(f"tests/{name}" for name in CORE), *examples()]
    os.chdir(ROOT)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    calls = args.output.with_suffix(".calls.json")
    if not calls.exists():
        code, told = forked(Calls(), tests, lambda: None)
        if code:
            print(f"the tests fail without any mutant (pytest: {code})", file=sys.stderr)
            return 2
        calls.write_text(json.dumps(told))
    known = json.loads(calls.read_text())

    def results() -> dict[str, list[str]]:
        text = args.output.read_text() if args.output.exists() else ""
        return {row["mutant"]: row["killers"] for row in map(json.loads, text.splitlines())}

    mutants = drawn(args.count, args.seed)
    part, parts = map(int, args.part.split("/"))
    done = results()
    for number, mutant in enumerate(mutants):
        if number % parts == part and str(mutant) not in done and time.monotonic() - begun < args.seconds:
            start = time.perf_counter()
            row = {"mutant": str(mutant), "killers": killers(mutant, known)}
            with args.output.open("a") as out:
                print(json.dumps(row | {"seconds": round(time.perf_counter() - start, 1)}), file=out)
            print(f"{number + 1}/{len(mutants)} {mutant}: {' '.join(row['killers']) or 'SURVIVES'}", flush=True)
    done = {name: found for name, found in results().items() if name in set(map(str, mutants))}
    survivors = [name for name, found in done.items() if not found]
    alone = Counter(found[0] for found in done.values() if len(found) == 1 and found[0].startswith("tests"))
    print(f"{len(done) - len(survivors)} of {len(done)} killed ({len(mutants)} drawn); by one file alone:")
    for name, times in alone.most_common():
        print(f"  {times:4d}  {name}")
    print("\n".join(["survivors:", *(f"  {name}" for name in survivors)]))
    most = max(alone.values(), default=0)
    return 0 if len(survivors) <= (1 - WANTED) * len(mutants) and most <= ALONE * len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
