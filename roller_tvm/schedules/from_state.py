"""Steps of Ansor's records as the commands of a script, without a TVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from ..roller.steps import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    Parallel,
    Reorder,
    RFactor,
    Split,
    Step,
    StorageAlign,
    Unroll,
    UnrollLimit,
    Vectorize,
)
from .names import Loops, Names, Unsaid, told_of
from .script import Script

#: Annotations of ``AN`` steps by their number, but those that bind a loop to a thread.
_HOW: dict[int, Callable[[str, str], Step]] = {1: Unroll, 2: Vectorize, 3: Parallel}
_THREADS = {4: "vthread", 5: "blockIdx.x", 6: "threadIdx.x", 7: "blockIdx.y", 8: "threadIdx.y", 9: "blockIdx.z",
            10: "threadIdx.z"}  # fmt: skip
_UNROLL = "auto_unroll_max_step$"


def script_of_record(steps: Sequence[Sequence[Any]], stages: Mapping[str, Loops], where: str = "record") -> Script:
    """Return the transform steps of a record as a script.

    Parameters
    ----------
    steps : sequence of sequence
        As the record has them: a name and its arguments.
    stages : mapping
        Stage of the DAG, in its order -> its spatial and its reduction loops; an input -> its dimensions.

    Raises
    ------
    ScheduleError
        A step that the script has no command for; names it.

    Examples
    --------
    >>> stages = {"A": 2, "B": 2, "C": (["i", "j"], ["k"])}
    >>> print(script_of_record([["SP", 2, 0, 64, [8], 1], ["AN", 2, 0, 3]], stages))
    C.split(i, [8], [i.0, i.1])  # II  loops
    C.parallel(i.0)              # II  hardware
    """
    reader = _Reader(stages)
    for number, step in enumerate(steps):
        with told_of(f"step {number} {list(step)}", where):
            read = _STEPS.get(str(step[0]))
            if read is None:
                raise Unsaid("no command says it")
            read(reader, *step[1:])
    return Script(tuple(reader.names.steps))


class _Reader:
    def __init__(self, stages: Mapping[str, Loops]) -> None:
        self.stages, self.names = list(stages), Names(stages)
        self.placed: set[str] = set()
        self.lengths: list[tuple[int, ...]] = []  # of the step at that position, () where it is no split

    def _say(self, step: Step) -> None:
        self.names.say(step)
        self.lengths.append(())

    def _loop(self, stage: int, loop: int) -> tuple[str, str]:
        name = self.stages[stage]
        return name, self.names.loops[name][loop]

    def split(self, stage: int, loop: int, extent: int, lengths: Sequence[int], from_inside: int = 1) -> None:
        name, axis = self._loop(stage, loop)
        sizes = list(map(int, lengths))
        if not from_inside:  # `lengths` are those of the outer loops
            sizes = [*sizes[1:], -(-int(extent) // prod(sizes))]
        self._say(Split(name, axis, tuple(sizes), self.names.parts(name, axis, len(sizes) + 1)))
        self.lengths[-1] = tuple(map(int, lengths))

    def follow(self, stage: int, loop: int, source: int, parts: int) -> None:
        lengths = self.lengths[source]
        self.split(stage, loop, 0, [*lengths[: parts - 1], prod(lengths[parts - 1 :])])

    def follow_fused(self, stage: int, loop: int, sources: Sequence[int], level: int, factor: int) -> None:
        if not factor:
            raise Unsaid("a split by the number of its outer trips")
        self.split(stage, loop, 0, [prod(self.lengths[s][level] for s in sources)])

    def fuse(self, stage: int, loops: Sequence[int]) -> None:
        name = self.stages[stage]
        axes = tuple(self.names.loops[name][at] for at in loops)
        self._say(Fuse(name, axes, self.names.fused(name, axes)))

    def reorder(self, stage: int, order: Sequence[int]) -> None:
        name = self.stages[stage]
        if list(order) == sorted(order):
            self.lengths.append(())
            return
        self._say(Reorder(name, tuple(self.names.loops[name][at] for at in order)))

    def annotate(self, stage: int, loop: int, how: int) -> None:
        name, axis = self._loop(stage, loop)
        if how in _THREADS:
            self._say(Bind(name, axis, _THREADS[how]))
        elif how in _HOW:
            self._say(_HOW[how](name, axis))
        elif how:
            raise Unsaid(f"annotation {how} has no command")
        else:
            self.lengths.append(())

    def pragma(self, stage: int, loop: int, pragma: str) -> None:
        name, axis = self._loop(stage, loop)
        if not pragma.startswith(_UNROLL):
            raise Unsaid(f"pragma '{pragma}' has no command")
        self._say(UnrollLimit(name, axis, int(pragma.removeprefix(_UNROLL))))

    def compute_at(self, stage: int, target: int, loop: int) -> None:
        self.placed.add(self.stages[stage])
        self._say(ComputeAt(self.stages[stage], *self._loop(target, loop)))

    def inline(self, stage: int) -> None:
        self.placed.add(self.stages[stage])
        self._say(Inline(self.stages[stage]))

    def root(self, stage: int) -> None:
        if self.stages[stage] in self.placed:
            raise Unsaid("a stage moved out of a loop again")
        self.lengths.append(())

    def cache_read(self, stage: int, scope: str, readers: Sequence[int]) -> None:
        source = self.stages[stage]
        name = self.names.stage(f"{source}.{scope}")
        self._say(CacheRead(source, scope, tuple(self.stages[r] for r in readers), name))
        self.stages.insert(stage + 1, name)

    def cache_write(self, stage: int, scope: str) -> None:
        name = self.names.stage(f"{self.stages[stage]}.{scope}")
        self._say(CacheWrite(self.stages[stage], scope, name))
        self.stages.insert(stage, name)

    def factor(self, stage: int, loop: int, place: int) -> None:
        source, axis = self._loop(stage, loop)
        name = self.names.stage(f"{source}.rf")
        self._say(RFactor(source, axis, place, name))
        self.stages.insert(stage, name)

    def align(self, stage: int, loop: int, factor: int, offset: int) -> None:
        self._say(StorageAlign(*self._loop(stage, loop), factor, offset))


_STEPS: dict[str, Callable[..., None]] = {
    "SP": _Reader.split, "FSP": _Reader.follow, "FFSP": _Reader.follow_fused, "FU": _Reader.fuse,
    "RE": _Reader.reorder, "AN": _Reader.annotate, "PR": _Reader.pragma, "CA": _Reader.compute_at,
    "CI": _Reader.inline, "CR": _Reader.root, "CHR": _Reader.cache_read, "CHW": _Reader.cache_write,
    "RF": _Reader.factor, "SA": _Reader.align,
}  # fmt: skip
