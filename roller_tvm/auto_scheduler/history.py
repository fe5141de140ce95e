"""What earlier runs measured of a task, read from a record file."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.relay.measure import record_line
from roller_tvm.relay.records import Record, read_records


@dataclass
class History:
    """Trials of one task, in their order.

    Parameters
    ----------
    costs : dict of steps to float
        Seconds of every State measured, infinite where it failed; by its steps as a record writes them.
    planned : set of steps
        States recorded with a predicted time only.
    best_line : str
        The record of the best one.

    Examples
    --------
    >>> History.read("records.json", task).best_s  # doctest: +SKIP
    0.000123
    """

    costs: dict[str, float] = field(default_factory=dict)
    planned: set[str] = field(default_factory=set)
    best_s: float = math.inf
    best_line: str = ""

    @classmethod
    def read(cls, path: str | os.PathLike[str], task: Any) -> History:
        """The history of a task; of an absent file, none. Lines that are no records are left out with a warning."""
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
        """The best State, or None."""
        from tvm.auto_scheduler.measure_record import load_record_from_string

        if not self.best_line:
            return None
        return task.compute_dag.infer_bound_from_state(load_record_from_string(self.best_line)[0].state)


def is_measured(record: Record) -> bool:
    """Whether a record's cost was measured: measuring takes time, predicting is written as taking none."""
    return record.measured and json.loads(record.line)["r"][2] > 0


def steps_of(line: str) -> str:
    """The schedule steps of a record line, as text: equal for equal States."""
    return json.dumps(json.loads(line)["i"][1][1])


def steps_of_state(task: Any, state: Any) -> str:
    return steps_of(record_line(task, state))
