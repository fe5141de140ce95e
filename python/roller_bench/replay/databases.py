"""Find MetaSchedule's databases among paths by their file names, without asking TVM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roller_tvm.errors import BadInput
from roller_tvm.tuning.record_rules import NOTES, RECORDS, WORKLOADS

from .records import SUFFIXES

#: Ends the name of a file that is gzipped.
PACKED = ".gz"


def part_of_database(path: Path) -> bool:
    """Return True if a file is named like a part of a database.

    Examples
    --------
    >>> part_of_database(Path("work_dir/database_workload.json.gz")), part_of_database(Path("work_dir/conv2d.json"))
    (True, False)
    """
    return path.name.removesuffix(PACKED) in (WORKLOADS, RECORDS)


def file_of(folder: Path, name: str) -> Path:
    """Return the path of a database's file, plain or gzipped.

    Raises
    ------
    BadInput
        The folder has no such file.
    """
    for path in (folder / name, folder / f"{name}{PACKED}"):
        if path.is_file():
            return path
    raise BadInput(f"has no {name}", str(folder), f"a database of MetaSchedule is {WORKLOADS} and {RECORDS}")


def apart(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Separate paths into the folders of databases (given or below them) and the other paths.

    A file of a database stands for its folder.
    """
    databases: dict[Path, None] = {}
    others: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*")) if p.name.endswith(SUFFIXES)]
            folders = {p.parent for p in inside if part_of_database(p)}
            databases.update(dict.fromkeys(sorted(folders)))
            notes = [p for p in inside if p.parent in folders and (part_of_database(p) or p.name == NOTES)]
            others += [p for p in inside if p not in notes] if folders else [path]
        elif part_of_database(path):
            databases[path.parent] = None
        else:
            others.append(path)
    return list(databases), others
