"""Schedule steps that only TensorIR can carry out: matrix products in fragments, pipelines of copies."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..roller.steps import TensorIrStep
from ..roller.tensor_steps import (
    Fragment,
    Matrices,
    Merge,
    Pipeline,
    ReverseComputeAt,
    ReverseInline,
    SetScope,
    StoreAt,
    StoreVector,
    Tensorize,
    Tile,
    UnrollCompiled,
)
from ..tir.nodes import buffer_of, key, variables
from .applier import StepApplier
from .intrinsics import register

#: Lanes of a warp: mma and ldmatrix spread a fragment of 16 x 16 elements of two bytes or more, eight to each lane.
WARP = 32


class TensorSteps(StepApplier):
    """The part of ``TirApplier`` that carries out ``TensorIrStep``."""

    schedule: Any
    blocks: dict[str, Any]
    _inlined: dict[str, list[str]]
    #: Input -> key of its buffer.
    _inputs: dict[str, int]

    def tensor_ir(self, step: TensorIrStep) -> None:
        if isinstance(step, Matrices):
            self._matrices(step)
        elif isinstance(step, Tile):
            self._tile(step)
        elif isinstance(step, Fragment):
            self._fragment(step)
        elif isinstance(step, StoreAt):
            self._store_at(step)
        elif isinstance(step, StoreVector):
            self._store_vector(step)
        elif isinstance(step, Tensorize):
            self._tensorize(step)
        elif isinstance(step, UnrollCompiled):
            loop = self._named(step.stage, step.axis)
            self.schedule.unroll(loop)
            self.schedule.annotate(loop, "pragma_unroll_explicit", 0)
        elif isinstance(step, Pipeline):
            self._pipeline(step)
        elif isinstance(step, ReverseComputeAt):
            loop = self._named(step.target, step.axis)
            self.schedule.reverse_compute_at(self.blocks[step.stage], loop, preserve_unit_loops=True)
        elif isinstance(step, ReverseInline):
            self.schedule.reverse_compute_inline(self.blocks[step.stage])
        elif isinstance(step, SetScope):
            self.schedule.set_scope(self.blocks[step.stage], 0, step.scope)
        elif isinstance(step, Merge):
            self.schedule.merge(*(self._named(stage, step.axis) for stage in (*step.others, step.stage)))
        else:
            super().tensor_ir(step)

    def _loops(self, block: Any, count: int) -> list[Any]:
        """Return the innermost loops around a block."""
        loops = list(self.schedule.get_loops(block))
        return loops[len(loops) - count :]

    def _loop(self, stage: str, at: int) -> Any:
        return self._loops(self.blocks[stage], len(self.loops[stage]))[at]

    def _named(self, stage: str, axis: str) -> Any:
        return self._loop(stage, self.at(stage, axis))

    def _written(self, block: Any) -> Any:
        return buffer_of(self.schedule.get(block).writes[0])

    def _key_of(self, name: str) -> int:
        """Return the key of the buffer of a stage or an input."""
        return self._inputs[name] if name in self._inputs else key(self._written(self.blocks[name]))

    def _matrices(self, step: Matrices) -> None:
        for name, letters in ((step.left, "BCD"), (step.right, "CD"), (step.stage, "D")):
            if set(letters) & set(name):  # TVM finds its operands by these letters, in names too
                raise self._error(f"TVM cannot spell '{name}' in a matrix instruction: name it in lower case")
        schedule, block = self.schedule, self.blocks[step.stage]
        groups = (step.batch, step.m, step.n, step.k)
        loops = self.loops[step.stage]
        kind = {loop: n for n, group in enumerate(groups) for loop in group}
        if sorted(kind) != sorted(loops):
            raise self._error(f"'{step}' must name every loop of the stage (has {', '.join(loops)})")
        extents = [int(iv.dom.extent) for iv in schedule.get(block).iter_vars]
        made: dict[str, Any] = {}
        for name, turned, own in ((step.left, step.left_turned, 1), (step.right, step.right_turned, 2)):
            order = (0, 3, own) if turned else (0, own, 3)
            at = self._read_at(block, name)
            made[name] = schedule.reindex(block, ("read", at))
            used = self._axes_of(block, buffer_of(schedule.get(made[name]).writes[0]))
            schedule.transform_layout(made[name], ("write", 0), _fused(used, kind, extents, loops, order))
        back = schedule.reindex(block, ("write", 0))
        spatial = self._axes_of(block, buffer_of(schedule.get(block).writes[0]))
        schedule.transform_layout(block, ("write", 0), _fused(spatial, kind, extents, loops, (0, 1, 2)))
        schedule.transform_block_layout(block, _fused(range(len(loops)), kind, extents, loops, (0, 1, 2, 3)))
        after = [back]
        sizes = [prod(e for loop, e in zip(loops, extents, strict=True) if kind[loop] == n) for n in range(4)]
        if any(size % multiple for size, multiple in zip(sizes[1:], step.multiples, strict=True)):
            schedule.pad_einsum(block, [1, *step.multiples])
            padded = list(schedule.get_producers(block))
            for name, rows in made.items():
                wanted = key(self._written(rows))
                own_pad = [p for p in padded if key(buffer_of(schedule.get(p).reads[0])) == wanted]
                if own_pad:
                    schedule.compute_inline(rows)
                    made[name] = own_pad[0]
            copied = schedule.get(back)
            after = [*(c for c in schedule.get_consumers(block) if not schedule.get(c).same_as(copied)), back]
        copy = schedule.cache_write(block, 0, "warp")
        for name, rows in made.items():
            self.blocks[f"{name}.matrix"] = rows
            self._inlined[f"{name}.matrix"] = [step.name]
        self.blocks[step.name], self.blocks[step.stage] = block, copy
        self._after = after
        self._start(step.name, ["b", "m", "n"], ["k"])
        self._start(step.stage, ["b", "m", "n"], [])

    def _read_at(self, block: Any, name: str) -> int:
        """Return the position of a tensor among a block's reads."""
        statement = self.schedule.get(block)
        wanted = self._key_of(name)
        at = next((n for n, region in enumerate(statement.reads) if key(buffer_of(region)) == wanted), None)
        if at is None:
            raise self._error(f"block '{statement.name_hint}' does not read '{name}'")
        return at

    def _axes_of(self, block: Any, buffer: Any) -> list[int]:
        """Return the position of the block's axis in each dimension of a buffer; axes of extent 1 may not occur."""
        statement = self.schedule.get(block)
        regions = [*statement.reads, *statement.writes]
        region = next(r for r in regions if key(buffer_of(r)) == key(buffer))
        position = {key(iv.var): n for n, iv in enumerate(statement.iter_vars)}
        return [position[next(iter(variables(interval.min)))] for interval in region.region]

    def _tile(self, step: Tile) -> None:
        at = self.at(step.stage, step.axis)
        loops = self.loops[step.stage]
        self.blocks[step.name] = inner = self.blocks[step.stage]
        self.blocks[step.stage] = self.schedule.blockize(self._loops(inner, len(loops))[at])
        self.loops[step.name] = loops[at:]
        del loops[at:]

    def _fragment(self, step: Fragment) -> None:
        block = self.blocks[step.stage]
        self.schedule.transform_layout(block, ("write", 0), spread_over_warp(step.rows, step.columns))
        if step.intrinsic:
            rows, columns = self._loops(block, len(self.loops[step.stage]))[-2:]
            outer, inner = self.schedule.split(rows, [None, step.rows])
            across, along = self.schedule.split(columns, [None, step.columns])
            self.schedule.reorder(outer, across, inner, along)
            register(step.intrinsic)
            self.schedule.tensorize(inner, step.intrinsic)

    def _store_at(self, step: StoreAt) -> None:
        schedule, block = self.schedule, self.blocks[step.stage]
        loop = self._named(step.target, step.axis)
        # By the axes of the product, along which the pairs of a lane are neighbours: an output has others.
        self._stored = schedule.cache_write(block, 0, "local") if step.lane > 1 else block
        schedule.reverse_compute_at(block, loop, preserve_unit_loops=True)
        self._last = [self.blocks[step.output]] if step.output != step.stage else []
        if step.lane == 1:
            self._inline_readers()

    def _inline_readers(self) -> None:
        """Compute what follows a product as its elements are stored, guards of padding among it."""
        for reader in (*self._after, *self._last):
            self.schedule.reverse_compute_inline(reader)

    def _store_vector(self, step: StoreVector) -> None:
        around = self._loop(step.stage, self.at(step.stage, step.axis) - 1)
        self.schedule.reverse_compute_at(self._stored, around, preserve_unit_loops=True)
        self._inline_readers()
        self.schedule.vectorize(self.schedule.get_loops(self._stored)[-1])

    def _tensorize(self, step: Tensorize) -> None:
        block, tile = self.blocks[step.stage], self.blocks[step.tile]
        axis = self._named(step.stage, step.axis)
        register(step.init)
        register(step.compute)
        cleared = self.schedule.decompose_reduction(block, axis)
        (inner,) = self.schedule.get_child_blocks(cleared)
        self.schedule.tensorize(self.schedule.get_loops(inner)[-2], step.init)
        self.schedule.tensorize(self._loops(tile, len(self.loops[step.tile]))[0], step.compute)

    def _pipeline(self, step: Pipeline) -> None:
        loop = self._named(step.stage, step.axis)
        ahead = [0] * step.copies
        self.schedule.annotate(loop, "software_pipeline_stage", [*ahead, step.stages - 1])
        self.schedule.annotate(loop, "software_pipeline_order", list(range(step.copies + 1)))
        if step.asynchronous:
            self.schedule.annotate(loop, "software_pipeline_async_stages", [0])


