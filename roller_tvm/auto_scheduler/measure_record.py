"""Records: TVM's, with a file that an interrupted run left half a line in mended before it is written again."""

# ruff: noqa: F403
from __future__ import annotations

import os
from typing import Any

from tvm.auto_scheduler import measure_record as _ansor
from tvm.auto_scheduler.measure_record import *

from roller_tvm.relay.records import RecordWriter


class RecordToFile(_ansor.RecordToFile):  # type: ignore[misc]
    """Writes every measured State to a file, in Ansor's format.

    Parameters
    ----------
    filename : path
        Appended to; half a line at its end, which an earlier run left when it was killed, is removed.

    Examples
    --------
    >>> options = TuningOptions(10, measure_callbacks=[RecordToFile("records.json")])  # doctest: +SKIP
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        RecordWriter(filename).mend()
        super().__init__(os.fspath(filename))


def __getattr__(name: str) -> Any:
    return getattr(_ansor, name)
