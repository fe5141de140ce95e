"""Schedule steps applied to a ``tvm.s_tir.Schedule``, whose trace MetaSchedule records and replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, prod
from typing import Any

from ..ir.stage import DTYPE_BYTES
from ..roller.steps import Bind, CacheRead, Fuse, Pack, Parallel, Reorder, Split, Step, StorageAlign, Vectorize
from ..tir.nodes import REDUCTION, buffer_of, key, tensors_of
from ..tir.read import TirReading
from .flat import number_of
from .inlined_size import LARGEST, size_with
from .tensorir_copies import realize_of
from .tensorir_finishing import Finishing
from .tensorir_merging import Merged, axes_of
from .tensorir_packing import index_map, mark_packed, zero_behind
from .unchecked import Unchecked


class TirApplier(Finishing):
    """Carries steps out on blocks and loops of a TensorIR schedule.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
        Schedule of the function that was read.
    reading : TirReading
    func_name : str
        Name of the function in the schedule's module.
    shared_bytes : int, optional
        Shared memory of a block.
    """

    what = "s_tir.Schedule"
    late_copies = True

    def __init__(
        self, schedule: Any, reading: TirReading, func_name: str = "main", shared_bytes: int | None = None
    ) -> None:
        super().__init__(reading.own_loops())
        self._shared_bytes = shared_bytes
        self.schedule, self.func_name = schedule, func_name
        # By position, not by name: MetaSchedule's databases treat functions that differ only in names as one.
        every = schedule.get_child_blocks(schedule.get_sblock("root", func_name=func_name))
        self.blocks = dict(zip(reading.blocks, every, strict=True))
        for block in self.blocks.values():
            if not schedule.get_loops(block):  # of one point, or none
                schedule.add_unit_loop(block)
        for name, places in reading.order.items():
            loops = list(schedule.get_loops(self.blocks[name]))
            # They may be written in another order: steps go by spatial loops first, and TVM makes loops anew in
            # the order of the block's axes.
            if places != tuple(sorted(places)):
                schedule.reorder(*(loops[place] for place in places))
            kinds = [int(axis.iter_type) == REDUCTION for axis in schedule.get(self.blocks[name]).iter_vars]
            if kinds != sorted(kinds):
                schedule.reorder_block_iter_var(self.blocks[name], sorted(range(len(kinds)), key=kinds.__getitem__))
        params = tensors_of(schedule.mod[func_name])
        order = parameters_of(reading)
        self._inputs = {name: key(params[at]) for name, at in order.items()}
        #: Copies out of a stage with several results, beside the first, which is in `blocks`.
        self._more: dict[str, list[Any]] = {}
        #: Stage computed in place -> the stages that read it.
        self._inlined: dict[str, list[str]] = {}
        self._readers = readers_of(reading)
        #: Stages that are still to be copied: a copy is made of what a block writes, so they are inlined after it.
        self._to_copy: list[str] = []
        #: Stage computed inside a loop of another -> that loop.
        self._inside: dict[str, Any] = {}
        #: Copies of tensors, the extents of what one holds, and factors that its strides are rounded to.
        self._copies: set[str] = set()
        self._boxes: dict[str, list[int]] = {}
        self._aligned: dict[tuple[str, int], int] = {}
        self._bound: set[tuple[str, str]] = set()
        self._widths: dict[str, int] = {}
        self._aligning: set[tuple[str, int]] = set()
        self._step: Step | None = None
        self._remainders = False  # a reduction is cut into steps that do not divide it
        #: Loops of a stage in the order of its block's axes, if that differs from their own.
        self._iters: dict[str, list[str]] = {}
        #: Partial sums that do not all have the same number of terms.
        self._uneven: set[str] = set()
        #: Steps done on a stage's loops, and those of the loops that run in parallel.
        self._done: dict[str, list[Step]] = {}
        self._parallel: dict[str, set[str]] = {}
        stages = reading.expression.stages
        self._extents = {(stage.name, axis.name): axis.extent for stage in stages for axis in stage.axes}

    def run(self, steps: Sequence[Step]) -> None:
        self._to_copy = [step.stage for step in steps if isinstance(step, CacheRead)]
        self._bound = {(step.stage, step.axis) for step in steps if isinstance(step, Bind)}
        vectors = {step.stage for step in steps if isinstance(step, Vectorize)}
        self._widths = {s.stage: s.lengths[-1] for s in steps if isinstance(s, Split) and s.stage in vectors}
        copies = {s.name for s in steps if isinstance(s, CacheRead)}
        aligned = [s for s in steps if isinstance(s, StorageAlign) and s.stage in copies]
        self._aligning = {(s.stage, int(s.axis.lstrip("d"))) for s in aligned}
        super().run(steps)

    def _one(self, step: Step) -> None:
        self._step = step
        super()._one(step)
        if isinstance(step, (Split, Fuse, Reorder)):
            self._done.setdefault(step.stage, []).append(step)
        elif isinstance(step, Parallel):
            self._parallel.setdefault(step.stage, set()).add(step.axis)

    def _each(self, stage: str) -> Iterator[list[Any]]:
        """Yield the loops of each block of a stage."""
        for block in (self.blocks[stage], *self._more.get(stage, ())):
            yield self._loops(block, len(self.loops[stage]))

    def split(self, stage: str, at: int, lengths: Sequence[int]) -> None:
        if stage in self._inside and isinstance(self._step, Split):
            lengths = self._clamped(stage, at, self._step)
            if self.loops[stage][at] in self._own[stage][1]:
                extent = int(self.schedule.get(self._loop(stage, at)).extent)
                self._remainders = self._remainders or extent % prod(lengths) > 0
        for loops in self._each(stage):
            self.schedule.split(loops[at], [None, *lengths])

    def _clamped(self, stage: str, at: int, step: Split) -> list[int]:
        """Return a split's lengths, clamped as te does: to the loop, which may cover only a tile's part of an axis.

        Loops of threads keep their length: every thread of a block has the same, whatever there is to do.
        """
        left, lengths = int(self.schedule.get(self._loop(stage, at)).extent), []
        for name, length in zip(reversed(step.names[1:]), reversed(step.lengths), strict=True):
            lengths.append(length if (stage, name) in self._bound else min(length, left))
            left = ceil(left / lengths[-1])
        return lengths[::-1]

    def fuse(self, stage: str, at: Sequence[int]) -> None:
        for loops in self._each(stage):
            if len(at) > 1:
                self.schedule.fuse(*(loops[p] for p in at))

    def reorder(self, stage: str, at: Sequence[int]) -> None:
        for loops in self._each(stage):
            if len(at) > 1:
                self.schedule.reorder(*(loops[p] for p in at))

    def annotate(self, stage: str, at: int, how: str) -> None:
        if how == "vectorize" and stage in self._boxes:
            at = self._run(stage, at)
        for loops in self._each(stage):
            getattr(self.schedule, how)(loops[at])

    def bind(self, stage: str, at: int, thread: str) -> None:
        name = "vthread.x" if thread == "vthread" else thread
        for loops in self._each(stage):
            self.schedule.bind(loops[at], name)

    def unroll_limit(self, stage: str, at: int, limit: int) -> None:
        loop = self._loop(stage, at)
        self.schedule.annotate(loop, "pragma_auto_unroll_max_step", limit)
        self.schedule.annotate(loop, "pragma_unroll_explicit", 1)

    def storage_align(self, stage: str, at: int, factor: int, offset: int) -> None:
        self._aligned[stage, at] = factor
        self.schedule.storage_align(self.blocks[stage], 0, at, factor, offset)

    def compute_at(self, stage: str, target: str, at: int) -> None:
        if stage in self._uneven:
            self._merge(stage, target, at)
            return
        loop = self._loop(target, at)
        rows = self._rows_in_one(stage, loop) if stage in self._copies else 0
        if rows:
            self._flatten(stage, rows)
        self.schedule.compute_at(self.blocks[stage], loop, preserve_unit_loops=True)
        for _ in range(rows):  # loops keep their number, and so their names
            self.schedule.add_unit_loop(self._loops(self.blocks[stage], 1)[0])
        self._inside[stage] = loop
        if stage in self._copies:
            loops = self._loops(self.blocks[stage], len(self.loops[stage]))
            box = [int(self.schedule.get(own).extent) for own in loops]
            self._check_room(stage, box)
            self._boxes[stage] = [*box[: len(box) - 1 - rows], box[-1]]
        order = self.loops[stage]
        made = self._iters.get(stage, order)
        if made != order and sorted(made) == sorted(order):
            loops = self._loops(self.blocks[stage], len(order))
            self.schedule.reorder(*(loops[made.index(a)] for a in order))

    def _check_room(self, stage: str, box: list[int]) -> None:
        """Refuse a copy for which a block has no room: TVM copies all of a tensor where it sees no part of it."""
        buffer = self._written(self.blocks[stage])
        size = prod(box) * DTYPE_BYTES.get(str(buffer.dtype), 4)
        if self._shared_bytes and str(buffer.scope()).startswith("shared") and size > self._shared_bytes:
            told = f"TVM copies {size} B to '{stage}', a block has {self._shared_bytes} B of shared memory"
            raise self._error(told)

    def _merge(self, stage: str, target: str, at: int) -> None:
        """Do as ``compute_at``, but merge loops: a stage's axes are the target's first, except some of extent 1."""
        names, steps, block = self.loops[target][: at + 1], self._done.get(target, ()), self.blocks[stage]
        axes = axes_of(names, steps)
        if axes != self._own[target][0][: len(axes)]:
            raise self._error(f"loops {', '.join(names)} of '{target}' are not of its first axes")
        loops = self._loops(block, len(self.loops[stage]))
        lacking: list[str] = []
        for place, axis in enumerate(axes):
            loop = loops[place - len(lacking)]
            if self._extents.get((target, axis)) == 1 and int(self.schedule.get(loop).extent) > 1:
                self.schedule.add_unit_loop(loop)
                lacking.append(axis)
        merged = Merged(self.schedule, block, axes, self.loops[stage][len(axes) - len(lacking) :], lacking)
        merged.follow(steps)
        loop = merged.merge(names, self._loop(target, at))
        self._inside = {other: own if self._exists(own) else loop for other, own in self._inside.items()}
        self._inside[stage] = loop
        for place, name in enumerate(names):  # loops that are merged run one after the other again
            if name in self._parallel.get(target, ()):
                self.annotate(target, place, "parallel")

    def inline(self, stage: str) -> None:
        if self._too_large(stage):
            if self._bound:  # a kernel has no room for other loops
                raise self._error(f"'{stage}' computed in place makes over {LARGEST} expressions of a stage")
            self._store(stage)
            return
        self._inlined[stage] = list(self._readers.get(stage, ()))
        if stage not in self._to_copy:
            self.schedule.compute_inline(self.blocks[stage])

    def _too_large(self, stage: str) -> bool:
        """Return whether a stage in place would make a reader larger than a compiler is quick with."""
        block = self.blocks[stage]
        homes = [home for reader in self._readers.get(stage, ()) for home in self._homes(reader)]
        body, buffer = self.schedule.get(block).body, self._written(block)
        readers = (self.schedule.get(self.blocks[home]).body for home in homes if home in self.blocks)
        return any(size_with(reader, body, buffer) > LARGEST for reader in readers)

    def _store(self, stage: str) -> None:
        """Give a stage on a CPU loops of its own, rows in parallel."""
        *rows, _ = self.schedule.get_loops(self.blocks[stage])
        if rows:
            self.schedule.parallel(self.schedule.fuse(*rows) if len(rows) > 1 else rows[0])

    def _homes(self, stage: str) -> list[str]:
        """Return the stages in whose blocks a stage is computed."""
        if stage not in self._inlined or stage in self._to_copy:
            return [stage]
        return list(dict.fromkeys(home for reader in self._inlined[stage] for home in self._homes(reader)))

    def cache_read(self, stage: str, scope: str, readers: Sequence[str], name: str) -> int:
        readers = list(dict.fromkeys(home for reader in readers for home in self._homes(reader)))
        block = self.blocks[readers[0]]
        wanted = self._key_of(stage)
        reads = [buffer_of(region) for region in self.schedule.get(block).reads]
        at = next((n for n, buffer in enumerate(reads) if key(buffer) == wanted), None)
        if at is None:
            raise self._error(f"block '{readers[0]}' does not read '{stage}' (reads {[str(b.name) for b in reads]})")
        consumers = [self.blocks[reader] for reader in readers]
        self.blocks[name] = self.schedule.cache_read(block, at, scope, consumer_blocks=consumers)
        self._copies.add(name)
        self._to_copy.remove(stage)
        if stage in self._inlined and stage not in self._to_copy:
            self.schedule.compute_inline(self.blocks[stage])
        return len(reads[at].shape)

    def pack(self, step: Pack) -> None:
        block, copied = self.blocks[step.reader], step.stage not in self._inputs
        wanted = key(self._written(self.blocks[step.stage])) if copied else self._inputs[step.stage]
        reads = [key(buffer_of(region)) for region in self.schedule.get(block).reads]
        if wanted not in reads:
            raise self._error(f"'{step}': block '{step.reader}' does not read '{step.stage}'")
        at = reads.index(wanted)
        constant = None if copied else self.schedule.cache_read(block, at, "global", consumer_blocks=[block])
        zero = zero_behind(step, buffer_of(self.schedule.get(block).reads[at]))
        self.schedule.transform_layout(block, ("read", at), index_map(step), zero)
        if constant is not None:
            mark_packed(self.schedule, constant)

    def cache_write(self, stage: str, scope: str, name: str) -> None:
        block = self.blocks[stage]
        count = len(self.schedule.get(block).writes)
        copies = [self.schedule.cache_write(block, n, scope) for n in range(count)]
        self.blocks[name], self.blocks[stage], self._more[stage] = block, copies[0], copies[1:]
        if stage in self._iters:
            self._iters[name] = self._iters.pop(stage)
        if stage in self._uneven:
            self._uneven = self._uneven - {stage} | {name}

    def rfactor(self, stage: str, at: int, position: int, name: str) -> None:
        names = self.loops[stage]
        spatial, reduce = self._own[stage]
        self.blocks[name] = self.schedule.rfactor(self._loop(stage, at), position)
        parts = [a for a in names if a not in (*spatial, *reduce, names[at])]
        inner = list(dict.fromkeys(part for a in reduce for part in ([a] if a in names else parts)))
        # Both blocks have the new axis as their first iterator, in whatever order their loops are.
        self._iters[name], self._iters[stage] = [names[at], *spatial, *inner], [names[at], *spatial]
        # TensorIR keeps the loops in the order in which they were; te lists them by kind, the new axis at `position`.
        rest = [a for a in reduce if a in names and a != names[at]]
        rest += [a for a in names if a not in (*spatial, *reduce, names[at])]
        order = [*spatial[:position], names[at], *spatial[position:], *rest]
        loops = self._loops(self.blocks[name], len(names))
        if order != names:
            self.schedule.reorder(*(loops[names.index(a)] for a in order))
        predicate = realize_of(self.schedule, self.schedule.get_sref(self.blocks[name])).predicate
        if number_of(predicate) != 1:
            self._uneven.add(name)


def parameters_of(reading: TirReading) -> dict[str, int]:
    """Return the position of each input among the function's parameters."""
    inputs = {t.name for t in reading.expression.inputs}
    return {name: at for at, name in enumerate(reading.arguments) if name in inputs}


def readers_of(reading: TirReading) -> dict[str, list[str]]:
    """Return the stages that read each tensor."""
    found: dict[str, list[str]] = {}
    for stage in reading.expression.stages:
        for tensor in dict.fromkeys(access.tensor for access in stage.reads):
            found.setdefault(tensor, []).append(stage.name)
    return found


def apply_steps_tir(func: Any, reading: TirReading, steps: Sequence[Step], shared_bytes: int | None = None) -> Any:
    """Return a schedule of the function with the steps applied.

    Parameters
    ----------
    func : PrimFunc or IRModule
        Function that was read; in a module it is ``main``.
    reading : TirReading
    steps : sequence of Step
    shared_bytes : int, optional
        Shared memory of a block, beyond which no copy goes.

    Returns
    -------
    tvm.s_tir.Schedule
        Its ``trace`` replays on the original function.

    Raises
    ------
    MeasureError
        If a step does not apply (kind 'schedule error'); names the step.
    """
    from tvm import s_tir

    schedule = s_tir.Schedule(func)
    applier = TirApplier(Unchecked(schedule), reading, shared_bytes=shared_bytes)
    applier.run(steps)
    applier.finish()
    return schedule
