"""Copies of tensors as runs of neighbouring elements, so that vectors go along them and TVM sees that they do."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from ..tir.nodes import analyzer_of_tvm, buffer_of, map_of_indices, range_of, runs_along
from .tensorir_matrices import TensorSteps


class Runs(TensorSteps):
    """The part of ``TirApplier`` that vectorises copies."""

    #: Extents of a copy's box, and factors to which its strides are rounded.
    _boxes: dict[str, list[int]]
    _aligned: dict[tuple[str, int], int]
    #: Elements that a stage moves at a time; strides that later steps will round.
    _widths: dict[str, int]
    _aligning: set[tuple[str, int]]

    def _run(self, stage: str, at: int) -> int:
        """Return the loop of a copy to vectorise: a part of it if TVM would not see that its elements are neighbours.

        Elements of a row are neighbours in any case. Rows after one another may be, but TVM may not see it.
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
        """Return whether the addresses of a copy become linear along a loop, in TVM's two steps of simplification."""
        block = self.blocks[stage]
        # The loops around its own determine where the copied box begins; its own start at 0.
        analyzer, start = analyzer_of_tvm(), analyzer_of_tvm()
        loops = [self.schedule.get(sref) for sref in self.schedule.get_loops(block)]
        outer = len(loops) - len(self.loops[stage])
        for n, loop in enumerate(loops):
            analyzer.bind(loop.loop_var, range_of(loop))
            start.bind(loop.loop_var, range_of(loop) if n < outer else range_of(loop, 1))
        lane = self.schedule.get(self._loop(stage, at)).loop_var
        values = list(realize_of(self.schedule, self.schedule.get_sref(block)).iter_values)
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

    def _rows_in_one(self, stage: str, loop: Any) -> int:
        """Return how many of a copy's last dimensions to fuse with the one before, so that vectors cross short rows.

        These dimensions are copied whole: they are one run in memory, but TVM does not see that in their indices.
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


def realize_of(schedule: Any, sref: Any) -> Any:
    """Return the realization of a block, which binds its axes to values."""
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
    """Return the address of an element in rows whose strides are rounded up to multiples of factors."""
    address, stride = indices[-1], 1
    for dim in range(len(extents) - 2, -1, -1):
        stride *= extents[dim + 1]
        stride += -stride % factors[dim]
        address = address + indices[dim] * stride
    return address
