"""TVM's record functions, with a ``RecordToFile`` whose file survives crashes and takes several writers."""

# ruff: noqa: F403
from __future__ import annotations

import os
from typing import Any

from tvm.auto_scheduler import measure_record as _ansor
from tvm.auto_scheduler.measure import PythonBasedMeasureCallback
from tvm.auto_scheduler.measure_record import *

from roller_tvm.relay.records import RecordWriter
from roller_tvm.tuning.interrupt import Stopped


class RecordToFile(PythonBasedMeasureCallback):  # type: ignore[misc]
    """Write every measured State to a file, in Ansor's format.

    Parameters
    ----------
    filename : path
        Record file. Each batch of records is appended whole or not at all. Half a line at the end of the file, left
        by a program that was killed, is removed first.

    Examples
    --------
    >>> options = TuningOptions(10, measure_callbacks=[RecordToFile("records.json")])
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        self._writer = RecordWriter(filename)
        self._writer.mend()
        super().__init__()

    def callback(self, policy: Any, inputs: Any, results: Any) -> None:
        """Append a batch's records; TVM calls this after each batch."""
        pairs = zip(inputs, results, strict=True)
        lines = [str(_ansor.dump_record_to_string(i, r)).strip() + "\n" for i, r in pairs]
        try:
            self._writer.append("".join(lines))
        except KeyboardInterrupt as error:  # TVM passes on exceptions, but not this one
            raise Stopped("interrupted") from error


def __getattr__(name: str) -> Any:
    return getattr(_ansor, name)
