"""Schedule steps applied to a ``tvm.s_tir.Schedule``: its trace is what MetaSchedule records and replays."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd, prod
from typing import Any

from ..lower.steps import Bind, CacheRead, Pack, Split, Step, StorageAlign, Vectorize
from .nodes import (
    REDUCTION,
    analyzer_of_tvm,
    buffer_of,
    elements_kept,
    key,
    map_of_indices,
    parameters,
    range_of,
    runs_along,
    variables,
)
from .packing import index_map, mark_packed
from .read import TirReading
from .tensor import TensorSteps


class TirApplier(TensorSteps):
    """Carries steps out on blocks and loops of a TensorIR schedule.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
        Of the function that was read.
    reading : TirReading
    func_name : str
        The function in the schedule's module.
    """

    what = "s_tir.Schedule"

    def __init__(self, schedule: Any, reading: TirReading, func_name: str = "main") -> None:
        super().__init__(reading.own_loops())
        self.schedule, self.func_name = schedule, func_name
        # By position, not by name: MetaSchedule's databases hold functions that differ in names alone for one.
        every = schedule.get_child_blocks(schedule.get_sblock("root", func_name=func_name))
        self.blocks = dict(zip(reading.blocks, every, strict=True))
        for block in self.blocks.values():
            if not schedule.get_loops(block):  # of one point, or none
                schedule.add_unit_loop(block)
        params = parameters(schedule.mod[func_name])
        order = parameters_of(reading)
        self._inputs = {name: key(params[at]) for name, at in order.items()}
        #: Copies out of a stage with several results, beside the first, which is in `blocks`.
        self._more: dict[str, list[Any]] = {}
        #: Stage computed in place -> where: the stages that read it.
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
        #: The loops of a stage in the order of its block's axes, where that is not theirs.
        self._iters: dict[str, list[str]] = {}

    def run(self, steps: Sequence[Step]) -> None:
        self._to_copy = [step.stage for step in steps if isinstance(step, CacheRead)]
        self._bound = {(step.stage, step.axis) for step in steps if isinstance(step, Bind)}
        vectors = {step.stage for step in steps if isinstance(step, Vectorize)}
        self._widths = {s.stage: s.lengths[-1] for s in steps if isinstance(s, Split) and s.stage in vectors}
        self._aligning = {(s.stage, int(s.axis.lstrip("d"))) for s in steps if isinstance(s, StorageAlign)}
        super().run(steps)

    def _one(self, step: Step) -> None:
        self._step = step
        super()._one(step)

    def _loops(self, block: Any, count: int) -> list[Any]:
        loops = list(self.schedule.get_loops(block))
        return loops[len(loops) - count :]

    def _every(self, stage: str) -> list[Any]:
        return [self.blocks[stage], *self._more.get(stage, ())]

    def _loop(self, stage: str, at: int) -> Any:
        return self._loops(self.blocks[stage], len(self.loops[stage]))[at]

    def split(self, stage: str, at: int, lengths: Sequence[int]) -> None:
        if stage in self._inside and isinstance(self._step, Split):
            lengths = self._clamped(stage, at, self._step)
            if self.loops[stage][at] in self._own[stage][1]:
                extent = int(self.schedule.get(self._loop(stage, at)).extent)
                self._remainders = self._remainders or extent % prod(lengths) > 0
        for block in self._every(stage):
            self.schedule.split(self._loops(block, len(self.loops[stage]))[at], [None, *lengths])

    def _clamped(self, stage: str, at: int, step: Split) -> list[int]:
        """Lengths of a split as te takes them: no longer than the loop, which may have a tile's part of an axis alone.

        Loops of threads keep their length: every thread of a block has the same, whatever there is to do.
        """
        left, lengths = int(self.schedule.get(self._loop(stage, at)).extent), []
        for name, length in zip(reversed(step.names[1:]), reversed(step.lengths), strict=True):
            lengths.append(length if (stage, name) in self._bound else min(length, left))
            left = ceil(left / lengths[-1])
        return lengths[::-1]

    def fuse(self, stage: str, at: Sequence[int]) -> None:
        for block in self._every(stage):
            loops = self._loops(block, len(self.loops[stage]))
            if len(at) > 1:
                self.schedule.fuse(*(loops[p] for p in at))

    def reorder(self, stage: str, at: Sequence[int]) -> None:
        for block in self._every(stage):
            loops = self._loops(block, len(self.loops[stage]))
            if len(at) > 1:
                self.schedule.reorder(*(loops[p] for p in at))

    def annotate(self, stage: str, at: int, how: str) -> None:
        if how == "vectorize" and stage in self._boxes:
            at = self._run(stage, at)
        for block in self._every(stage):
            getattr(self.schedule, how)(self._loops(block, len(self.loops[stage]))[at])

    def _run(self, stage: str, at: int) -> int:
        """The loop of a copy to vectorise: a part of it where TVM would not see that its elements are neighbours.

        They are neighbours in a row of the tensor at least; rows after one another can be, and may or may not be seen.
        """
        loop = self._loop(stage, at)
        width, row = int(self.schedule.get(loop).extent), self._boxes[stage][-1]
        if row % width == 0 or self._seen_as_run(stage, at):
            return at
        outer, _inner = self.schedule.split(loop, [None, gcd(width, row)])
        self.schedule.unroll(outer)
        name = self.loops[stage][at]
        self.loops[stage][at : at + 1] = [f"{name}.rows", name]
        return at + 1

    def _seen_as_run(self, stage: str, at: int) -> bool:
        """Whether the addresses of a copy become plain ones along a loop, in the two steps in which TVM simplifies."""
        block = self.blocks[stage]
        # Where the copied box begins is said by the loops around its own, which start at 0.
        analyzer, start = analyzer_of_tvm(), analyzer_of_tvm()
        loops = [self.schedule.get(sref) for sref in self.schedule.get_loops(block)]
        outer = len(loops) - len(self.loops[stage])
        for n, loop in enumerate(loops):
            analyzer.bind(loop.loop_var, range_of(loop))
            start.bind(loop.loop_var, range_of(loop) if n < outer else range_of(loop, 1))
        lane = self.schedule.get(self._loop(stage, at)).loop_var
        values = list(_realize(self.schedule, self.schedule.get_sref(block)).iter_values)
        source = buffer_of(self.schedule.get(block).reads[0]) if len(self.schedule.get(block).reads) else None
        shape = [int(e) for e in source.shape] if source is not None else []
        box = self._boxes[stage]
        if len(shape) != len(values):
            return False
        inside = [analyzer.simplify(v - start.simplify(v)) for v in values]
        padded = [self._aligned.get((stage, dim), 1) for dim in range(len(box))]
        whole = [analyzer.simplify(v) for v in values]
        return all(
            runs_along(analyzer.simplify(flat(indices, extents, factors)), lane)
            for indices, extents, factors in ((whole, shape, [1] * len(shape)), (inside, box, padded))
        )

    def bind(self, stage: str, at: int, thread: str) -> None:
        name = "vthread.x" if thread == "vthread" else thread
        for block in self._every(stage):
            self.schedule.bind(self._loops(block, len(self.loops[stage]))[at], name)

    def unroll_limit(self, stage: str, at: int, limit: int) -> None:
        loop = self._loop(stage, at)
        self.schedule.annotate(loop, "pragma_auto_unroll_max_step", limit)
        self.schedule.annotate(loop, "pragma_unroll_explicit", 1)

    def storage_align(self, stage: str, at: int, factor: int, offset: int) -> None:
        self._aligned[stage, at] = factor
        self.schedule.storage_align(self.blocks[stage], 0, at, factor, offset)

    def compute_at(self, stage: str, target: str, at: int) -> None:
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
            self._boxes[stage] = [*box[: len(box) - 1 - rows], box[-1]]
        order = self.loops[stage]
        made = self._iters.get(stage, order)
        if made != order and sorted(made) == sorted(order):
            loops = self._loops(self.blocks[stage], len(order))
            self.schedule.reorder(*(loops[made.index(a)] for a in order))

    def _rows_in_one(self, stage: str, loop: Any) -> int:
        """How many of a copy's last dimensions to fuse with the one before, so that vectors go past short rows.

        These dimensions are copied whole: they are one run in memory, which TVM does not see through their indices.
        """
        width, aligned = self._widths.get(stage, 1), [d for s, d in self._aligning if s == stage]
        block, rank = self.blocks[stage], len(self.loops[stage])
        shape = [int(e) for e in self._written(block).shape]
        shared = str(self._written(block).scope()).startswith("shared")
        if not shared or rank < 2 or width == 1 or gcd(width, shape[-1]) > 1:  # shorter vectors stay in a row
            return 0
        trial = self.schedule.copy()
        trial.compute_at(block, loop, preserve_unit_loops=True)
        loops = list(trial.get_loops(block))[-rank:]
        box = [int(trial.get(own).extent) for own in loops]
        rows, run = 0, box[-1]
        while rows + 1 < rank and box[rank - 1 - rows] == shape[rank - 1 - rows] and run % width:
            rows += 1
            run *= box[rank - 1 - rows]
        return 0 if run % width or any(d >= rank - 1 - rows for d in aligned) else rows

    def _flatten(self, stage: str, rows: int) -> None:
        """Fuse the last dimensions of a copy, in its memory and in its loops."""
        block = self.blocks[stage]
        shape = [int(e) for e in self._written(block).shape]
        first = len(shape) - 1 - rows

        def fused(*index: Any) -> list[Any]:
            run = index[first]
            for i, extent in zip(index[first + 1 :], shape[first + 1 :], strict=True):
                run = run * extent + i
            return [*index[:first], run]

        mapping = map_of_indices(fused, len(shape))
        self.schedule.transform_layout(block, ("write", 0), mapping)
        self.schedule.transform_block_layout(block, mapping)

    def inline(self, stage: str) -> None:
        self._inlined[stage] = list(self._readers.get(stage, ()))
        if stage not in self._to_copy:
            self.schedule.compute_inline(self.blocks[stage])

    def _homes(self, stage: str) -> list[str]:
        """The stages in whose blocks a stage is computed."""
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
        self.schedule.transform_layout(block, ("read", at), index_map(step))
        if constant is not None:
            mark_packed(self.schedule, constant)

    def _key_of(self, name: str) -> int:
        return self._inputs[name] if name in self._inputs else key(self._written(self.blocks[name]))

    def cache_write(self, stage: str, scope: str, name: str) -> None:
        block = self.blocks[stage]
        count = len(self.schedule.get(block).writes)
        copies = [self.schedule.cache_write(block, n, scope) for n in range(count)]
        self.blocks[name], self.blocks[stage], self._more[stage] = block, copies[0], copies[1:]
        if stage in self._iters:
            self._iters[name] = self._iters.pop(stage)

    def rfactor(self, stage: str, at: int, position: int, name: str) -> None:
        names = self.loops[stage]
        spatial, reduce = self._own[stage]
        self.blocks[name] = self.schedule.rfactor(self._loop(stage, at), position)
        parts = [a for a in names if a not in (*spatial, *reduce, names[at])]
        inner = [part for a in reduce for part in ([a] if a in names else parts)]
        # Both blocks have the new axis as their first iterator, in whatever order their loops are.
        self._iters[name], self._iters[stage] = [names[at], *spatial, *inner], [names[at], *spatial]
        # TensorIR keeps the loops in the order in which they were; te lists them by kind, the new axis at `position`.
        rest = [a for a in reduce if a in names and a != names[at]]
        rest += [a for a in names if a not in (*spatial, *reduce, names[at])]
        order = [*spatial[:position], names[at], *spatial[position:], *rest]
        loops = self._loops(self.blocks[name], len(names))
        if order != names:
            self.schedule.reorder(*(loops[names.index(a)] for a in order))

    def finish(self) -> None:
        """What te infers: memory of what threads keep; initial values before a reduction, not behind an if in it."""
        for stage, loop in self._inside.items():
            if not self._alive(self.blocks[stage]):  # an instruction took its place
                continue
            scope = self._scope_inside(loop)
            if scope and str(self._written(self.blocks[stage]).scope()) == "global":
                count = len(self.schedule.get(self.blocks[stage]).writes)
                for n in range(count):
                    self.schedule.set_scope(self.blocks[stage], n, scope)
        for stage, block in self.blocks.items():
            if stage in self.loops and self._alive(block):
                self._decompose(stage, block)
        for block in self.blocks.values():
            if self._alive(block):
                self._give_a_block(block)
        if self._remainders and self._boxes:
            self._hold_tiles()

    def _give_a_block(self, block: Any) -> None:
        """Threads without a block of the grid get one: else TVM keeps one partial sum for all, in global memory."""
        loops = list(self.schedule.get_loops(block))
        bound = [self.schedule.get(loop).thread_binding for loop in loops]
        tags = {str(b.thread_tag).split(".")[0] for b in bound if b is not None}
        if "threadIdx" in tags and "blockIdx" not in tags:
            self.schedule.bind(self.schedule.add_unit_loop(loops[0]), "blockIdx.x")

    def _hold_tiles(self) -> None:
        """TVM must not keep more of a tensor than its tile: it cannot tell where windows of a remainder end."""
        boxes = [box for name, box in self._boxes.items() if self._alive(self.blocks[name])]
        wanted, kept = sum(map(prod, boxes)), elements_kept(self.schedule.mod, self.func_name)
        if kept > wanted:
            raise self._error(f"TVM keeps {kept} elements in shared memory for tiles of {wanted}: a window is cut")

    def _scope_inside(self, loop: Any) -> str:
        """Where what is computed inside of a loop is kept: one thread's registers, the block's memory, or anywhere."""
        sref, tags = self.schedule.get_sref(loop), set()
        while sref is not None:
            binding = getattr(sref.stmt, "thread_binding", None)
            if binding is not None:
                tags.add(str(binding.thread_tag).split(".")[0])
            sref = sref.parent
        return "local" if "threadIdx" in tags else "shared" if "blockIdx" in tags else ""

    def _alive(self, block: Any) -> bool:
        try:
            self.schedule.get_loops(block)
            return True
        except Exception:  # it was inlined, or an instruction took its place
            return False

    def _decompose(self, stage: str, block: Any) -> None:
        statement = self.schedule.get(block)
        if statement.init is None:
            return
        realize = _realize(self.schedule, self.schedule.get_sref(block))
        used: set[int] = set()
        for iv, value in zip(statement.iter_vars, realize.iter_values, strict=True):
            if int(iv.iter_type) == REDUCTION:
                used |= variables(value)
        loops = self._loops(block, len(self.loops[stage]))
        mine = [loop for loop in loops if key(self.schedule.get(loop).loop_var) in used]
        if mine and not any(self.schedule.get(loop).thread_binding is not None for loop in mine):
            try:
                self.schedule.decompose_reduction(block, mine[0])
            except Exception:  # axes that TVM cannot take apart: the value is set in the first iteration, behind an if
                return


def _realize(schedule: Any, sref: Any) -> Any:
    """The realization of a block: what its axes are bound to."""
    wanted = sref.stmt
    node = sref.parent.stmt.body
    stack = [node]
    while stack:
        node = stack.pop()
        if hasattr(node, "iter_values"):
            if node.block.same_as(wanted):
                return node
            continue
        if hasattr(node, "seq"):
            stack += list(node.seq)
        elif hasattr(node, "body"):
            stack.append(node.body)
    raise ValueError("a block without a realization")


def flat(indices: Sequence[Any], extents: Sequence[int], factors: Sequence[int]) -> Any:
    """The address of an element in rows whose strides are rounded up to multiples of factors."""
    address, stride = indices[-1], 1
    for dim in range(len(extents) - 2, -1, -1):
        stride *= extents[dim + 1]
        stride += -stride % factors[dim]
        address = address + indices[dim] * stride
    return address


def parameters_of(reading: TirReading) -> dict[str, int]:
    """Input -> position among the function's parameters."""
    inputs = {t.name for t in reading.expression.inputs}
    return {name: at for at, name in enumerate(reading.arguments) if name in inputs}


def readers_of(reading: TirReading) -> dict[str, list[str]]:
    """Tensor -> stages that read it."""
    found: dict[str, list[str]] = {}
    for stage in reading.expression.stages:
        for tensor in dict.fromkeys(access.tensor for access in stage.reads):
            found.setdefault(tensor, []).append(stage.name)
    return found


def apply_steps_tir(func: Any, reading: TirReading, steps: Sequence[Step]) -> Any:
    """A schedule of the function with the steps applied.

    Parameters
    ----------
    func : PrimFunc or IRModule
        What was read; a module has it as ``main``.
    reading : TirReading
    steps : sequence of Step

    Returns
    -------
    tvm.s_tir.Schedule
        Its ``trace`` replays on the function as it was.

    Raises
    ------
    MeasureError
        Of kind 'schedule error', naming the step that does not apply.

    Examples
    --------
    >>> schedule = apply_steps_tir(func, reading, lower(plan))  # doctest: +SKIP
    >>> tvm.compile(schedule.mod, target)  # doctest: +SKIP
    """
    from tvm import s_tir

    applier = TirApplier(s_tir.Schedule(func), reading)
    applier.run(steps)
    applier.finish()
    return applier.schedule
