#!/usr/bin/env python3
"""Mutants of the core: one number, comparison or sign changed at a time; do the tests notice?

    python tests/mutants.py --count 200 --seed 1 --output build/mutants.jsonl

Each mutant is a copy of the package with one place changed; the tests of the core run on it until one fails. Results
are kept line by line, and a second run goes on with what is missing. The places are drawn by the seed alone.

Exit codes: 0 at least 90 % were killed, 1 fewer, 2 the tests fail without any mutant.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("roller", "micro_perf", "recipes", "planner", "rammer")
#: Wanted share of killed mutants.
WANTED = 0.9
#: Seconds for the tests of one mutant; one that makes them run longer is killed.
LIMIT_S = 600
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"}
TEXT = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
        ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//"}  # fmt: skip


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
        return f"{self.path}:{self.line} {self.old} -> {self.new}"

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


def drawn(count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of the core."""
    files = [path for folder in FOLDERS for path in sorted((ROOT / "roller_tvm" / folder).rglob("*.py"))]
    every = [mutant for path in files for mutant in places(path)]
    return random.Random(seed).sample(every, count)


def killer(mutant: Mutant | None, tests: list[str]) -> str:
    """Return the file of the first test that fails on a mutant, or ''."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        package = base / "roller_tvm"
        if mutant is not None:
            subprocess.run(["cp", "-r", str(ROOT / "roller_tvm"), str(package)], check=True)
            (base / mutant.path).write_text(mutant.text())
        found = [folder, str(ROOT), str(ROOT / "python")]
        words = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=no",
                 "-m", "not (tvm or relax or te)", "-o", f"pythonpath={' '.join(found)}", *tests]  # fmt: skip
        # Processes that a test starts take the changed package too, not that of the folder they run in.
        own = {"PYTHONPATH": os.pathsep.join(found), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        environment = {**os.environ, **own}
        try:
            done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return "time"
    failed = [line.split()[1].partition("::")[0] for line in done.stdout.splitlines()
              if line.startswith(("FAILED", "ERROR"))]  # fmt: skip
    return failed[0] if failed else "" if done.returncode == 0 else "collection"


def main() -> int:
    """Run the mutants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="number of mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "build/mutants.jsonl", help="results, one a line")
    parser.add_argument("tests", nargs="*", help="test files and folders (default: those of the core)")
    args = parser.parse_args()
    tests = args.tests or [f"tests/{name}" for name in (*FOLDERS, "plan", "model", "explain", "lower")
                           if (ROOT / "tests" / name).exists()]  # fmt: skip
    args.output.parent.mkdir(parents=True, exist_ok=True)
    known = {}
    if args.output.exists():
        known = {row["mutant"]: row for row in map(json.loads, args.output.read_text().splitlines())}
    if not known and (broken := killer(None, tests)):
        print(f"{broken} fails without any mutant", file=sys.stderr)
        return 2
    mutants = drawn(args.count, args.seed)
    with args.output.open("a") as out:
        for number, mutant in enumerate(mutants, 1):
            if str(mutant) not in known:
                start = time.perf_counter()
                row = {"mutant": str(mutant), "killer": killer(mutant, tests), **asdict(mutant)}
                known[str(mutant)] = row | {"seconds": round(time.perf_counter() - start, 1)}
                print(json.dumps(known[str(mutant)]), file=out, flush=True)
                print(f"{number}/{len(mutants)} {mutant}: {row['killer'] or 'SURVIVES'}", flush=True)
    rows = [known[str(m)] for m in mutants]
    killers = Counter(row["killer"] for row in rows if row["killer"])
    survivors = [row["mutant"] for row in rows if not row["killer"]]
    print(f"{len(rows) - len(survivors)} of {len(rows)} killed; first by:")
    for name, times in killers.most_common():
        print(f"  {times:4d}  {name}")
    print("\n".join(["survivors:", *(f"  {name}" for name in survivors)]))
    return 0 if len(survivors) <= (1 - WANTED) * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
