"""Counts of all runs in one file: JSON lines, a row for each line of TVM, commit and kind of machine.

Sessions on other machines and at other commits add up; runs of the same three are one row.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roller_tvm.folders import beside

#: What names a row.
KEY = ("kind", "commit", "machine")


def key(kind: str) -> dict[str, str]:
    """Return what names the row of a run here and now: 'relax', 'relay' or 'cuda', the commit, the machine's kind."""
    from roller_tvm.device.cpu_detect import detect_cpu

    folder = Path(__file__).parent
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True)
    facts = detect_cpu()
    return {"kind": kind, "commit": said.stdout.strip() or "unknown", "machine": f"{facts.model}, {facts.cores} cores"}


def added(path: Path, named: Mapping[str, str], first: int, last: int, count: Mapping[str, int]) -> None:
    """Add the counts of the seeds from `first` to `last` to a file; whole or not at all."""
    rows = read(path)
    row: dict[str, Any] = {**named, "seeds": [], "models": 0}
    for old in rows:
        if all(old[field] == named[field] for field in KEY):
            row = old
            break
    else:
        rows.append(row)
    row["models"] += sum(count.values())
    for outcome, number in count.items():
        row[outcome] = row.get(outcome, 0) + number
    before = row["seeds"]
    if before and before[-1][1] == first - 1:
        before[-1][1] = last
    else:
        before.append([first, last])
    with beside(path) as made:
        made.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none if there is none."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def totals(path: Path) -> dict[str, Counter[str]]:
    """Return the counts of each kind over all rows."""
    found: dict[str, Counter[str]] = {}
    for row in read(path):
        numbers = {name: value for name, value in row.items() if isinstance(value, int)}
        found.setdefault(row["kind"], Counter()).update(numbers)
    return found
