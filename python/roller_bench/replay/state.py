"""Apply Ansor's transform steps to loops without TVM, to get a record's final schedule.

A stage is a list of loops, and a loop knows the parts of the axes it walks. A plan is read back from these alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any

#: Annotations of ``AN`` steps, by their number in the record.
ANNOTATIONS = (
    "", "unroll", "vectorize", "parallel", "vthread", "blockIdx.x", "threadIdx.x", "blockIdx.y", "threadIdx.y",
    "blockIdx.z", "threadIdx.z", "tensorize",
)  # fmt: skip


class Unreadable(ValueError):
    """The steps of a record cannot be followed; the message gives the reason."""


@dataclass(frozen=True)
class Part:
    """A part of an axis: `extent` iterations, each `stride` iterations of the axis apart."""

    axis: int
    extent: int
    stride: int


@dataclass(frozen=True)
class Loop:
    """One loop of a stage.

    `parts` are the axis parts that it walks, outermost first; () if a fused loop was split between parts. Either way
    `axes` are the axes that it moves along.
    """

    extent: int
    parts: tuple[Part, ...] = ()
    binding: str = ""
    axes: frozenset[int] = frozenset()

    @property
    def pure(self) -> Part | None:
        """The loop's only part, or None if it has none or several."""
        return self.parts[0] if len(self.parts) == 1 else None


@dataclass
class LoopStage:
    """A stage after the steps applied so far."""

    name: str
    kind: str  # 'input', 'compute', 'read' (a copy into a cache), 'write' (copies a cache out)
    loops: list[Loop]
    source: str = ""  # of a copy: the stage that it copies
    place: str = ""  # 'inline', 'at' or '' (root)
    at: tuple[str, int] | None = None  # stage, position of its loop
    scope: str = ""
    pragma: dict[str, int] = field(default_factory=dict)
    spatial: int = 0  # how many axes are outputs'; those after are reduced
    partial: bool = False  # an rfactor stage
    whole: tuple[Loop, ...] = ()  # the outputs' loops before any step

    @property
    def reduces(self) -> bool:
        return any(axis >= self.spatial for loop in self.loops for axis in loop.axes)


#: Axes that a loop of a workload walks, as (axis, extent), the last fastest.
Digits = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class StageInfo:
    """A stage of the workload before any step: an input, or a computation with its axes."""

    name: str
    #: Extents of its output and reduction loops.
    spatial: tuple[int, ...] = ()
    reduce: tuple[int, ...] = ()
    is_input: bool = False
    #: Axes of each loop, if an expression has several for one loop (``i // 4`` and ``i % 4``). Default: each loop is
    #: one axis.
    digits: tuple[Digits, ...] = ()

    def loops(self) -> list[Loop]:
        """Return a loop for each axis of the workload, outputs first."""
        extents = (*self.spatial, *self.reduce)
        if not self.digits:
            return whole_axes(extents)
        return [
            Loop(extent, tuple(Part(a, e, 1) for a, e in digits), axes=frozenset(a for a, _ in digits))
            for extent, digits in zip(extents, self.digits, strict=True)
        ]


def whole_axes(extents: Sequence[int]) -> list[Loop]:
    """Return a loop for each axis."""
    return [Loop(e, (Part(i, e, 1),), axes=frozenset((i,))) for i, e in enumerate(extents)]


