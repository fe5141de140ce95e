"""Names of loops and stages that appear while a schedule of somebody else is written down as commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from ..codegen.applier import StepApplier
from ..roller.steps import Step, TensorIrStep
from .script import ScheduleError

#: Of a stage its spatial and its reduction loops, of an input the number of its dimensions.
Loops = int | tuple[Sequence[str], Sequence[str]]

_REMEDY = "compare another record, or look at this one in TVM's own words"


class Unsaid(ValueError):
    """A step or an instruction without a command."""


@contextlib.contextmanager
def told_of(step: str, where: str) -> Iterator[None]:
    """Have what goes wrong with a step of a record named with that step.

    Raises
    ------
    ScheduleError
        The step has no command, or does not fit the operator.
    """
    try:
        yield
    except Unsaid as error:
        raise ScheduleError(f"{step}: {error}", where, _REMEDY) from None
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ScheduleError(f"{step} does not fit this operator: {error}", where, _REMEDY) from None


class Names(StepApplier):
    """The loops of each stage while commands are written down.

    Examples
    --------
    >>> names = Names({"A": 2, "C": (["i", "j"], ["k"])})
    >>> names.parts("C", "i", 2)
    ('i.0', 'i.1')
    """

    what = "script"
    late_copies = True

    def __init__(self, stages: Mapping[str, Loops]) -> None:
        super().__init__({name: loops for name, loops in stages.items() if not isinstance(loops, int)})
        self.ranks = {name: loops if isinstance(loops, int) else len(loops[0]) for name, loops in stages.items()}
        self.steps: list[Step] = []
        self._stages = set(stages)

    def say(self, step: Step) -> None:
        """Write a command down; the loops become those after it."""
        self._one(step)
        self.steps.append(step)

    def parts(self, stage: str, axis: str, count: int) -> tuple[str, ...]:
        """Return names for the loops that a loop is split into."""
        return tuple(f"{axis}.{n}" for n in range(count))

    def fused(self, stage: str, axes: Sequence[str]) -> str:
        """Return a name for several loops fused."""
        return "*".join(axes)

    def own(self, stage: str) -> tuple[list[str], list[str]]:
        """Return the spatial and the reduction loops that a stage starts with."""
        return self._own[stage]

    def stage(self, wanted: str) -> str:
        """Return a name for a new stage: the wanted one, or that with a number behind it."""
        name, number = wanted, 1
        while name in self._stages:
            number += 1
            name = f"{wanted}.{number}"
        self._stages.add(name)
        return name

    def cache_read(self, stage: str, scope: str, readers: Sequence[str], name: str) -> int:
        self.ranks[name] = self.ranks[stage]
        return self.ranks[stage]

    def cache_write(self, stage: str, scope: str, name: str) -> None:
        self.ranks[name] = self.ranks[stage]

    def rfactor(self, stage: str, at: int, position: int, name: str) -> None:
        self.ranks[name] = self.ranks[stage] + 1

    def split(self, stage: str, at: int, lengths: Sequence[int]) -> None:
        """Nothing: names alone are followed, here and below."""

    def fuse(self, stage: str, at: Sequence[int]) -> None: ...

    def reorder(self, stage: str, at: Sequence[int]) -> None: ...

    def annotate(self, stage: str, at: int, how: str) -> None: ...

    def bind(self, stage: str, at: int, thread: str) -> None: ...

    def unroll_limit(self, stage: str, at: int, limit: int) -> None: ...

    def storage_align(self, stage: str, at: int, factor: int, offset: int) -> None: ...

    def compute_at(self, stage: str, target: str, at: int) -> None: ...

    def inline(self, stage: str) -> None: ...

    def tensor_ir(self, step: TensorIrStep) -> None: ...
