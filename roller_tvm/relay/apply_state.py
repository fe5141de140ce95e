"""Schedule steps applied to an Ansor State, which is what a record file can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.lower.applier import StepApplier
from roller_tvm.relay.loops import TeProgram
from roller_tvm.roller.steps import Step


class StateApplier(StepApplier):
    what = "Ansor State"

    def __init__(self, dag: Any, program: TeProgram) -> None:
        super().__init__(program.own_loops())
        self.state = dag.get_init_state()
        # Stages are addressed by number: cache stages replace the operations of all stages after them.
        # The program may have been read from other tensor objects of the same computation: order decides.
        self.numbers = {name: number for number, name in enumerate(_in_order(dag, program))}

    def _loop(self, stage: str, at: int) -> Any:
        return self.state.stages[self.numbers[stage]].iters[at]

    def _inserted(self, name: str, number: int) -> None:
        for other, at in self.numbers.items():
            if at >= number:
                self.numbers[other] = at + 1
        self.numbers[name] = number

    def split(self, stage: str, at: int, lengths: Sequence[int]) -> None:
        self.state.split(self.numbers[stage], self._loop(stage, at), list(lengths))

    def fuse(self, stage: str, at: Sequence[int]) -> None:
        self.state.fuse(self.numbers[stage], [self._loop(stage, p) for p in at])

    def reorder(self, stage: str, at: Sequence[int]) -> None:
        iters = self.state.stages[self.numbers[stage]].iters
        self.state.reorder(self.numbers[stage], [iters[p] for p in at])

    def annotate(self, stage: str, at: int, how: str) -> None:
        getattr(self.state, how)(self.numbers[stage], self._loop(stage, at))

    def bind(self, stage: str, at: int, thread: str) -> None:
        self.state.bind(self.numbers[stage], self._loop(stage, at), thread)

    def unroll_limit(self, stage: str, at: int, limit: int) -> None:
        self.state.pragma(self.numbers[stage], self._loop(stage, at), f"auto_unroll_max_step${limit}")

    def storage_align(self, stage: str, at: int, factor: int, offset: int) -> None:
        self.state.storage_align(self.numbers[stage], self._loop(stage, at), factor, offset)

    def compute_at(self, stage: str, target: str, at: int) -> None:
        self.state.compute_at(self.numbers[stage], self.numbers[target], self._loop(target, at))

    def inline(self, stage: str) -> None:
        self.state.compute_inline(self.numbers[stage])

    def cache_read(self, stage: str, scope: str, readers: Sequence[str], name: str) -> int:
        number = self.numbers[stage]
        self.state.cache_read(number, scope, [self.numbers[r] for r in readers])
        self._inserted(name, number + 1)
        return len(self.state.stages[number + 1].iters)

    def cache_write(self, stage: str, scope: str, name: str) -> None:
        number = self.numbers[stage]
        self.state.cache_write(number, scope)
        self._inserted(name, number)

    def rfactor(self, stage: str, at: int, position: int, name: str) -> None:
        number = self.numbers[stage]
        self.state.rfactor(number, self._loop(stage, at), position)
        self._inserted(name, number)


def _in_order(dag: Any, program: TeProgram) -> list[str]:
    """Return our stage names in the order of the DAG's operations."""
    names: list[str] = []
    for op in dag.ops:
        found = [name for name, own in program.ops.items() if own.same_as(op)]
        if not found:
            if len(dag.ops) == len(program.ops) and all(
                a.name == b.name for a, b in zip(dag.ops, program.ops.values(), strict=True)
            ):
                return list(program.ops)
            known = ", ".join(program.ops)
            raise ValueError(f"operation '{op.name}' of the DAG is not in the program (has {known})")
        names += found
    return names


def apply_steps_state(dag: Any, program: TeProgram, steps: Sequence[Step]) -> Any:
    """Return a ``State`` of the ``ComputeDAG`` with the steps applied.

    Raises
    ------
    MeasureError
        A step does not apply (kind 'schedule error'); the message names it.

    Examples
    --------
    >>> state = apply_steps_state(task.compute_dag, program, steps)  # doctest: +SKIP
    >>> schedule, args = task.compute_dag.apply_steps_from_state(state)  # doctest: +SKIP
    """
    applier = StateApplier(dag, program)
    applier.run(steps)
    return applier.state
