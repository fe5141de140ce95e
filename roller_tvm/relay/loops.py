"""What schedule steps act on: stages and loops of a TVM program under our names.

Both appliers (``apply_te``, ``apply_state``) keep, for every stage, the list of our loop names in the order
of TVM's own loops. A loop is then found by its position, which stays right although an Ansor State replaces
its iterators at every step and shifts its stages when one is inserted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from roller_tvm.errors import MeasureError
from roller_tvm.lower import steps as S


@dataclass(frozen=True)
class TeProgram:
    """A TE program with our names for its operations and their loops.

    Parameters
    ----------
    tensors : tuple of te.Tensor
        Inputs and outputs, in the order of the compiled function's arguments.
    ops : mapping of name -> te.Operation
        Placeholders and computations by our unique names (TE's own names may occur several times).
    loops : mapping of name -> tuple of str
        Loops of each computation: spatial axes, then reduction axes.
    """

    tensors: tuple[Any, ...]
    ops: Mapping[str, Any]
    loops: Mapping[str, tuple[str, ...]]

    @classmethod
    def of_dag(cls, dag: Any) -> TeProgram:
        """Names made from TE's own, a number appended where one occurs twice."""
        ops: dict[str, Any] = {}
        loops: dict[str, tuple[str, ...]] = {}
        for op in dag.ops:
            name = unique(op.name, ops)
            ops[name] = op
            names: dict[str, None] = {}
            for axis in (*getattr(op, "axis", ()), *getattr(op, "reduce_axis", ())):
                names[unique(axis.var.name, names)] = None
            if hasattr(op, "body"):
                loops[name] = tuple(names)
        return cls(tuple(dag.tensors), ops, loops)

    @classmethod
    def of_reading(cls, reading: Any, tensors: Sequence[Any] = ()) -> TeProgram:
        """From what ``roller_tvm.te.read_te`` gives; `tensors` are the arguments, if their order matters."""
        ops = {name: tensor.op for name, tensor in reading.tensors.items()} | dict(reading.ops)
        ordered = {name: ops[name] for name in sorted(ops, key=lambda n: reading.positions[n])}
        if not tensors:
            outputs = [reading.ops[s.name].output(0) for s in reading.expression.outputs]
            tensors = [*reading.tensors.values(), *outputs]
        return cls(tuple(tensors), ordered, {name: tuple(axes) for name, axes in reading.axes.items()})


def unique(name: str, taken: Mapping[str, Any]) -> str:
    """`name`, or the first of `name_1`, `name_2`, ... that is not taken."""
    if name not in taken:
        return name
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


class StepApplier:
    """Walks a list of steps, keeps the loop names, and leaves the doing to its subclasses.

    A subclass has one method a step (``split``, ``fuse``, ...), which is called before the names change and
    is given positions instead of loop names.
    """

    what: ClassVar[str] = "schedule"

    def __init__(self, program: TeProgram) -> None:
        self.program = program
        self.loops: dict[str, list[str]] = {name: list(loops) for name, loops in program.loops.items()}
        self._fresh = set(self.loops)
        # Loops that each stage starts with: (spatial, reduction).
        self._own: dict[str, tuple[list[str], list[str]]] = {}
        for name, loops in self.loops.items():
            rank = len(program.ops[name].axis)
            self._own[name] = (loops[:rank], loops[rank:])

    def run(self, steps: Sequence[S.Step]) -> None:
        for number, step in enumerate(steps):
            try:
                self._one(step)
            except MeasureError:
                raise
            except Exception as error:  # TVM's refusals come in many types
                first = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                raise self._error(f"step {number} '{step}' refused by the {self.what}: {first}") from error

    def _error(self, what: str) -> MeasureError:
        return MeasureError(
            what,
            where="schedule steps",
            kind="schedule error",
            remedy="report this plan: a recipe wrote a step that does not apply",
        )

    def at(self, stage: str, axis: str) -> int:
        """Position of loop `axis` of `stage`."""
        if stage not in self.loops:
            raise self._error(f"no stage '{stage}' (has {', '.join(self.loops)})")
        try:
            return self.loops[stage].index(axis)
        except ValueError:
            has = ", ".join(self.loops[stage])
            raise self._error(f"stage '{stage}' has no loop '{axis}' (has {has})") from None

    def _one(self, step: S.Step) -> None:
        stage = step.stage
        if isinstance(step, S.CacheRead):
            rank = self.cache_read(stage, step.scope, step.readers, step.name)
            self._start(step.name, [f"d{d}" for d in range(rank)], [])
            return
        if stage not in self.loops:
            raise self._error(f"'{step}': no stage '{stage}' (has {', '.join(self.loops)})")
        loops = self.loops[stage]
        if isinstance(step, (S.CacheWrite, S.RFactor)):
            self._new_stage(step, loops)
        elif isinstance(step, S.Split):
            at = self.at(stage, step.axis)
            self._fresh.discard(stage)
            self.split(stage, at, step.lengths)
            loops[at : at + 1] = step.names
        elif isinstance(step, S.Fuse):
            positions = [self.at(stage, a) for a in step.axes]
            if positions != list(range(positions[0], positions[0] + len(positions))):
                raise self._error(f"'{step}': loops to fuse must be adjacent (order is {', '.join(loops)})")
            self._fresh.discard(stage)
            self.fuse(stage, positions)
            loops[positions[0] : positions[-1] + 1] = [step.name]
        elif isinstance(step, S.Reorder):
            if sorted(step.axes) != sorted(loops):
                raise self._error(f"'{step}' must name every loop of the stage (has {', '.join(loops)})")
            self._fresh.discard(stage)
            self.reorder(stage, [self.at(stage, a) for a in step.axes])
            loops[:] = step.axes
        elif isinstance(step, S.ComputeAt):
            self.compute_at(stage, step.target, self.at(step.target, step.axis))
        elif isinstance(step, S.Inline):
            self.inline(stage)
        elif isinstance(step, S.Bind):
            self.bind(stage, self.at(stage, step.axis), step.thread)
        elif isinstance(step, (S.Vectorize, S.Unroll, S.Parallel)):
            self.annotate(stage, self.at(stage, step.axis), step.op)
        elif isinstance(step, S.UnrollLimit):
            self.unroll_limit(stage, self.at(stage, step.axis), step.steps)
        elif isinstance(step, S.StorageAlign):
            self.storage_align(stage, self.at(stage, step.axis), step.factor, step.offset)
        else:
            raise self._error(f"'{step}' is of an unknown kind")

    def _new_stage(self, step: S.CacheWrite | S.RFactor, loops: list[str]) -> None:
        stage = step.stage
        spatial, reduce = self._own[stage]
        if isinstance(step, S.CacheWrite):
            if stage not in self._fresh:
                # TE drops the loops made so far; better to say so than to compute under wrong names.
                raise self._error(f"'{step}' must come before other steps on loops of '{stage}'")
            self.cache_write(stage, step.scope, step.name)
            self._start(step.name, spatial, reduce)
            self._start(stage, spatial, [])
            return
        at = self.at(stage, step.axis)
        self.rfactor(stage, at, step.position, step.name)
        # The new stage computes the partial results over a further spatial loop; the old one merges them.
        # TVM lists the reduction axes that were not split first, whatever their order was.
        rest = [a for a in reduce if a in loops] + [a for a in loops if a not in (*spatial, *reduce, step.axis)]
        self._start(step.name, [*spatial[: step.position], step.axis, *spatial[step.position :]], rest)
        self._start(stage, spatial, [step.axis])

    def _start(self, stage: str, spatial: list[str], reduce: list[str]) -> None:
        self._own[stage] = (list(spatial), list(reduce))
        self.loops[stage] = [*spatial, *reduce]
        self._fresh.add(stage)

    # What a subclass does, on positions of loops ------------------------------------------------------

    def split(self, stage: str, at: int, lengths: Sequence[int]) -> None:
        raise NotImplementedError

    def fuse(self, stage: str, at: Sequence[int]) -> None:
        raise NotImplementedError

    def reorder(self, stage: str, at: Sequence[int]) -> None:
        raise NotImplementedError

    def annotate(self, stage: str, at: int, how: str) -> None:
        raise NotImplementedError

    def bind(self, stage: str, at: int, thread: str) -> None:
        raise NotImplementedError

    def unroll_limit(self, stage: str, at: int, limit: int) -> None:
        raise NotImplementedError

    def storage_align(self, stage: str, at: int, factor: int, offset: int) -> None:
        raise NotImplementedError

    def compute_at(self, stage: str, target: str, at: int) -> None:
        raise NotImplementedError

    def inline(self, stage: str) -> None:
        raise NotImplementedError

    def cache_read(self, stage: str, scope: str, readers: Sequence[str], name: str) -> int:
        """Makes the stage and returns the rank of the tensor."""
        raise NotImplementedError

    def cache_write(self, stage: str, scope: str, name: str) -> None:
        raise NotImplementedError

    def rfactor(self, stage: str, at: int, position: int, name: str) -> None:
        raise NotImplementedError