def _fused(
    used: Sequence[int], kind: dict[str, int], extents: Sequence[int], loops: Sequence[str], order: Sequence[int]
) -> Any:
    """Return a map from the axes `used` to one index for each kind in `order`, neighbouring axes fused."""
    import tvm

    def fuse(*values: Any) -> list[Any]:
        result = []
        for wanted in order:
            index: Any = tvm.tirx.const(0, str(values[0].ty.dtype) if hasattr(values[0], "ty") else "int32")
            for value, axis in zip(values, used, strict=True):
                if kind[loops[axis]] == wanted:
                    index = index * extents[axis] + value
            result.append(index)
        return result

    return tvm.tirx.IndexMap.from_func(fuse, ndim=len(list(used)), index_dtype="int32")


def spread_over_warp(rows: int, columns: int) -> Any:
    """Return the layout in which mma and ldmatrix keep a matrix: (.., tile, tile, lane, element of the lane).

    Eight rows at a time are dealt out to four lanes each; each lane has four-byte words of a row.
    """

    def place(*index: Any) -> tuple[Any, ...]:
        *before, i, j = index
        row, column = i % rows, j % columns
        if rows == WARP:  # bytes whose rows lie along the sum: words are made of four of them
            return (*before, i // rows, j // columns, row % 16 // 4 + column % 8 * 4,
                    column // 8 * 8 + row // 16 * 4 + row % 4)  # fmt: skip
        word = columns // 8
        lane = row % 8 * 4 + column % (columns // 2) // word
        element = column // (columns // 2) * (rows * word // 8) + column % word
        if rows > 8:
            element += row // 8 * word
        return (*before, i // rows, j // columns, lane, element)

    return place
