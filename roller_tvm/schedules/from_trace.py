"""Instructions of MetaSchedule's traces as commands of a script; an edge that knows TVM says which blocks they meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    Unroll,
    UnrollLimit,
    Vectorize,
)
from ..roller.tensor_steps import Pipeline, ReverseComputeAt, ReverseInline, SetScope
from .names import Loops, Names, Unsaid, told_of
from .script import Script

#: Instructions that look or choose, and leave the loops as they are.
_LOOKS = ("Get", "Sample", "EnterPostproc", "Unannotate", "DecomposeReduction")
#: Notes of the tuner to itself, which it has carried out by the end of the trace, and others that say nothing.
_NOTES = ("meta_schedule.", "pragma_unroll_explicit")
_UNROLL, _PIPELINE = "pragma_auto_unroll_max_step", "software_pipeline_"
#: Places that are no loops: all loops stay a stage's own, or it has none.
ROOT, INLINE = "root", "inline"
#: (Old dimension, length) of each dimension of a new layout.
Digits = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LoopAt:
    """A loop by its place: the block and the number of loops around it, of how many."""

    block: str
    at: int
    count: int
    extent: int


@dataclass(frozen=True)
class Event:
    """One instruction of a trace.

    Parameters
    ----------
    kind : str
    inputs : tuple
        A block by its name, a loop as ``LoopAt``, anything else as it is.
    attrs : tuple
    made : tuple of str
        Blocks that it made.
    tensor : str
        The stage or input that a copy is made of, or whose layout changes.
    digits : Digits
        Of a layout.
    """

    kind: str
    inputs: tuple[Any, ...] = ()
    attrs: tuple[Any, ...] = ()
    made: tuple[str, ...] = ()
    tensor: str = ""
    digits: Digits = ()


def script_of_trace(
    events: Sequence[Event], stages: Mapping[str, Loops], blocks: Mapping[str, str], where: str = "trace"
) -> Script:
    """Return a trace as a script.

    Parameters
    ----------
    events : sequence of Event
    stages : mapping
        Stage -> its spatial and its reduction loops; an input -> its dimensions.
    blocks : mapping
        Stage -> its block.

    Raises
    ------
    ScheduleError
        An instruction that the script has no command for; names it.

    Examples
    --------
    >>> loop = LoopAt("C", 0, 3, 64)
    >>> events = [Event("Split", (loop, 8, 8)), Event("Parallel", (LoopAt("C", 0, 4, 8),))]
    >>> print(script_of_trace(events, {"C": (["i", "j"], ["k"])}, {"C": "C"}))
    C.split(i, [8], [i.0, i.1])  # II  loops
    C.parallel(i.0)              # II  hardware
    """
    reader = _Reader(stages, blocks, events)
    for number, event in enumerate(events):
        if event.kind.startswith(_LOOKS):
            reader.looked(event)
            continue
        with told_of(f"instruction {number} {event.kind}", where):
            read = _KINDS.get(event.kind)
            if read is None:
                raise Unsaid("no command says it")
            read(reader, event)
    return Script(tuple(reader.names.steps))


class _Reader:
    def __init__(self, stages: Mapping[str, Loops], blocks: Mapping[str, str], events: Sequence[Event]) -> None:
        self.names = Names(stages)
        self.stages = {block: stage for stage, block in blocks.items()}
        self.inside: dict[str, tuple[str, str]] = {}  # stage -> the loop of another that it is computed in
        self.packed = {e.inputs[0] for e in events if e.kind == "Annotate" and "layout_rewrite" in str(e.attrs[0])}
        self.pipeline: dict[tuple[str, str], dict[str, list[int]]] = {}

    def _say(self, step: Step) -> None:
        if step not in self.names.steps:  # loops that two stages share are told twice
            self.names.say(step)

    def _path(self, stage: str) -> list[tuple[str, str]]:
        """Return all loops around a stage, each with the stage whose loop it is."""
        outer: list[tuple[str, str]] = []
        if stage in self.inside:
            target, loop = self.inside[stage]
            outer = self._path(target)
            outer = outer[: outer.index((target, loop)) + 1]
        return [*outer, *((stage, name) for name in self.names.loops[stage])]

    def _loop(self, place: LoopAt) -> tuple[str, str]:
        path = self._path(self.stages[place.block])
        if len(path) != place.count:
            raise Unsaid(f"block '{place.block}' has {place.count} loops, and {len(path)} have names")
        return path[place.at]

    def _known(self, event: Event) -> bool:
        """Return whether an event is about stages; initial values, set apart, have no commands."""
        names = (p.block if isinstance(p, LoopAt) else p for p in event.inputs[:1])
        return all(name in self.stages for name in names)

    def looked(self, event: Event) -> None:
        """Follow the names of blocks of a reduction whose initial value is set apart."""
        if event.kind == "DecomposeReduction":
            rest = next((name for name in event.made if name.endswith("_update")), event.inputs[0])
            self.stages[rest] = self.stages[event.inputs[0]]

    def split(self, event: Event) -> None:
        stage, axis = self._loop(event.inputs[0])
        factors, extent = list(event.inputs[1:]), event.inputs[0].extent
        if None in factors[1:]:
            known = 1
            for factor in factors:
                known *= factor or 1
            factors = [-(-extent // known) if f is None else f for f in factors]
        names = self.names.parts(stage, axis, len(factors))
        self._say(Split(stage, axis, tuple(factors[1:]), names))
        self._moved(stage, axis, names[-1])

    def fuse(self, event: Event) -> None:
        loops = [self._loop(place) for place in event.inputs]
        if len(loops) < 2:
            return
        stage = loops[0][0]
        if any(own != stage for own, _ in loops):
            raise Unsaid("loops of several stages made one")
        axes = tuple(axis for _, axis in loops)
        name = self.names.fused(stage, axes)
        self._say(Fuse(stage, axes, name))
        for axis in axes:
            self._moved(stage, axis, name)

    def _moved(self, stage: str, old: str, new: str) -> None:
        """A stage computed in a loop is computed in what became of it."""
        self.inside |= {other: (stage, new) for other, at in self.inside.items() if at == (stage, old)}

    def reorder(self, event: Event) -> None:
        wanted = [self._loop(place) for place in event.inputs]
        stage = wanted[0][0]
        order, rest = self.names.loops[stage], iter(axis for _, axis in wanted)
        moved = {axis for _, axis in wanted}
        made = tuple(next(rest) if axis in moved else axis for axis in order)
        if made != tuple(order):
            self._say(Reorder(stage, made))

    def bind(self, event: Event) -> None:
        thread = str(event.attrs[0])
        self._say(Bind(*self._loop(event.inputs[0]), "vthread" if thread.startswith("vthread") else thread))

    def mark(self, event: Event) -> None:
        if self._known(event):
            kind = {"Parallel": Parallel, "Vectorize": Vectorize, "Unroll": Unroll}[event.kind]
            self._say(kind(*self._loop(event.inputs[0])))

    def annotate(self, event: Event) -> None:
        key, value = str(event.attrs[0]), event.inputs[1]
        if key.startswith(_NOTES) or not self._known(event):
            return
        if key == _UNROLL:
            self._say(UnrollLimit(*self._loop(event.inputs[0]), int(value)))
        elif key.startswith(_PIPELINE):
            self._pipelined(self._loop(event.inputs[0]), key.removeprefix(_PIPELINE), [int(v) for v in value])
        else:
            raise Unsaid(f"annotation '{key}' has no command")

    def _pipelined(self, loop: tuple[str, str], key: str, value: list[int]) -> None:
        """Note a part of a pipeline; it is said once stages and order are known, and again if it is asynchronous."""
        told = self.pipeline.setdefault(loop, {})
        told[key] = value
        stages, order = told.get("stage"), told.get("order")
        if stages is None or order is None:
            return
        copies = len(stages) - 1
        if any(stages[:-1]) or order != list(range(copies + 1)) or told.get("async_stages", [0]) != [0]:
            raise Unsaid(f"a pipeline of stages {stages} in the order {order}")
        self.names.steps = [s for s in self.names.steps if not (isinstance(s, Pipeline) and (s.stage, s.axis) == loop)]
        self._say(Pipeline(*loop, copies, stages[-1] + 1, int("async_stages" in told)))

    def cache_read(self, event: Event) -> None:
        scope = str(event.attrs[1])
        if event.made[0] in self.packed:
            return
        readers = event.inputs[1] if len(event.inputs) > 1 and isinstance(event.inputs[1], tuple) else ()
        stages = tuple(self.stages[r] for r in readers or event.inputs[:1])
        name = self.names.stage(f"{event.tensor}.{scope}")
        self._say(CacheRead(event.tensor, scope, stages, name))
        self.stages[event.made[0]] = name

    def cache_write(self, event: Event) -> None:
        stage, scope = self.stages[event.inputs[0]], str(event.attrs[1])
        name = self.names.stage(f"{stage}.{scope}")
        self._say(CacheWrite(stage, scope, name))
        self.stages[event.inputs[0]], self.stages[event.made[0]] = name, stage
        if stage in self.inside:
            self.inside[name] = self.inside.pop(stage)
        self.inside |= {other: (name, at[1]) for other, at in self.inside.items() if at[0] == stage}

    def compute_at(self, event: Event) -> None:
        stage = self.stages[event.inputs[0]]
        if event.inputs[1] == ROOT:
            return
        if event.inputs[1] == INLINE:
            self._say(Inline(stage))
            return
        if not isinstance(event.inputs[1], LoopAt):
            raise Unsaid("a place that is no loop")
        at = self._loop(event.inputs[1])
        kind = ComputeAt if event.kind == "ComputeAt" else ReverseComputeAt
        self._say(kind(stage, *at))
        self.inside[stage] = at
        spatial, reduce = self.names.own(stage)
        self.names.loops[stage] = [*spatial, *reduce]

    def inline(self, event: Event) -> None:
        stage = self.stages[event.inputs[0]]
        self._say(Inline(stage) if event.kind == "ComputeInline" else ReverseInline(stage))

    def scope(self, event: Event) -> None:
        self._say(SetScope(self.stages[event.inputs[0]], str(event.attrs[1])))

    def align(self, event: Event) -> None:
        stage = self.stages[event.inputs[0]]
        _, axis, factor, offset = (int(a) for a in event.attrs)
        self._say(StorageAlign(stage, self.names.own(stage)[0][axis], factor, offset))

    def layout(self, event: Event) -> None:
        if not event.digits:
            raise Unsaid("a layout that is no packing of an operand")
        reader = self.stages[event.inputs[0]]
        dims, lengths = zip(*event.digits, strict=True)
        self.names.steps.append(Pack(event.tensor, reader, dims, lengths))

    def factor(self, event: Event) -> None:
        stage, axis = self._loop(event.inputs[0])
        name, order = self.names.stage(f"{stage}.rf"), list(self.names.loops[stage])
        self._say(RFactor(stage, axis, int(event.attrs[0]), name))
        if self.names.loops[name] != order:  # TensorIR leaves the loops in their order
            self._say(Reorder(name, tuple(order)))
        kept = [loop for loop in order if loop in self.names.loops[stage]]
        if self.names.loops[stage] != kept:
            self._say(Reorder(stage, tuple(kept)))
        made = [block for block in event.made if block not in self.stages]
        self.stages[made[0]] = name


_KINDS: dict[str, Callable[[_Reader, Event], None]] = {
    "Split": _Reader.split, "Fuse": _Reader.fuse, "Reorder": _Reader.reorder, "Bind": _Reader.bind,
    "Parallel": _Reader.mark, "Vectorize": _Reader.mark, "Unroll": _Reader.mark, "Annotate": _Reader.annotate,
    "CacheRead": _Reader.cache_read, "CacheWrite": _Reader.cache_write, "ComputeAt": _Reader.compute_at,
    "ReverseComputeAt": _Reader.compute_at, "ComputeInline": _Reader.inline, "ReverseComputeInline": _Reader.inline,
    "SetScope": _Reader.scope, "StorageAlign": _Reader.align, "TransformLayout": _Reader.layout,
    "RFactor": _Reader.factor,
}  # fmt: skip
