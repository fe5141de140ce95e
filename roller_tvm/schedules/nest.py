"""The loop nest of a script, without a TVM: extents, stages inside of loops, and rules that each command must keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

from ..codegen.applier import StepApplier
from ..device import DeviceSpec
from ..ir import Index, Stage, TensorExpression, common_box
from ..roller.loops import source_loops
from ..roller.steps import Bind, CacheWrite, Fuse, Step, TensorIrStep
from .script import ScheduleError, Script, command_of

#: An axis of a stage, its stride and how many of its steps a loop makes.
Digit = tuple[str, int, int]


@dataclass
class Loop:
    """One loop: its trips, the steps that it makes along the stage's axes, and how it runs."""

    name: str
    extent: int
    digits: tuple[Digit, ...]
    how: str = ""


@dataclass
class Body:
    """A stage in its loops."""

    stage: str
    loops: list[Loop]
    tensor: str
    scope: str = "global"
    #: Stage and loop that it is computed in.
    inside: tuple[str, Loop] | None = None
    inlined: bool = False
    aligned: int = 0
    adds: str = ""  # stage that it copies, or whose partial sums it adds up
    #: Axes made of a part of a reduction -> that reduction, and the stride along it.
    parts: dict[str, tuple[str, int]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


class LoopNest(StepApplier):
    """The loops of every stage while steps are carried out on them; each step is checked.

    Parameters
    ----------
    expression : TensorExpression
    device : DeviceSpec, optional
        Its limits hold; without one nothing is limited.
    """

    what = "loop nest"

    def __init__(self, expression: TensorExpression, device: DeviceSpec | None = None) -> None:
        own = {s.name: (source_loops(s.spatial), source_loops(s.reduce)) for s in expression.stages}
        super().__init__(own)
        self.expression, self.device = expression, device
        self.bodies = {s.name: Body(s.name, _own_loops(s), s.name) for s in expression.stages}
        #: Stage that a command made -> the stage of the expression that it computes.
        self.computes = {s.name: s.name for s in expression.stages}
        self.copied: dict[str, tuple[str, ...]] = {}
        self.opaque = False
        self._command = ""

    def run(self, steps: Sequence[Step]) -> None:
        self._threads = {(s.stage, s.axis) for s in steps if isinstance(s, Bind)}  # some of a block's may be idle
        self._threads |= {(s.stage, a) for s in steps if isinstance(s, Fuse) and (s.stage, s.name) in self._threads
                          for a in s.axes}  # fmt: skip
        for step in steps:
            self._command = command_of(step)
            late = isinstance(step, CacheWrite) and step.stage in self.loops and step.stage not in self._fresh
            if isinstance(step, TensorIrStep) or late:
                self.opaque = True
            if self.opaque:
                continue  # TensorIR alone knows the loops from here on
            self._step = step
            try:
                self._one(step)
            except NotImplementedError:
                self.opaque = True
        if not self.opaque:
            self._command = ""
            self._check_threads()
            self._check_memory()

    def _error(self, what: str, remedy: str = "see the loops of this script by --schedule") -> ScheduleError:  # type: ignore[override]
        return ScheduleError(what, self._command or "schedule", remedy)

    # Steps -----------------------------------------------------------------------------------------------------------

    def split(self, stage: str, at: int, lengths: Sequence[int]) -> None:
        loop = self.bodies[stage].loops[at]
        if min(lengths) < 1:
            raise self._error(f"lengths must be 1 or more (got {min(lengths)})", "give the number of trips")
        shrunk = self.bodies[stage].inside is not None or stage in self.copied
        names = self._step.names  # type: ignore[attr-defined]
        fixed = not shrunk or self._adds(stage, loop)
        if max(lengths) > loop.extent and fixed and not self._threads & {(stage, name) for name in names}:
            what = f"a length of {max(lengths)}, loop '{loop.name}' has {loop.extent}"
            raise self._error(what, f"give lengths of at most {loop.extent}")
        outer = ceil(loop.extent / prod(lengths))
        made, rest = [], loop.digits
        for name, length in zip(reversed(names[1:]), reversed(lengths), strict=True):
            inner, rest = _cut(rest, length)
            made.append(Loop(name, length, inner))
        self.bodies[stage].loops[at : at + 1] = [Loop(names[0], outer, rest), *reversed(made)]

    def fuse(self, stage: str, at: Sequence[int]) -> None:
        loops = self.bodies[stage].loops
        parts = [loops[p] for p in at]
        name = self._step.name  # type: ignore[attr-defined]
        digits = tuple(d for loop in parts for d in loop.digits)
        loops[at[0] : at[-1] + 1] = [Loop(name, prod(loop.extent for loop in parts), digits)]

    def reorder(self, stage: str, at: Sequence[int]) -> None:
        loops = self.bodies[stage].loops
        loops[:] = [loops[p] for p in at]

    def annotate(self, stage: str, at: int, how: str) -> None:
        loop = self.bodies[stage].loops[at]
        if how == "parallel" and self._adds(stage, loop):
            what = f"loop '{loop.name}' adds up: in parallel, its trips would race"
            raise self._error(what, "take a loop of the output, or rfactor the reduction first")
        loop.how = how

    def bind(self, stage: str, at: int, thread: str) -> None:
        self.bodies[stage].loops[at].how = thread

    def unroll_limit(self, stage: str, at: int, limit: int) -> None:
        self.bodies[stage].words.append(f"unrolled up to {limit} bodies in {self.loops[stage][at]}")

    def storage_align(self, stage: str, at: int, factor: int, offset: int) -> None:
        self.bodies[stage].aligned = offset

    def inline(self, stage: str) -> None:
        if self._source(stage).reduce:
            raise self._error(f"'{stage}' is a reduction, which cannot be computed in place", "use compute_at")
        self.bodies[stage].inlined = True

    def cache_read(self, stage: str, scope: str, readers: Sequence[str], name: str) -> int:
        tensor = self.expression.tensors.get(stage)
        if tensor is None:
            raise self._error(f"no tensor '{stage}'", f"tensors: {', '.join(self.expression.tensors)}")
        if missing := [r for r in readers if r not in self.loops]:
            raise self._error(f"no stage '{missing[0]}' to read it", f"stages: {', '.join(self.loops)}")
        loops = [Loop(f"d{d}", e, ((f"d{d}", 1, e),)) for d, e in enumerate(tensor.shape)]
        self.bodies[name] = Body(name, loops, stage, scope)
        self.copied[name] = tuple(readers)
        return len(tensor.shape)

    def cache_write(self, stage: str, scope: str, name: str) -> None:
        body, spatial = self.bodies[stage], self._own[stage][0]
        loops = [Loop(loop.name, loop.extent, loop.digits) for loop in body.loops]
        self.bodies[name] = Body(name, body.loops, stage, scope, adds=body.adds, parts=body.parts)
        body.loops, body.adds = [loop for loop in loops if loop.name in spatial], name
        self.computes[name] = self.computes[stage]

    def rfactor(self, stage: str, at: int, position: int, name: str) -> None:
        body, (spatial, reduce) = self.bodies[stage], self._own[stage]
        own = {loop.name: loop for loop in body.loops}
        axis = self.loops[stage][at]
        source, stride, _ = own[axis].digits[-1] if own[axis].digits else (axis, 1, 1)
        source, stride = body.parts.get(source, (source, 1))[0], stride * body.parts.get(source, (source, 1))[1]
        body.parts = {**body.parts, axis: (source, stride)}
        own[axis].digits = ((axis, 1, own[axis].extent),)
        rest = [a for a in own if a not in (*spatial, axis)]
        rest.sort(key=lambda a: a not in reduce)  # as TVM lists them
        made = [*spatial[:position], axis, *spatial[position:], *rest]
        self.bodies[name] = Body(name, [own[a] for a in made], stage, adds=body.adds, parts=body.parts)
        self.computes[name] = self.computes[stage]
        merged = [Loop(a, own[a].extent, own[a].digits) for a in (*spatial, axis)]
        body.loops, body.adds = merged, name

    def compute_at(self, stage: str, target: str, at: int) -> None:
        if stage == target:
            raise self._error("a stage cannot be computed in itself", "name another stage")
        body, loop = self.bodies[stage], self.bodies[target].loops[at]
        body.inside = (target, loop)
        region = self._region(stage, target, at)
        for own in body.loops:  # its loops are not split yet, or keep their lengths
            if len(own.digits) == 1 and own.digits[0][0] in region:
                axis, stride, _ = own.digits[0]
                extent = min(own.extent, ceil(region[axis] / stride))
                own.extent, own.digits = extent, ((axis, stride, extent),)

    # What a stage computes inside of a loop --------------------------------------------------------------------------

    def _source(self, stage: str) -> Stage:
        return self.expression.stage(self.computes[stage])

    def _tile(self, stage: str, loops: Sequence[Loop]) -> dict[str, int]:
        """Return how far loops go along each axis of a stage."""
        extents, parts = {a.name: a.extent for a in self._source(stage).axes}, self.bodies[stage].parts
        tile = dict.fromkeys([*extents, *parts], 1)
        for loop in loops:
            for axis, stride, count in loop.digits:
                if axis in parts:
                    tile[axis] += (count - 1) * stride
                    axis, stride = parts[axis][0], stride * parts[axis][1]
                if axis in extents:
                    tile[axis] = min(extents[axis], tile[axis] + (count - 1) * stride)
        return tile

    def _region(self, stage: str, target: str, at: int) -> dict[str, int]:
        """Return the part of a stage that one trip of the target's loop needs: axis or dimension -> extent."""
        tensor = self.copied.get(stage) and self.bodies[stage].tensor or self.computes[stage]
        shape = self.expression.tensors[tensor].shape
        tile = self._tile(target, self.bodies[target].loops[at + 1 :])
        if self.bodies[stage].scope == "shared":
            tile |= {a: max(tile[a], e) for a, e in self._of_all_threads(target, at).items() if a in tile}
        if self.computes.get(target) == tensor and stage not in self.copied:
            return {a: tile[a] for a in (*(a.name for a in self._source(target).spatial), *self.bodies[stage].parts)
                    if a in tile}  # fmt: skip
        boxes = [b for reader, own in self._readers(stage, target, tile) for b in self._boxes(reader, own, tensor)]
        found = tuple(max(column) for column in zip(*boxes, strict=True)) if boxes else tuple(shape)
        if stage in self.copied:
            return {f"d{d}": e for d, e in enumerate(found)}
        spatial = self._source(stage).spatial
        if len(spatial) != len(found):  # axes that are parts of a dimension
            return {a.name: a.extent for a in spatial}
        return {a.name: e for a, e in zip(spatial, found, strict=True)}

    def _of_all_threads(self, target: str, at: int) -> dict[str, int]:
        """Return how far all threads of a block go along a stage's spatial axes: they share one memory."""
        body = self.bodies[target]
        shared = [n for n, loop in enumerate(body.loops[: at + 1]) if _is_thread(loop)]
        own = self._tile(target, body.loops[shared[0] :]) if shared else {}
        if body.inside is None or target not in self.computes:
            return own
        outer, loop = body.inside
        loops = self.bodies[outer].loops
        inside = [n for n, other in enumerate(loops[: loops.index(loop) + 1]) if _is_thread(other)]
        if not inside:
            return own
        region = self._region(target, outer, inside[0] - 1)
        spatial = {a.name for a in self._source(target).spatial} | set(self.bodies[target].parts)
        return {a: max(e, own.get(a, 1)) for a, e in region.items() if a in spatial}

    def _readers(self, stage: str, target: str, tile: dict[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
        wanted = self.copied.get(stage, tuple(self.loops))
        for name in wanted:
            if name == target:
                yield self.computes[name], tile
            elif name in self.computes and (inside := self.bodies[name].inside) and inside[0] == target:
                yield self.computes[name], self._tile(name, self.bodies[name].loops)
            elif name in self.computes and self.bodies[name].inlined:
                yield self.computes[target], tile

    def _boxes(self, reader: str, tile: Mapping[str, int], tensor: str) -> Iterator[tuple[int, ...]]:
        """Yield the extents that a stage reads of a tensor, also through stages in place."""
        reads: dict[str, list[Sequence[Index]]] = {}
        for access in self.expression.stage(reader).reads:
            reads.setdefault(access.tensor, []).append(access.indices)
        for name, several in reads.items():
            found = common_box(several, tile, self.expression.tensors[name].shape)
            if name == tensor:
                yield found
            elif self.expression.is_stage(name) and self.bodies[name].inlined:
                own = self.expression.stage(name)
                names = [a.name for a in own.axes]
                inner = dict(zip(names, found, strict=True)) if len(names) == len(found) else own.extents
                yield from self._boxes(own.name, inner, tensor)

    # Rules -----------------------------------------------------------------------------------------------------------

    def _check_threads(self) -> None:
        limit = self.device.limits.max_threads_per_block if self.device is not None else None
        for body in self.bodies.values():
            threads = prod(loop.extent for loop in body.loops if loop.how.startswith("threadIdx"))
            if limit is not None and threads > limit:
                what = f"{threads} threads a block, {self.device.name if self.device else ''} has {limit}"
                raise self._error(f"'{body.stage}': {what}", "bind a shorter loop to threadIdx")

    def _check_memory(self) -> None:
        """Refuse copies that do not fit into the memory of their scope."""
        limits = self.device.limits if self.device is not None else None
        limit = (limits.shared_per_block_optin_bytes or limits.shared_per_block_bytes) if limits else None
        shared = {name: self._bytes(b) for name, b in self.bodies.items() if b.scope == "shared" and not b.inlined}
        if limit is not None and sum(shared.values()) > limit:
            largest = max(shared, key=lambda name: shared[name])
            what = f"shared memory of {sum(shared.values())} B, a block has {limit}"
            raise self._error(what, f"shorten the loops in which '{largest}' ({shared[largest]} B) is used")

    def _bytes(self, body: Body) -> int:
        tensor = self.expression.tensors[body.tensor]
        extents: dict[str, int] = {}
        for loop in body.loops:
            for axis, stride, count in loop.digits:
                extents[axis] = extents.get(axis, 1) + (count - 1) * stride
        sizes = list(extents.values()) or [1]
        sizes[-1] += body.aligned
        return prod(sizes) * tensor.bytes // max(1, tensor.elements)

    # Words -----------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        if self.opaque:
            return "the loops of this script are known to TensorIR alone"
        placed = {b.stage for b in self.bodies.values() if b.inside is not None}
        order = [*(n for n in self.bodies if n in self.copied), *(n for n in self.bodies if n not in self.copied)]
        lines = [line for name in order if name not in placed and not self.bodies[name].inlined
                 for line in self._lines(self.bodies[name], 0, order)]  # fmt: skip
        return "\n".join(lines)

    def _lines(self, body: Body, depth: int, order: Sequence[str]) -> Iterator[str]:
        for loop in body.loops:
            how = f"  {loop.how}" if loop.how else ""
            yield f"{'  ' * depth}for {loop.name} in {loop.extent}{how}"
            depth += 1
            for name in order:
                inside = self.bodies[name].inside
                if inside is not None and inside[1] is loop and not self.bodies[name].inlined:
                    yield from self._lines(self.bodies[name], depth, order)
        reads = [body.tensor] if body.stage in self.copied else self._shown_reads(body.stage)
        adds = any(self._adds(body.stage, loop) for loop in body.loops)
        sums = f" {self._source(body.stage).combiner}" if adds else ""
        where = "" if body.scope == "global" else f" in {body.scope}"
        yield f"{'  ' * depth}{body.stage}{where} ={sums} {', '.join(reads)}"

    def _adds(self, stage: str, loop: Loop) -> bool:
        """Return whether a loop goes along a reduction."""
        reduced = {a.name for a in self._source(stage).reduce} if stage in self.computes else set()
        merged = self.bodies[stage].adds and self.bodies[self.bodies[stage].adds].scope == "global"
        reduced |= set(self.bodies[stage].parts) if merged else set()
        return any(axis in reduced for axis, _, _ in loop.digits)

    def _shown_reads(self, stage: str) -> list[str]:
        source = self._source(stage)
        if self.bodies[stage].adds:
            return [self.bodies[stage].adds]
        reads = dict.fromkeys(access.tensor for access in source.reads)
        copies = {self.bodies[c].tensor: c for c, readers in self.copied.items() if stage in readers}
        return [copies.get(tensor, tensor) for tensor in reads]


def _is_thread(loop: Loop) -> bool:
    return loop.how.startswith(("threadIdx", "vthread"))


def _own_loops(stage: Stage) -> list[Loop]:
    """Return the loops that a stage starts with: those of the source, before axes are fused or split."""
    loops: dict[str, Loop] = {}
    for axis in stage.axes:
        if axis.part_of is not None:
            name, stride = axis.part_of
            found = loops.setdefault(name, Loop(name, 1, ()))
            found.extent *= axis.extent
            found.digits = (*found.digits, (axis.name, 1, axis.extent))
        elif axis.fused_of:
            stride = axis.extent
            for name, extent in axis.fused_of:
                stride //= extent
                loops[name] = Loop(name, extent, ((axis.name, stride, extent),))
        else:
            loops[axis.name] = Loop(axis.name, axis.extent, ((axis.name, 1, axis.extent),))
    return list(loops.values())


def _cut(digits: tuple[Digit, ...], length: int) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
    """Return the innermost `length` steps of digits, and the rest; where they do not divide, inner ones are whole."""
    inner: list[Digit] = []
    rest = list(digits)
    while rest and length > 1:
        axis, stride, count = rest.pop()
        if count <= length:
            inner.insert(0, (axis, stride, count))
            length = ceil(length / count)
            continue
        inner.insert(0, (axis, stride, length))
        rest.append((axis, stride * length, ceil(count / length)))
        length = 1
    return tuple(inner), tuple(rest)


def nest_of(script: Script, expression: TensorExpression, device: DeviceSpec | None = None) -> LoopNest:
    """Return the loop nest of a script.

    Raises
    ------
    ScheduleError
        A command does not apply, or the loops break a limit of the device.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> script = Script.read("relu.split(i1, [8], [i1.0, i1.1])\\nrelu.parallel(i0)")
    >>> print(nest_of(script, operator("relu", shape=(4, 16))))
    for i0 in 4  parallel
      for i1.0 in 2
        for i1.1 in 8
          relu = data
    """
    nest = LoopNest(expression, device)
    nest.run(script.steps)
    return nest
