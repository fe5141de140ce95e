"""Addresses of a warp's lanes, counted: sectors of a fetch or a store, bank conflicts of a read of shared memory.

What lanes touch follows from a kernel's tiles alone, so it is enumerated for a few warps rather than estimated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from .geometry import Operand, Tile
from .kernel import StagedKernel

#: Warps of a fetch that are looked at: the rest are like them.
SAMPLES = 6


P = ParamSpec("P")
T = TypeVar("T")


def counted(function: Callable[Concatenate[StagedKernel, P], T]) -> Callable[Concatenate[StagedKernel, P], T]:
    """Remember what a function counts of a kernel, with the kernel."""

    @functools.wraps(function)
    def remembered(kernel: StagedKernel, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function.__name__, *args, *kwargs.items())
        if key not in kernel.counted:
            kernel.counted[key] = function(kernel, *args, **kwargs)
        return kernel.counted[key]  # type: ignore[return-value]

    return remembered


@dataclass(frozen=True)
class Fetch:
    """One operand's copy into shared memory, one step of a block.

    Parameters
    ----------
    rounds : int
        Copies of a thread, `vector` elements each.
    vectorised : bool
        Whether a copy is one instruction, rather than one an element.
    requested : float
        Bytes of the sectors that all load instructions touch, each for itself.
    moved : float
        Bytes of the sectors that the elements of a warp's copies touch together.
    conflicts : float
        Cycles that a store of a warp into shared memory takes.
    """

    rounds: int
    vector: int
    vectorised: bool
    requested: float
    moved: float
    conflicts: float


def strides_of(shape: tuple[int, ...] | list[int]) -> list[int]:
    """Row-major strides.

    Examples
    --------
    >>> strides_of([4, 3, 2])
    [6, 2, 1]
    """
    strides, below = [], 1
    for extent in reversed(shape):
        strides.append(below)
        below *= extent
    return strides[::-1]


def memory_shape(kernel: StagedKernel, operand: Operand) -> tuple[int, ...]:
    """The shape in which an operand lies in memory: that of its source where a prologue only shifts it (padding)."""
    if len(operand.sources) == 1:
        source = kernel.geometry.expression.tensors.get(operand.sources[0].tensor)
        if source is not None and len(source.shape) == len(operand.shape):
            return source.shape
    return operand.shape


def first_elements(kernel: StagedKernel, operand: Operand) -> int:
    """Elements by which the padding shifts a tile against memory: negative offsets, in elements."""
    shape = memory_shape(kernel, operand)
    strides = strides_of(shape)
    offset = 0
    for source in operand.sources[:1]:
        if len(source.indices) == len(shape):
            offset = sum(index.const * s for index, s in zip(source.indices, strides, strict=True))
    return offset


@counted
def fetch(kernel: StagedKernel, number: int, warp: int, sector: int) -> Fetch:
    """Count the copy of operand `number`, lanes taking neighbouring vectors of the tile in turn."""
    op, box, vector = kernel.geometry.operands[number], kernel.boxes[number], kernel.vectors[number]
    threads, total = kernel.threads, prod(kernel.boxes[number])
    padding = kernel.padding[number]
    shape = memory_shape(kernel, op)
    rounds = ceil(total / (threads * vector))
    vectorised = vector > 1 and not op.guarded and op.as_stored and _whole_vectors(box, op.shape, vector)
    warps = ceil(threads / warp)
    chosen = sorted({int(n) for n in np.linspace(0, rounds * warps - 1, SAMPLES)})
    strides = strides_of(shape)
    rows = strides_of([*box[:-1], box[-1] + padding]) if box else []
    base = first_elements(kernel, op) % max(1, sector // op.element_bytes)
    requested = moved = conflicts = 0.0
    counted = 0
    for number_ in chosen:
        round_, mine = divmod(number_, warps)
        lanes = np.arange(mine * warp, min((mine + 1) * warp, threads))
        first = (round_ * threads + lanes) * vector
        elements = first[:, None] + np.arange(vector)[None, :]
        elements = elements[elements[:, -1] < total]
        if not len(elements):
            continue
        counted += 1
        address, local = np.full(elements.shape, base), np.zeros(elements.shape, dtype=np.int64)
        rest = elements
        for extent, stride, row in zip(reversed(box), reversed(strides), reversed(rows), strict=True):
            rest, coordinate = np.divmod(rest, extent)
            address = address + coordinate * stride
            local = local + coordinate * row
        touched = address * op.element_bytes // sector
        together = len(np.unique(touched))
        moved += together * sector
        if vectorised:
            requested += together * sector
            conflicts += 1.0
        else:
            requested += sum(len(np.unique(touched[:, j])) for j in range(vector)) * sector
            conflicts += _banks(local[:, 0], 32)
    share = rounds * warps / max(1, counted) * op.stored_share
    # The last round may be a part of one.
    share *= total / (rounds * threads * vector) if rounds * warps > SAMPLES else 1.0
    return Fetch(rounds, vector, vectorised, requested * share, moved * share, conflicts / max(1, counted))


def _whole_vectors(box: tuple[int, ...], shape: tuple[int, ...], vector: int) -> bool:
    """Whether every vector of a tile is one run, aligned in both memories."""
    run, row = 1, 1
    for extent, full in zip(reversed(box), reversed(shape), strict=True):
        run *= extent
        row *= full
        if extent < full:
            break
    return run % vector == 0 and row % vector == 0


def _banks(addresses: np.ndarray, banks: int) -> int:
    """Cycles in which banks of a word each serve different words: the most that one bank has to."""
    words = np.unique(addresses)
    return int(np.bincount(words % banks).max()) if len(words) else 1


def lane_coordinates(lanes: Tile, spatial: tuple[int, ...], count: int) -> dict[int, np.ndarray]:
    """Position along each spatial axis of the first `count` threads (last axis fastest)."""
    rest = np.arange(count)
    result = {}
    for axis in reversed(spatial):
        rest, result[axis] = np.divmod(rest, lanes[axis])
    return result


@counted
def read_cycles(kernel: StagedKernel, number: int, warp: int, vector: int, banks: int = 32) -> float:
    """Cycles that reading `vector` neighbouring elements of a staged operand takes a warp: conflicts counted."""
    op, box, padding = kernel.geometry.operands[number], kernel.boxes[number], kernel.padding[number]
    spatial = kernel.geometry.spatial
    at = lane_coordinates(kernel.lanes, spatial, min(warp, kernel.threads))
    rows = strides_of([*box[:-1], box[-1] + padding]) if box else []
    own = {i: kernel.thread[i] // kernel.vthreads[i] for i in spatial}
    address = np.zeros(min(warp, kernel.threads), dtype=np.int64)
    for dim, row in zip(op.dims, rows, strict=True):
        for axis, coefficient in dim:
            if axis in at:
                address = address + at[axis] * (own[axis] * coefficient * row)
    if vector == 1:
        return float(_banks(address, banks))
    # Vectors are served a part of the warp at a time.
    together = max(1, banks // vector)
    cycles = 0
    for start in range(0, len(address), together):
        part = address[start:start + together]
        cycles += _banks((part[:, None] + np.arange(vector)[None, :]).ravel(), banks)
    # Lanes that read the same vector are served with those that do.
    distinct = len(np.unique(address)) * vector
    return float(max(1, min(cycles, max(ceil(distinct / banks), _banks(address // vector, together)))))


@counted
def store_sectors(kernel: StagedKernel, warp: int, sector: int) -> float:
    """Sectors that one store instruction of a warp touches."""
    g = kernel.geometry
    shape = tuple(g.extents[i] for i in g.spatial)
    at = lane_coordinates(kernel.lanes, g.spatial, min(warp, kernel.threads))
    address = np.zeros(min(warp, kernel.threads), dtype=np.int64)
    for axis, stride in zip(g.spatial, strides_of(shape), strict=True):
        address = address + at[axis] * (kernel.thread[axis] // kernel.vthreads[axis] * stride)
    touched = (address[:, None] + np.arange(kernel.store)[None, :]) * g.output_bytes // sector
    return float(len(np.unique(touched)))
