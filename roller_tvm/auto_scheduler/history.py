"""Measurements of a task by earlier runs, read from a record file."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.relay.records import Record, read_records


@dataclass
class History:
    """Earlier trials of one task, in order.

    Parameters
    ----------
    costs : dict of steps to float
        Time of every measured State in seconds, infinity if it failed. Keys are the State's steps as in a record.
    planned : set of steps
        Steps of the States recorded with a predicted time only.
    best_line : str
        Record of the fastest State, or '' if none has worked.

    Examples
    --------
    >>> History.read("new.json", task).best_line  # nothing is recorded yet
    ''
    """

    costs: dict[str, float] = field(default_factory=dict)
    planned: set[str] = field(default_factory=set)
    best_s: float = math.inf
    best_line: str = ""

    @classmethod
    def read(cls, path: str | os.PathLike[str], task: Any) -> History:
        """Return the history of a task, empty if the file is absent; other lines are skipped with a warning."""
        history = cls()
        key, target = str(task.workload_key), str(task.target)
        for record in read_records(path, strict=False):
            if record.workload_key == key and record.target == target:
                history.add(record)
        return history

    def add(self, record: Record) -> None:
        steps = steps_of(record.line)
        if not is_measured(record):
            self.planned.add(steps)
            return
        seconds = record.cost if record.error_no == 0 else math.inf
        self.costs[steps] = min(seconds, self.costs.get(steps, math.inf))
        if seconds < self.best_s:
            self.best_s, self.best_line = seconds, record.line

    def state(self, task: Any) -> Any:
        """Return the fastest State, or None if no State has worked."""
        from tvm.auto_scheduler.measure_record import load_record_from_string

        if not self.best_line:
            return None
        return task.compute_dag.infer_bound_from_state(load_record_from_string(self.best_line)[0].state)


def is_measured(record: Record) -> bool:
    """Return True if the record's cost was measured; a predicted cost is recorded with an elapsed time of 0."""
    return record.measured and json.loads(record.line)["r"][2] > 0


def steps_of(line: str) -> str:
    """Return a record line's schedule steps as JSON text: equal for equal States."""
    return json.dumps(json.loads(line)["i"][1][1])
