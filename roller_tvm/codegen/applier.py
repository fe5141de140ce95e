"""Walking a list of schedule steps: keeps track of the loops of each stage for every kind of schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..errors import MeasureError
from ..roller.steps import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    Pack,
    Parallel,
    Reorder,
    RFactor,
    Split,
    Step,
    StorageAlign,
    TensorIrStep,
    Unroll,
    UnrollLimit,
    Vectorize,
)


class StepApplier:
    """Walks a list of steps and keeps the loop names; its subclasses carry the steps out.

    A subclass has one method per step (``split``, ``fuse``, ...). It is called before the names change and gets
    positions instead of loop names. Positions stay right although a schedule may replace its iterators at every step
    and shift its stages when one is inserted.

    Parameters
    ----------
    loops : mapping of name -> (spatial loops, reduction loops)
        Loops of each stage at the start, in the order of the program's own axes.
    """

    what: ClassVar[str] = "schedule"
    #: Whether a stage may be given a copy out after its loops are made.
    late_copies: ClassVar[bool] = False

    def __init__(self, loops: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> None:
        self.loops: dict[str, list[str]] = {name: [*spatial, *reduce] for name, (spatial, reduce) in loops.items()}
        self._fresh = set(self.loops)
        self._own = {name: (list(spatial), list(reduce)) for name, (spatial, reduce) in loops.items()}

    def run(self, steps: Sequence[Step]) -> None:
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
        """Return the position of loop `axis` of `stage`; raises `MeasureError` if there is none."""
        if stage not in self.loops:
            raise self._error(f"no stage '{stage}' (has {', '.join(self.loops)})")
        try:
            return self.loops[stage].index(axis)
        except ValueError:
            has = ", ".join(self.loops[stage])
            raise self._error(f"stage '{stage}' has no loop '{axis}' (has {has})") from None

    def _one(self, step: Step) -> None:
        stage = step.stage
        if isinstance(step, CacheRead):
            rank = self.cache_read(stage, step.scope, step.readers, step.name)
            self._start(step.name, [f"d{d}" for d in range(rank)], [])
            return
        if isinstance(step, Pack):
            self.pack(step)
            return
        if stage not in self.loops:
            raise self._error(f"'{step}': no stage '{stage}' (has {', '.join(self.loops)})")
        loops = self.loops[stage]
        if isinstance(step, (CacheWrite, RFactor)):
            self._new_stage(step, loops)
        elif isinstance(step, Split):
            at = self.at(stage, step.axis)
            self._fresh.discard(stage)
            self.split(stage, at, step.lengths)
            loops[at : at + 1] = step.names
        elif isinstance(step, Fuse):
            positions = [self.at(stage, a) for a in step.axes]
            if positions != list(range(positions[0], positions[0] + len(positions))):
                raise self._error(f"'{step}': loops to fuse must be adjacent (order is {', '.join(loops)})")
            self._fresh.discard(stage)
            self.fuse(stage, positions)
            loops[positions[0] : positions[-1] + 1] = [step.name]
        elif isinstance(step, Reorder):
            if sorted(step.axes) != sorted(loops):
                raise self._error(f"'{step}' must name every loop of the stage (has {', '.join(loops)})")
            self._fresh.discard(stage)
            self.reorder(stage, [self.at(stage, a) for a in step.axes])
            loops[:] = step.axes
        elif isinstance(step, ComputeAt):
            self.compute_at(stage, step.target, self.at(step.target, step.axis))
        elif isinstance(step, Inline):
            self.inline(stage)
        elif isinstance(step, Bind):
            self.bind(stage, self.at(stage, step.axis), step.thread)
        elif isinstance(step, (Vectorize, Unroll, Parallel)):
            self.annotate(stage, self.at(stage, step.axis), step.op)
        elif isinstance(step, UnrollLimit):
            self.unroll_limit(stage, self.at(stage, step.axis), step.steps)
        elif isinstance(step, StorageAlign):
            self.storage_align(stage, self.at(stage, step.axis), step.factor, step.offset)
        elif isinstance(step, TensorIrStep):
            self.tensor_ir(step)
        else:
            raise self._error(f"'{step}' is of an unknown kind")

    def _new_stage(self, step: CacheWrite | RFactor, loops: list[str]) -> None:
        stage = step.stage
        spatial, reduce = self._own[stage]
        if isinstance(step, CacheWrite):
            late = stage not in self._fresh
            if late and not self.late_copies:
                # TE drops the loops made so far; better to say so than to compute under wrong names.
                raise self._error(f"'{step}' must come before other steps on loops of '{stage}'")
            self.cache_write(stage, step.scope, step.name)
            self._start(step.name, spatial, reduce)
            if late:
                self.loops[step.name] = loops
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

    def tensor_ir(self, step: TensorIrStep) -> None:
        """Carry out a step that needs a TensorIR schedule; all other schedules refuse it."""
        raise MeasureError(
            f"'{step}' cannot be expressed in a {self.what}",
            where="schedule steps",
            kind="schedule error",
            remedy="construct the plan without features (the default), or use the Relax line",
        )

    # A subclass's work, on positions of loops ---------------------------------------------------------

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
        """Make the stage and return the rank of the tensor."""
        raise NotImplementedError

    def cache_write(self, stage: str, scope: str, name: str) -> None:
        raise NotImplementedError

    def pack(self, step: Pack) -> None:
        """Pack an operand. Does nothing in a TE schedule: Relay's build packs constants, copies keep their rows."""

    def rfactor(self, stage: str, at: int, position: int, name: str) -> None:
        raise NotImplementedError
