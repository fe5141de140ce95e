"""The plans of one task in the order in which they are measured."""

from __future__ import annotations

import functools
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.auto_scheduler.history import History, steps_of_state
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import RollerError
from roller_tvm.relay.candidates import make_candidates
from roller_tvm.relay.tasks import Task


@dataclass(frozen=True)
class Candidate:
    """A State with the plan that it was made of.

    Parameters
    ----------
    state : State
    plan : RankedPlan
    number : int
        Of its plan among those of the task.
    steps : str
        As a record writes them.
    """

    state: Any
    plan: Any
    number: int
    steps: str

    @property
    def seconds(self) -> float:
        return float(self.plan.estimate.seconds)


@dataclass
class Queue:
    """Candidates yet to be tried: every plan's first State, then the others.

    Parameters
    ----------
    task : SearchTask
    history : History
        What was measured is not tried again.
    first, limit : int
        Plans made at once, and at most, once those are used up.
    device : DeviceSpec or None
    reason : str
        Why there are none, or ''.
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
        """Plan a task; what stands in the way is told in ``reason``."""
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
        known = {c.steps for c in self.planned}
        if not known:
            self.reason = found.reason
        seen: set[int] = set()
        for state, number in found.states:
            candidate = Candidate(state, found.plans[number], len(known) + number, steps_of_state(self.task, state))
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
        """Make all plans instead of the first ones; False if that was done."""
        if self.first >= self.limit or self.device is None:
            return False
        self.first = self.limit
        self._plan(self.limit)
        return True

    def take(self, count: int) -> list[Candidate]:
        """The next ones to try."""
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
        """The plan's other States, if it has more, come next."""
        self.todo.extendleft(reversed(self.others.pop(candidate.number, [])))


def name_of(task: Any) -> str:
    """What to call a task: its description, else the function of its workload."""
    if str(task.desc):
        return str(task.desc)
    try:
        return str(json.loads(str(task.workload_key))[0])
    except (ValueError, IndexError, TypeError):
        return str(task.workload_key)[:40]


def device_for(device: DeviceSpec | str | None, target: Any) -> DeviceSpec:
    """The device that a user names, else the one that the target names.

    Raises
    ------
    RollerError
        There is no such device; the remedy says how to describe it.
    """
    return device if isinstance(device, DeviceSpec) else _device(device or str(target), not device)


@functools.cache
def _device(source: str, is_target: bool) -> DeviceSpec:
    from roller_tvm.relay.tuning import find_device

    return find_device(source, is_target)
