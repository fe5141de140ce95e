"""Descriptions of kernels for the micro-performance model of a GPU: from the planner, or read back from a record.

They do not tell their origin: a plan of recipe gpu.tiled and a schedule of Ansor with the same tiles are the same
kernel, and get the same time. The model takes a table of kernels (``StagedTable``): one row from a record, a row for
each candidate from the planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

import numpy as np

from .geometry import Geometry, Tile
from .gpu_constants import COMPILER_STATEMENTS
from .gpu_nest import Array, GpuNest, ceil_div, columns, product
from .storage import stored_bytes


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
    def shared_bytes(self) -> int:
        """Shared memory of a block in bytes, as TVM allocates it."""
        return int(StagedTable.of([self]).shared_bytes[0])

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
class Body:
    """Straight-line code of a thread, after the schedule's and the compiler's unrolling."""

    tile: Tile  # extents per axis
    outputs: int
    depth: int
    times: float  # in one step
    rolled: bool
    turns: int  # of the reduction loops of a step outside of every loop over outputs


def body_of(kernel: StagedKernel, compiler_limit: int = COMPILER_STATEMENTS) -> Body:
    """Return the body after unrolling by the schedule's limit or the compiler's, whichever goes farther."""
    g = kernel.geometry
    vthreads = prod(kernel.vthreads)
    limit = kernel.unroll_limit
    flags = kernel.unrolled
    if limit is not None:
        flags = unrolled_loops([e for _, e in kernel.loops], vthreads, max(limit, compiler_limit))
    tile = kernel.inner(flags)
    outputs, depth = prod(tile[i] for i in g.spatial), prod(tile[i] for i in g.reduce)
    rolled = any(e > 1 and a in g.spatial_set and not f for (a, e), f in zip(kernel.loops, flags, strict=True))
    turns = 1
    for axis, extent in kernel.loops:
        if axis in g.spatial_set and extent > 1:
            break
        turns *= 1 if axis in g.spatial_set else extent
    return Body(tile, outputs, depth, kernel.outputs * kernel.depth / (outputs * depth), rolled, turns)


@dataclass(frozen=True)
class StagedTable:
    """N staged kernels of one nest, a column each (see ``StagedKernel``).

    Parameters
    ----------
    nest : GpuNest
    block, thread, vthreads : array of (axes, N)
    body : array of (axes, N)
        Extents of a thread's straight-line code.
    rolled : array
        True if a loop indexes the register tile, which therefore cannot be in registers.
    turns : array
        Iterations of a step's reduction loops outside of every loop over outputs.
    vectors, padding : array of (operands, N)
    store, stages : array
    whole : array
        True if each buffer is rounded up to whole vectors.
    """

    nest: GpuNest
    block: Array
    thread: Array
    vthreads: Array
    body: Array
    rolled: Array
    turns: Array
    vectors: Array
    padding: Array
    store: Array
    stages: Array
    whole: Array

    @classmethod
    def of(cls, kernels: Sequence[StagedKernel]) -> StagedTable:
        """Return kernels of one nest as a table."""
        g = kernels[0].geometry
        axes, operands = len(g.extents), len(g.operands)
        bodies = [body_of(k) for k in kernels]

        def each(values: Sequence[int | bool]) -> Array:
            return np.array(values)

        return cls(
            GpuNest.of(g), columns([k.block for k in kernels], axes), columns([k.thread for k in kernels], axes),
            columns([k.vthreads for k in kernels], axes), columns([b.tile for b in bodies], axes),
            each([b.rolled for b in bodies]), each([b.turns for b in bodies]),
            columns([k.vectors for k in kernels], operands), columns([k.padding for k in kernels], operands),
            each([k.store for k in kernels]), each([k.stages for k in kernels]),
            each([k.aligned or any(k.padding) for k in kernels]),
        )  # fmt: skip

    @property
    def count(self) -> int:
        return self.block.shape[1]

    @cached_property
    def lanes(self) -> Array:
        """Threads along each spatial axis."""
        return ceil_div(self.block[self.nest.outer], self.thread[self.nest.outer])

    @cached_property
    def threads(self) -> Array:
        return product(self.lanes, self.count)

    @cached_property
    def blocks(self) -> Array:
        return product(self.nest.grid(self.block), self.count)

    @cached_property
    def steps(self) -> Array:
        reduce = self.nest.inner
        return product(ceil_div(self.nest.extents[reduce], self.block[reduce]), self.count)

    @cached_property
    def outputs(self) -> Array:
        """Outputs of one thread."""
        return self.nest.outputs(self.thread)

    @cached_property
    def depth(self) -> Array:
        """Points of the reduction in one step."""
        return self.nest.depth(self.block)

    @cached_property
    def times(self) -> Array:
        """Bodies in one step."""
        return self.outputs * self.depth / (self.nest.outputs(self.body) * self.nest.depth(self.body))

    @cached_property
    def boxes(self) -> Array:
        """Extents of the tiles that a step fetches, (operands, dimensions, N)."""
        return self.nest.boxes(self.block)

    @cached_property
    def body_boxes(self) -> Array:
        """Extents of the operands' parts that a body reads, (operands, dimensions, N)."""
        return self.nest.boxes(self.body)

    @cached_property
    def elements(self) -> Array:
        """Elements of the tiles that a step fetches, (operands, N)."""
        return self.nest.elements(self.boxes)

    @cached_property
    def rounds(self) -> Array:
        """Fetches of a thread in a step, (operands, N)."""
        return ceil_div(self.elements, self.vectors * self.threads)

    @cached_property
    def fetched(self) -> Array:
        """Elements that a thread fetches in a step."""
        return np.add.reduce(self.rounds * self.vectors, axis=0)

    @cached_property
    def shared_bytes(self) -> Array:
        """Shared memory of each block in bytes, as TVM allocates it."""
        return stored_bytes(self.nest, self.boxes, self.padding, self.vectors, self.whole) * self.stages

    @cached_property
    def part(self) -> Array:
        """Extents of the body of one virtual thread."""
        part = self.body.copy()
        part[self.nest.outer] //= self.vthreads[self.nest.outer]
        return part


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