def split_parts(parts: Sequence[Part], extents: Sequence[int]) -> list[tuple[Part, ...]]:
    """Return the parts walked by each loop of a split; all empty if a split falls inside a part unevenly.

    Parameters
    ----------
    parts : sequence of Part
        Parts of the loop, outermost first. If it is a single one, the split may overhang its end.
    extents : sequence of int
        Extents of the new loops, outermost first.

    Examples
    --------
    >>> both = [Part(0, 6, 1), Part(1, 4, 1)]
    >>> outer, inner = split_parts(both, [2, 12])
    >>> [(p.axis, p.extent, p.stride) for p in outer], [(p.axis, p.extent, p.stride) for p in inner]
    ([(0, 2, 3)], [(0, 3, 1), (1, 4, 1)])
    >>> split_parts(both, [4, 6])
    [(), ()]
    """
    if len(parts) == 1:
        whole = parts[0]
        return [(Part(whole.axis, e, whole.stride * prod(extents[n + 1:])),) for n, e in enumerate(extents)]
    rest, walked = list(parts), []
    for extent in reversed(extents):
        own: list[Part] = []
        while extent > 1:
            part = rest.pop() if rest else None
            if part is None or max(extent, part.extent) % min(extent, part.extent):
                return [()] * len(extents)
            inside = min(extent, part.extent)
            own.append(Part(part.axis, inside, part.stride))
            extent //= inside
            if inside < part.extent:
                rest.append(Part(part.axis, part.extent // inside, part.stride * inside))
        walked.append(tuple(reversed(own)))
    return walked[::-1]


class State:
    """Stages with their loops; ``apply`` follows one step."""

    def __init__(self, stages: Sequence[StageInfo]):
        self.stages: list[LoopStage] = []
        for info in stages:
            loops = info.loops()
            outputs = tuple(loops[:len(info.spatial)])
            axes = sum(len(loop.parts) for loop in outputs)
            kind = "input" if info.is_input else "compute"
            self.stages.append(LoopStage(info.name, kind, loops, spatial=axes, whole=outputs))
        self.lengths: list[tuple[int, ...]] = []  # of the step at that position, empty where it is no split

    @classmethod
    def replay(cls, stages: Sequence[StageInfo], steps: Sequence[Sequence[Any]]) -> State:
        """Return the state after every step; raises ``Unreadable``, naming the step, if one cannot be followed."""
        state = cls(stages)
        for number, step in enumerate(steps):
            try:
                state.apply(step)
            except (AttributeError, IndexError, OverflowError, TypeError, ValueError, ZeroDivisionError) as error:
                reason = error if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
                raise Unreadable(f"step {number} {list(step)!r:.60}: {reason}") from None
        return state

    def apply(self, step: Sequence[Any]) -> None:
        handler = _STEPS.get(step[0])
        if handler is None:
            raise Unreadable(f"unknown step, not one of {', '.join(sorted(_STEPS))}")
        self.lengths.append(())
        handler(self, *step[1:])

    def stage(self, name: str) -> LoopStage:
        return next(s for s in self.stages if s.name == name)

    def inside(self, name: str) -> list[LoopStage]:
        """Return the stages computed within the loops of a stage, directly or not."""
        own = [s for s in self.stages if s.place == "at" and s.at and s.at[0] == name]
        return own + [d for s in own for d in self.inside(s.name)]

    # Steps -------------------------------------------------------------------------------------------

    def _split(self, stage: int, loop: int, extent: Any, lengths: Sequence[int], inner_to_outer: Any = True) -> None:
        if any(not isinstance(n, int) or n < 1 for n in lengths):
            raise Unreadable(f"split lengths {list(lengths)}")
        self.lengths[-1] = tuple(lengths)
        self._split_into(stage, loop, lengths, bool(inner_to_outer))

    def _split_into(self, stage: int, loop: int, lengths: Sequence[int], inner_to_outer: bool = True) -> None:
        loops = self.stages[stage].loops
        whole = loops[loop]
        rest = ceil(whole.extent / prod(lengths))
        extents = [rest, *lengths] if inner_to_outer else [*lengths, rest]
        walked = split_parts(whole.parts, extents)
        loops[loop:loop + 1] = [Loop(e, parts, axes=whole.axes) for e, parts in zip(extents, walked, strict=True)]

    def _follow_split(self, stage: int, loop: int, source: int, parts: int) -> None:
        lengths = self.lengths[source]
        kept = [*lengths[:parts - 1], prod(lengths[parts - 1:])]
        self._split_into(stage, loop, kept)

    def _follow_fused(self, stage: int, loop: int, sources: Sequence[int], level: int, factor: Any) -> None:
        length = prod(self.lengths[s][level] for s in sources)
        self._split_into(stage, loop, [length], bool(factor))

    def _fuse(self, stage: int, positions: Sequence[int]) -> None:
        loops = self.stages[stage].loops
        first, last = positions[0], positions[-1]
        if list(positions) != list(range(first, last + 1)):
            raise Unreadable("fused loops are not neighbours")
        fused = loops[first:last + 1]
        known = all(loop.parts for loop in fused)
        parts = tuple(p for loop in fused for p in loop.parts) if known else ()
        axes = frozenset(a for loop in fused for a in loop.axes)
        loops[first:last + 1] = [Loop(prod(loop.extent for loop in fused), parts, axes=axes)]

    def _reorder(self, stage: int, order: Sequence[int]) -> None:
        loops = self.stages[stage].loops
        if sorted(order) != list(range(len(loops))):
            raise Unreadable(f"an order of {len(order)} loops for {len(loops)}")
        self.stages[stage].loops = [loops[i] for i in order]

    def _annotate(self, stage: int, loop: int, annotation: int) -> None:
        loops = self.stages[stage].loops
        loops[loop] = replace(loops[loop], binding=ANNOTATIONS[annotation])

    def _pragma(self, stage: int, loop: int, pragma: str) -> None:
        name, _, value = pragma.partition("$")
        self.stages[stage].pragma[name] = int(value) if value.lstrip("-").isdigit() else 0

    def _compute_at(self, stage: int, target: int, loop: int) -> None:
        self.stages[stage].place, self.stages[stage].at = "at", (self.stages[target].name, loop)

    def _inline(self, stage: int) -> None:
        self.stages[stage].place = "inline"

    def _root(self, stage: int) -> None:
        self.stages[stage].place, self.stages[stage].at = "", None

    def _cache_read(self, stage: int, scope: str, readers: Sequence[int]) -> None:
        source = self.stages[stage]
        loops = whole_axes([loop.extent for loop in source.whole])
        copy = LoopStage(f"{source.name}.{scope}", "read", loops, source.name, scope=scope, spatial=len(loops))
        self.stages.insert(stage + 1, copy)

    def _cache_write(self, stage: int, scope: str) -> None:
        output = self.stages[stage]
        cache = replace(output, name=f"{output.name}.{scope}", scope=scope, pragma={})
        copy = LoopStage(
            output.name, "write", list(output.whole), cache.name, spatial=output.spatial, whole=output.whole
        )
        self.stages[stage:stage + 1] = [cache, copy]

    def _factor(self, stage: int, loop: int, place: int) -> None:
        whole = self.stages[stage]
        factored = whole.loops[loop]
        others = [lp for i, lp in enumerate(whole.loops) if i != loop]
        outputs = [lp for lp in others if all(p.axis < whole.spatial for p in lp.parts)]
        reduced = [lp for lp in others if lp not in outputs]
        loops = [*outputs[:place], factored, *outputs[place:], *reduced]
        partial = LoopStage(f"{whole.name}.rf", "compute", loops, spatial=whole.spatial, partial=True)
        whole.loops = [*outputs, factored]
        self.stages.insert(stage, partial)

    def _align(self, stage: int, loop: int, factor: int, offset: int) -> None:
        self.stages[stage].pragma["storage_align"] = factor


_STEPS: dict[str, Callable[..., None]] = {
    "SP": State._split, "FSP": State._follow_split, "FFSP": State._follow_fused, "FU": State._fuse,
    "RE": State._reorder, "AN": State._annotate, "PR": State._pragma, "CA": State._compute_at, "CI": State._inline,
    "CR": State._root, "CHR": State._cache_read, "CHW": State._cache_write, "RF": State._factor, "SA": State._align,
}  # fmt: skip
