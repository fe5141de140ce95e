"""Plans of one task, in the order in which they are measured."""

from __future__ import annotations

import functools
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.auto_scheduler.history import History, steps_of
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import RollerError
from roller_tvm.relay.candidates import make_candidates
from roller_tvm.relay.tasks import Task, find_device
from roller_tvm.relay.worker_side import record_line


@dataclass(frozen=True, eq=False)
class Candidate:
    """A State and the plan it was made from.

    Parameters
    ----------
    state : State
    plan : RankedPlan
    number : int
        Position of the plan among the task's plans.
    line : str
        The State's record.
    """

    state: Any
    plan: Any
    number: int
    line: str

    @functools.cached_property
    def steps(self) -> str:
        """Schedule steps as JSON text, as in a record."""
        return steps_of(self.line)

    @property
    def seconds(self) -> float:
        return float(self.plan.estimate.seconds)


@dataclass
class Queue:
    """Candidates yet to be tried: the first State of every plan, then the plans' other States.

    Parameters
    ----------
    task : SearchTask
    history : History
        Earlier measurements; States in it are not tried again.
    first, limit : int
        Number of plans made at first, and the most plans made once those are used up.
    device : DeviceSpec or None
    reason : str
        Reason that there are no candidates, or ''.
    """

    task: Any
    history: History
    first: int
    limit: int
    device: DeviceSpec | None = None
    reason: str = ""
    todo: deque[Candidate] = field(default_factory=deque)
    others: dict[int, list[Candidate]] = field(default_factory=dict)
    planned: list[Candidate] = field(default_factory=list)

    @classmethod
    def of_task(cls, task: Any, device: DeviceSpec | str | None, first: int, limit: int, history: History) -> Queue:
        """Plan a task; if that fails, the returned queue is empty and its ``reason`` says why."""
        queue = cls(task, history, min(first, limit), limit)
        try:
            queue.device = device_for(device, task.target).built_by_tvm()  # a LocalBuilder is
        except RollerError as error:
            queue.reason = f"{error.what}; {error.remedy}"
            return queue
        queue._plan(queue.first)
        return queue

    def _plan(self, count: int) -> None:
        assert self.device is not None
        task = Task(0, name_of(self.task), 1, self.task, float(self.task.compute_dag.flop_ct))
        found = make_candidates(task, self.device, count)
        states = found.applied()
        known = {c.steps for c in self.planned}
        if not known:
            self.reason = found.reason
        seen: set[int] = set()
        for plan, state in states:
            number, line = plan.number, record_line(self.task, state)
            candidate = Candidate(state, plan.ranked, len(known) + number, line)
            if candidate.steps in known:
                continue
            self.planned.append(candidate)
            if candidate.steps in self.history.costs:
                seen.add(number)
            elif number in seen:
                self.others.setdefault(candidate.number, []).append(candidate)
            else:
                seen.add(number)
                self.todo.append(candidate)

    def extend(self) -> bool:
        """Make up to `limit` plans in place of the first ones; return False if that was done already."""
        if self.first >= self.limit or self.device is None:
            return False
        self.first = self.limit
        self._plan(self.limit)
        return True

    def take(self, count: int) -> list[Candidate]:
        """Return up to `count` candidates to try next."""
        taken: list[Candidate] = []
        while len(taken) < count:
            if self.todo:
                taken.append(self.todo.popleft())
            elif not self.extend():
                if not self.others:
                    break
                self.todo.extend(c for number in sorted(self.others) for c in self.others[number])
                self.others.clear()
        return taken

    def failed(self, candidate: Candidate) -> None:
        """Put the other States of a failed candidate's plan first in the queue."""
        self.todo.extendleft(reversed(self.others.pop(candidate.number, [])))


def name_of(task: Any) -> str:
    """Return a task's display name: its description, else its workload's function, else 40 characters of its key."""
    if str(task.desc):
        return str(task.desc)
    try:
        return str(json.loads(str(task.workload_key))[0])
    except (ValueError, IndexError, TypeError):
        return str(task.workload_key)[:40]


def device_for(device: DeviceSpec | str | None, target: Any) -> DeviceSpec:
    """Return the user's device if one is given, else the device that the target names.

    Raises
    ------
    RollerError
        No device has that name; the remedy says how to describe one.
    """
    return device if isinstance(device, DeviceSpec) else _device(device or str(target), not device)


@functools.cache
def _device(source: str, is_target: bool) -> DeviceSpec:
    return find_device(source, is_target)
