"""Dependences between rTasks: a reader's tile needs the writer's tiles that hold its inputs, by the access maps.

Regions are boxes, so a dependence may be wider than necessary but never narrower. If the tiles of either side are
unknown, every rTask of the reader waits for every one of the writer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from ..ir import Index, Stage, TensorExpression
from ..roller.rprogram import Plan
from .roperator import DataFlowGraph, RKernel
from .rtask import Box, reshaped

#: Distinct boxes (None for nothing), and for each rTask the position of its box.
Boxes = tuple[list[Box | None], list[int]]


class Tasks(tuple[tuple[int, ...], ...]):
    """For each rTask of a reader, the rTasks of the producer that it waits for.

    Examples
    --------
    >>> Tasks(((0, 1), (), (2,))).latest(np.array([3.0, 5.0, 4.0]))
    array([5., 0., 4.])
    """

    @cached_property
    def _joined(self) -> tuple[Any, Any, Any]:
        """Readers that wait; for each the position of its first rTask in the last array; all awaited rTasks joined."""
        counts = np.fromiter(map(len, self), dtype=np.int64, count=len(self))
        waiting = np.flatnonzero(counts)
        begins = np.cumsum(counts)[waiting] - counts[waiting]
        return waiting, begins, np.fromiter(chain.from_iterable(self), dtype=np.int64, count=int(counts.sum()))

    def latest(self, ends: Any) -> Any:
        """Return, for each reader, the end time of its last dependence (0 if none)."""
        waiting, begins, joined = self._joined
        found = np.zeros(len(self))
        if len(waiting):
            found[waiting] = np.maximum.reduceat(ends[joined], begins)
        return found


@dataclass(frozen=True)
class Need:
    """The rTasks of another phase that the rTasks of a phase need.

    Parameters
    ----------
    phase : int
        Phase of the producer's rKernel.
    tasks : Tasks or None
        For each rTask of the reader, the needed ones of the producer; None if each needs all.
    """

    producer: str
    phase: int
    tasks: Tasks | None = None


def needed(expression: TensorExpression, output: str, box: Box, sources: Collection[str]) -> dict[str, Box]:
    """Return the regions of `sources` read by computing a region of a stage, directly or through stages in between.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> e = matmul(m=64, n=32, k=16)
    >>> needed(e, e.output.name, ((0, 7), (4, 5)), [t.name for t in e.inputs])
    {'A': ((0, 7), (0, 15)), 'B': ((0, 15), (4, 5))}
    """
    found = _regions(expression, output, [box], sources)
    read = {name: regions.distinct()[0][0] for name, regions in found.items()}
    return {name: box for name, box in read.items() if box is not None}


@dataclass
class _Regions:
    """A box of a tensor for each of many tasks: first and last index by dimension and task, and a flag per task."""

    low: Any
    high: Any
    any: Any

    def hull(self, other: _Regions) -> _Regions:
        low = np.where(self.any & other.any, np.minimum(self.low, other.low), np.where(self.any, self.low, other.low))
        high = np.where(self.any & other.any, np.maximum(self.high, other.high),
                        np.where(self.any, self.high, other.high))
        return _Regions(low, high, self.any | other.any)

    def distinct(self) -> Boxes:
        rows = np.concatenate([self.any[None], self.low, self.high]).T
        rows, which = np.unique(rows, axis=0, return_inverse=True)
        count = len(self.low) + 1
        boxes = [tuple(zip(row[1:count], row[count:], strict=True)) if row[0] else None for row in rows.tolist()]
        return boxes, which.ravel().tolist()


def _regions(
    expression: TensorExpression, output: str, boxes: Sequence[Box], sources: Collection[str]
) -> dict[str, _Regions]:
    """Do the same as ``needed`` for many regions: return each source that any of them reads, a box per region."""
    rank = len(expression.stage(output).shape)
    corners = np.array(boxes, dtype=np.int64).reshape(len(boxes), rank, 2)
    every = np.ones(len(boxes), dtype=bool)
    wanted = {output: _Regions(corners[:, :, 0].T, corners[:, :, 1].T, every)}
    found: dict[str, _Regions] = {}
    for stage in reversed(expression.stages):
        if stage.name not in wanted:
            continue
        mine = wanted.pop(stage.name)
        ranges = _axis_ranges(stage, mine)
        for access in stage.reads:
            region = _region(access.indices, ranges, expression.tensors[access.tensor].shape, mine.any)
            if region is None:
                continue
            into = found if access.tensor in sources else wanted
            into[access.tensor] = into[access.tensor].hull(region) if access.tensor in into else region
    return found


def _axis_ranges(stage: Stage, regions: _Regions) -> dict[str, tuple[Any, Any]]:
    ranges: dict[str, tuple[Any, Any]] = {a.name: (0, a.extent - 1) for a in stage.axes}
    for index, lo, hi in zip(stage.write().indices, regions.low, regions.high, strict=True):
        terms = sorted(index.terms, key=lambda t: -t[1])
        if terms:  # of the parts of an axis the outermost follows the region
            name, stride = terms[0]
            low, high = ranges[name]
            ranges[name] = (np.maximum(low, lo // stride), np.minimum(high, hi // stride))
    return ranges


def _region(
    indices: tuple[Index, ...], ranges: Mapping[str, tuple[Any, Any]], shape: tuple[int, ...], some: Any
) -> _Regions | None:
    """Return the boxes that an access touches; None if all of them are padding."""
    lows, highs = [], []
    for index, extent in zip(indices, shape, strict=True):
        lo = hi = np.full(some.shape, index.const, dtype=np.int64)
        for name, c in index.terms:
            a, b = ranges[name]
            lo, hi = lo + (c * a if c > 0 else c * b), hi + (c * b if c > 0 else c * a)
        lo, hi = lo // index.divisor, hi // index.divisor
        if index.opaque or index.clamped:
            lo, hi = np.zeros_like(lo), np.full_like(hi, extent)
        some = some & (hi >= 0) & (lo < extent)
        lows.append(np.maximum(lo, 0))
        highs.append(np.minimum(hi, extent - 1))
    if not some.any():
        return None
    none = np.empty((0, len(some)), dtype=np.int64)
    return _Regions(np.stack(lows) if lows else none, np.stack(highs) if highs else none, some)


def phases_reads(plan: Plan, phase: int) -> frozenset[str]:
    """Return the tensors that an rProgram reads but does not write: the operator's inputs, other phases' outputs."""
    written = {p.output for p in plan.programs} - {plan.programs[phase].output}
    return frozenset({t.name for t in plan.expression.inputs} | written)


@dataclass
class Dependences:
    """Needs of every phase of every operator in a graph, for any choice of rKernels; results are cached.

    Examples
    --------
    >>> from roller_tvm.rammer.roperator import Phase, ROperator
    >>> kernel = RKernel("k", (Phase(4, 1e-6, 1e-6),), 1e-6)
    >>> graph = DataFlowGraph((ROperator("a", (kernel,)), ROperator("b", (kernel,), ("a",))))
    >>> Dependences(graph).of("b", 0, {"a": kernel, "b": kernel})
    (Need(producer='a', phase=0, tasks=None),)
    """

    graph: DataFlowGraph
    _whole: dict[tuple[int, int], frozenset[str]] = field(default_factory=dict, repr=False)
    _boxes: dict[tuple[int, int], dict[str, Boxes]] = field(default_factory=dict, repr=False)
    _tasks: dict[tuple[int, int, int, int, str], Tasks | None] = field(default_factory=dict, repr=False)

    def of(self, operator: str, phase: int, chosen: Mapping[str, RKernel]) -> tuple[Need, ...]:
        """Return the needs of one phase among the operators with a chosen rKernel."""
        kernel = chosen[operator]
        reads = phases_reads(kernel.plan, phase) if kernel.plan else frozenset()
        own = {p.output: n for n, p in enumerate(kernel.plan.programs)} if kernel.plan else {}
        needs: dict[tuple[str, int], Need] = {}
        for edge in self.graph.by_name[operator].inputs:
            if edge.producer not in chosen:
                continue  # an earlier plan's
            other = chosen[edge.producer]
            # A phase that reads nothing of the input need not wait, but later phases of the operator do by it.
            if kernel.plan and edge.tensor in reads and not self._reads(kernel.plan, phase, edge.tensor):
                continue
            writer = _writer(other, edge.output)
            need = Need(edge.producer, writer, self._tiles(other, writer, kernel, phase, edge.tensor))
            key = (edge.producer, writer)
            needs[key] = _both(needs[key], need) if key in needs else need
        for earlier in range(phase):
            tensor = kernel.plan.programs[earlier].output if kernel.plan else ""
            if kernel.plan and not self._reads(kernel.plan, phase, tensor):
                continue
            assert not own or own[tensor] == earlier
            needs[operator, earlier] = Need(operator, earlier, self._tiles(kernel, earlier, kernel, phase, tensor))
        return tuple(needs.values())

    def _reads(self, plan: Plan, phase: int, tensor: str) -> bool:
        key = id(plan), phase
        if key not in self._whole:
            output = plan.programs[phase].output
            box = tuple((0, e - 1) for e in plan.expression.stage(output).shape)
            self._whole[key] = frozenset(needed(plan.expression, output, box, phases_reads(plan, phase)))
        return tensor in self._whole[key]

    def _read(self, reader: RKernel, phase: int, tensor: str) -> Boxes:
        """Return the boxes of a tensor that the rTasks of a phase read."""
        plan, tiling = reader.plan, reader.phases[phase].tiling
        assert plan and tiling
        key = id(reader), phase
        if key not in self._boxes:
            boxes = [tiling.box(task) for task in range(tiling.tasks)]
            found = _regions(plan.expression, plan.programs[phase].output, boxes, phases_reads(plan, phase))
            self._boxes[key] = {name: regions.distinct() for name, regions in found.items()}
        return self._boxes[key].get(tensor, ([None], [0] * tiling.tasks))

    def _tiles(self, writer: RKernel, writer_phase: int, reader: RKernel, phase: int, tensor: str) -> Tasks | None:
        key = (id(writer), writer_phase, id(reader), phase, tensor)
        if key not in self._tasks:
            self._tasks[key] = self._tiles_needed(writer, writer_phase, reader, phase, tensor)
        return self._tasks[key]

    def _tiles_needed(
        self, writer: RKernel, writer_phase: int, reader: RKernel, phase: int, tensor: str
    ) -> Tasks | None:  # fmt: skip
        tiles, mine, plan = writer.phases[writer_phase].tiling, reader.phases[phase].tiling, reader.plan
        if tiles is None or mine is None or plan is None or tiles.tasks == 1 or tensor not in plan.expression.tensors:
            return None
        shape = plan.expression.tensors[tensor].shape
        if prod(shape) != prod(tiles.shape):
            return None
        boxes, which = self._read(reader, phase, tensor)
        found = [tuple(tiles.tasks_of(reshaped(box, shape, tiles.shape))) if box is not None else () for box in boxes]
        # Beyond the rTasks that a block polls at a time, a wait for the whole operator costs no more and can be shared.
        if all(len(tasks) == tiles.tasks for tasks in found) or max(map(len, found)) > reader.phases[phase].threads:
            return None
        return Tasks(found[n] for n in which)


def _writer(kernel: RKernel, output: str) -> int:
    """Return the phase that writes an output; the last one if it is unknown."""
    if kernel.plan and output:
        for number, program in enumerate(kernel.plan.programs):
            if program.output == output:
                return number
    return len(kernel.phases) - 1


def _both(a: Need, b: Need) -> Need:
    if a.tasks is None or b.tasks is None:
        return Need(a.producer, a.phase)
    return Need(a.producer, a.phase, Tasks(tuple(sorted({*p, *q})) for p, q in zip(a.tasks, b.tasks, strict=True)))
