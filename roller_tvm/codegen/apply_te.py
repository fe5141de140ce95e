"""Schedule steps applied to an Ansor State, which is what a record file can hold, and so to a ``te.Schedule``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roller_tvm.codegen.applier import StepApplier
from roller_tvm.roller.steps import CacheRead, Inline, Pack, Step


@dataclass(frozen=True)
class TeProgram:
    """A TE program with our names for its operations and their loops."""

    tensors: tuple[Any, ...]  # inputs and outputs, in the order of the compiled function's arguments
    #: Placeholders and computations by our unique names (TE's own names may occur several times).
    ops: Mapping[str, Any]
    loops: Mapping[str, tuple[str, ...]]  # loops of each computation: spatial axes, then reduction axes

    @classmethod
    def of_reading(cls, reading: Any, tensors: Sequence[Any] = ()) -> TeProgram:
        """Return the program of a ``read_te`` result; `tensors` gives the order of the arguments."""
        ops = {name: tensor.op for name, tensor in reading.tensors.items()} | dict(reading.ops)
        ordered = {name: ops[name] for name in sorted(ops, key=lambda n: reading.positions[n])}
        if not tensors:
            outputs = [reading.ops[s.name].output(0) for s in reading.expression.outputs]
            tensors = [*reading.tensors.values(), *outputs]
        return cls(tuple(tensors), ordered, {name: tuple(axes) for name, axes in reading.axes.items()})

    def own_loops(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return the spatial and the reduction loops of each stage."""
        rank = {name: len(self.ops[name].axis) for name in self.loops}
        return {name: (loops[: rank[name]], loops[rank[name] :]) for name, loops in self.loops.items()}


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
    """
    applier = StateApplier(dag, program)
    applier.run(steps)
    return applier.state


def apply_steps_te(program: TeProgram, steps: Sequence[Step], dag: Any = None) -> tuple[Any, list[Any]]:
    """Return a ``te.Schedule`` with the steps applied, and the list of tensors to lower it with.

    Parameters
    ----------
    dag : ComputeDAG, optional
        The program's; left out, one is made of its tensors.

    Raises
    ------
    MeasureError
        A step does not apply (kind 'schedule error'); the message names it.
    """
    if dag is None:
        import tvm

        dag = tvm.auto_scheduler.ComputeDAG(list(program.tensors))
    schedule, args = dag.apply_steps_from_state(apply_steps_state(dag, program, steps))
    return schedule, list(args)


SUFFIX = ".kept"


def layout_free(ops: dict[str, Any]) -> list[tuple[str, str]]:
    """Return pairs (placeholder, reading stage) for the operands that ``relay.build`` would repack."""
    pairs = []
    for name, op in ops.items():
        for tensor in (getattr(op, "attrs", None) or {}).get("layout_free_placeholders", ()):
            pairs += [(own, name) for own, other in ops.items() if other.same_as(tensor.op)]
    return pairs


def keep_layout(ops: dict[str, Any], steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with added ones that keep every operand in its layout, for ``relay.build``.

    On CPUs it repacks constant operands of some operators ("layout free" ones) in the order of the State's loops. It
    only understands loops split as Ansor splits them (each spatial axis into four, each reduction axis into two). For
    other splits, and always for ``dense`` (axes i0 and i1), it makes a wrong layout or stops the user's build. It
    ignores an operand that is not read directly: an inlined copy keeps the layout and costs nothing.
    """
    copied = {s.stage for s in steps if isinstance(s, CacheRead)}
    first: list[Step] = []
    for operand, reader in layout_free(ops):
        if operand not in copied:
            first += [CacheRead(operand, "global", (reader,), operand + SUFFIX), Inline(operand + SUFFIX)]
    return (*first, *(s for s in steps if not isinstance(s, Pack)))
