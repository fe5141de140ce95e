"""Schedule steps applied to a ``te.Schedule``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.lower.applier import StepApplier
from roller_tvm.relay.loops import TeProgram
from roller_tvm.roller.steps import Step


class TeApplier(StepApplier):
    what = "te.Schedule"

    def __init__(self, program: TeProgram) -> None:
        from tvm import te

        super().__init__(program.own_loops())
        self._te = te
        outputs = [t.op for t in program.tensors if isinstance(t.op, te.ComputeOp)]
        self.schedule = te.create_schedule(outputs)
        # A te Stage object stays the same while its operation is replaced by cache stages.
        self.stages: dict[str, Any] = {name: self.schedule[op] for name, op in program.ops.items()}

    def _loop(self, stage: str, at: int) -> Any:
        return self.stages[stage].leaf_iter_vars[at]

    def split(self, stage: str, at: int, lengths: Sequence[int]) -> None:
        outer = self._loop(stage, at)
        for length in reversed(lengths):
            outer, _ = self.stages[stage].split(outer, factor=length)

    def fuse(self, stage: str, at: Sequence[int]) -> None:
        self.stages[stage].fuse(*(self._loop(stage, p) for p in at))

    def reorder(self, stage: str, at: Sequence[int]) -> None:
        self.stages[stage].reorder(*(self._loop(stage, p) for p in at))

    def annotate(self, stage: str, at: int, how: str) -> None:
        getattr(self.stages[stage], how)(self._loop(stage, at))

    def bind(self, stage: str, at: int, thread: str) -> None:
        self.stages[stage].bind(self._loop(stage, at), self._te.thread_axis(thread))

    def unroll_limit(self, stage: str, at: int, limit: int) -> None:
        loop = self._loop(stage, at)
        self.stages[stage].pragma(loop, "auto_unroll_max_step", limit)
        self.stages[stage].pragma(loop, "unroll_explicit", True)  # as an Ansor State does

    def storage_align(self, stage: str, at: int, factor: int, offset: int) -> None:
        self.stages[stage].storage_align(self._loop(stage, at), factor, offset)

    def compute_at(self, stage: str, target: str, at: int) -> None:
        self.stages[stage].compute_at(self.stages[target], self._loop(target, at))

    def inline(self, stage: str) -> None:
        self.stages[stage].compute_inline()

    def cache_read(self, stage: str, scope: str, readers: Sequence[str], name: str) -> int:
        tensor = self.stages[stage].origin_op.output(0)
        copy = self.schedule.cache_read(tensor, scope, [self.stages[r].origin_op for r in readers])
        self.stages[name] = self.schedule[copy]
        return len(tensor.shape)

    def cache_write(self, stage: str, scope: str, name: str) -> None:
        op = self.stages[stage].origin_op  # the schedule finds no stage by an operation that rfactor put there
        outputs = [op.output(i) for i in range(op.num_outputs)]
        copies = self.schedule.cache_write(outputs, scope)
        self.stages[name] = self.schedule[copies[0]]

    def rfactor(self, stage: str, at: int, position: int, name: str) -> None:
        op = self.stages[stage].origin_op  # as above, where a stage is split again
        parts = self.schedule.rfactor(op.output(0), self._loop(stage, at), position)
        first = parts if not isinstance(parts, (list, tuple)) and hasattr(parts, "op") else parts[0]
        self.stages[name] = self.schedule[first]


def apply_steps_te(program: TeProgram, steps: Sequence[Step]) -> tuple[Any, list[Any]]:
    """Return a ``te.Schedule`` with the steps applied, and the list of tensors to lower it with.

    Raises
    ------
    MeasureError
        A step does not apply (kind 'schedule error'); the message names it.

    Examples
    --------
    >>> schedule, args = apply_steps_te(program, steps)  # doctest: +SKIP
    >>> tvm.lower(schedule, args)  # doctest: +SKIP
    """
    applier = TeApplier(program)
    applier.run(steps)
    return applier.schedule, list(program.tensors)
