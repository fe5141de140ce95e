"""Files of operators: CSV with a row an operator, for ``roller-tvm plan --operators`` and for comparisons."""

from __future__ import annotations

import csv
from pathlib import Path

from roller_tvm.errors import BadInput

#: Required columns; a suite may have `group`, `weight` and `note` too.
COLUMNS = ("id", "operator", "params")


def read_operators(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file of operators as dictionaries from column to text.

    Raises
    ------
    BadInput
        The file cannot be read, or lacks one of ``COLUMNS``.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restval="")  # a short row lacks what its case then names
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"cannot be read: {told}", str(path), "give a CSV file") from error
    lacking = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
    if lacking:
        remedy = f"its first line must name the columns {', '.join(COLUMNS)}"
        raise BadInput(f"has no column {', '.join(lacking)}", str(path), remedy)
    return rows
