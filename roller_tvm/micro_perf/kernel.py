"""Descriptions of a kernel for the micro-performance model of a GPU: from the planner, or read back from a record.

They do not tell their origin: a plan of recipe gpu.tiled and a schedule of Ansor with the same tiles are the same
kernel, and get the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from .geometry import Geometry, Tile
from .storage import VECTOR_ALIGNMENT, alignments, storage_elements


@dataclass(frozen=True)
class StagedKernel:
    """Blocks that fetch their operands' tiles into shared memory step by step, and keep their outputs in registers.

    Parameters
    ----------
    geometry : Geometry
    block : Tile
        Spatial axes: the block's tile; reduction axes: one step.
    thread : Tile
        Spatial axes: a thread's outputs, with those of its virtual threads; reduction axes: 1.
    vthreads : Tile
        Parts of a thread's tile, per axis; neighbouring parts are a whole tile of threads apart.
    loops : tuple of (axis, extent)
        Loops of a virtual thread in one step, outermost first.
    unroll_limit : int or None
        Most statements that the schedule has TVM unroll; None if it unrolls every loop explicitly.
    vectors : tuple of int
        For each operand, the elements that a fetch moves at a time, as the schedule asks.
    padding : tuple of int
        For each operand, elements added to a row in shared memory.
    store : int
        Outputs that a store moves.
    stages : int
        Buffers of each staged tile.
    aligned : bool
        True if each buffer is rounded up to whole vectors, as for padded rows.
    """

    geometry: Geometry
    block: Tile
    thread: Tile
    vthreads: Tile
    loops: tuple[tuple[int, int], ...]
    unroll_limit: int | None
    vectors: tuple[int, ...]
    padding: tuple[int, ...]
    store: int = 1
    stages: int = 1
    aligned: bool = False

    def __post_init__(self) -> None:
        g, n = self.geometry, len(self.geometry.extents)
        if not len(self.block) == len(self.thread) == len(self.vthreads) == n:
            raise ValueError(f"tiles of {len(self.block)}, {len(self.thread)}, {len(self.vthreads)} axes for {n}")
        if not len(self.vectors) == len(self.padding) == len(g.operands):
            raise ValueError(f"{len(self.vectors)} vector widths for {len(g.operands)} operands")
        if any(self.thread[i] % self.vthreads[i] for i in g.spatial):
            raise ValueError(f"virtual threads {self.vthreads} do not divide a thread's tile {self.thread}")

    @cached_property
    def lanes(self) -> Tile:
        """Threads along each spatial axis."""
        g = self.geometry
        return tuple(ceil(self.block[i] / self.thread[i]) if i in g.spatial_set else 1 for i in range(len(self.block)))

    @cached_property
    def threads(self) -> int:
        return prod(self.lanes)

    @cached_property
    def blocks(self) -> int:
        return prod(ceil(self.geometry.extents[i] / self.block[i]) for i in self.geometry.spatial)

    @cached_property
    def steps(self) -> int:
        return prod(ceil(self.geometry.extents[i] / self.block[i]) for i in self.geometry.reduce)

    @cached_property
    def outputs(self) -> int:
        """Outputs of one thread."""
        return prod(self.thread[i] for i in self.geometry.spatial)

    @cached_property
    def depth(self) -> int:
        """Points of the reduction in one step."""
        return prod(self.block[i] for i in self.geometry.reduce)

    @cached_property
    def boxes(self) -> tuple[tuple[int, ...], ...]:
        """Extents of the tile that a step fetches, for each operand."""
        return tuple(tuple(op.box(self.block)) for op in self.geometry.operands)

    @cached_property
    def shared_bytes(self) -> int:
        """Shared memory of a block in bytes, as TVM allocates it."""
        total = 0
        for op, box, padding in zip(self.geometry.operands, self.boxes, self.padding, strict=True):
            wide = max(self.vectors, default=1) > 1
            whole = wide and (self.aligned or any(self.padding))
            quantum = max(1, VECTOR_ALIGNMENT // op.element_bytes) if whole else 1
            total += storage_elements(box, alignments(box, padding, quantum)) * op.element_bytes
        return total * self.stages

    @cached_property
    def unrolled(self) -> tuple[bool, ...]:
        """One flag per entry of ``loops``: True if TVM unrolls it."""
        if self.unroll_limit is None:
            return (True,) * len(self.loops)
        return unrolled_loops([e for _, e in self.loops], prod(self.vthreads), self.unroll_limit)

    def inner(self, flags: Sequence[bool]) -> Tile:
        """Return the extents per axis of the loops marked by `flags`; virtual threads always count."""
        tile = list(self.vthreads)
        for (axis, extent), chosen in zip(self.loops, flags, strict=True):
            if chosen:
                tile[axis] *= extent
        return tuple(tile)


#: Most virtual threads that TVM writes out one after the other; more become a loop (its pass InjectVirtualThread).
VTHREADS_WRITTEN = 16


def unrolled_loops(extents: Sequence[int], vthreads: int, limit: int) -> tuple[bool, ...]:
    """Return which loops TVM's pass UnrollLoop expands: inner ones first, as long as their statements stay within a
    limit.

    Examples
    --------
    >>> unrolled_loops([4, 2, 8], vthreads=1, limit=16)
    (False, True, True)
    >>> unrolled_loops([4, 2, 8], vthreads=4, limit=16)
    (False, False, False)
    """
    inner = [vthreads] if vthreads > VTHREADS_WRITTEN else []
    statements = 1 if inner else vthreads
    flags: list[bool] = []
    rolled = False
    for extent in reversed([*extents, *inner]):
        fits = extent == 1 or (not rolled and extent * statements <= limit)
        statements *= extent if fits else 1
        rolled = rolled or not fits
        flags.append(fits)
    flags = flags[len(inner):] if inner else flags
    return tuple(reversed(flags))


@dataclass(frozen=True)
class DirectKernel:
    """A thread computes `outputs` consecutive outputs from global memory, its reductions as a loop.

    Parameters
    ----------
    geometry : Geometry
        Nest with its operands in memory (see ``in_memory``).
    threads : int
        Threads of a block.
    outputs : int
        Outputs of a thread: it computes every ``threads``-th of its block.
    vector : int
        Neighbouring outputs computed at a time.
    unroll_limit : int or None
        As in ``StagedKernel``.
    """

    geometry: Geometry
    threads: int
    outputs: int = 1
    vector: int = 1
    unroll_limit: int | None = None

    @cached_property
    def blocks(self) -> int:
        total = prod(self.geometry.extents[i] for i in self.geometry.spatial)
        return ceil(total / (self.threads * self.outputs * self.vector))


@dataclass(frozen=True)
class ReduceKernel:
    """The threads of a block share reductions: `lanes` of them each, `rows` reductions a block."""

    geometry: Geometry
    lanes: int
    rows: int = 1
    unroll_limit: int | None = None

    @cached_property
    def threads(self) -> int:
        return self.lanes * self.rows

    @cached_property
    def blocks(self) -> int:
        return ceil(prod(self.geometry.extents[i] for i in self.geometry.spatial) / self.rows)


Kernel = StagedKernel | DirectKernel | ReduceKernel
