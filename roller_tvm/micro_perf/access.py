"""Counts over the addresses of a warp's lanes: sectors of a fetch or store, bank conflicts of shared memory reads.

The addresses follow from a kernel's tiles alone, so they are enumerated for a few warps instead of estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from .geometry import Operand
from .kernel import StagedKernel

#: Number of a fetch's warps to look at; the others are like them.
SAMPLES = 6


@dataclass(frozen=True)
class Fetch:
    """The copy of one operand into shared memory in one step of a block.

    Parameters
    ----------
    rounds : int
        Copies of a thread, `vector` elements each.
    vectorised : bool
        True if a copy is one instruction, False if it takes one per element.
    requested : float
        Bytes of the sectors that the load instructions touch, counted for each instruction.
    moved : float
        Bytes of the sectors that the elements of a warp's copies touch, each sector counted once.
    conflicts : float
        Cycles that a warp's store into shared memory takes.
    """

    rounds: int
    vector: int
    vectorised: bool
    requested: float
    moved: float
    conflicts: float


def strides_of(shape: tuple[int, ...] | list[int]) -> list[int]:
    """Return the strides of a row-major tensor, in elements.

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
    """Return an operand's shape in memory: its source's if a prologue only shifts it (padding), else its own."""
    if len(operand.sources) == 1:
        source = kernel.geometry.expression.tensors.get(operand.sources[0].tensor)
        if source is not None and len(source.shape) == len(operand.shape):
            return source.shape
    return operand.shape


def first_elements(kernel: StagedKernel, operand: Operand) -> int:
    """Return the offset, in elements, of a tile's start in memory: negative if the padding shifts it."""
    shape = memory_shape(kernel, operand)
    strides = strides_of(shape)
    offset = 0
    for source in operand.sources[:1]:
        if len(source.indices) == len(shape):
            offset = sum(index.const * s for index, s in zip(source.indices, strides, strict=True))
    return offset


def fetch(kernel: StagedKernel, number: int, warp: int, sector: int) -> Fetch:
    """Count the copy of operand `number` (cached): lanes take neighbouring vectors of the tile in turn."""
    known = kernel.geometry.counted
    key = ("fetch", number, kernel.boxes[number], kernel.vectors[number], kernel.padding[number], kernel.threads,
           warp, sector)  # fmt: skip
    if key not in known:
        known[key] = _fetch(kernel, number, warp, sector)
    return known[key]


def _fetch(kernel: StagedKernel, number: int, warp: int, sector: int) -> Fetch:
    op, box, vector = kernel.geometry.operands[number], kernel.boxes[number], kernel.vectors[number]
    threads, total = kernel.threads, prod(box)
    rounds = ceil(total / (threads * vector))
    vectorised = vector > 1 and not op.guarded and op.as_stored and _whole_vectors(box, op.shape, vector)
    warps = ceil(threads / warp)
    strides = strides_of(memory_shape(kernel, op))
    rows = strides_of([*box[:-1], box[-1] + kernel.padding[number]]) if box else []
    base = first_elements(kernel, op) % max(1, sector // op.element_bytes)
    # First element of each sampled warp; lanes beyond the block or the tile touch no further elements.
    looked_at = [divmod(n, warps) for n in _spaced(rounds * warps)]
    firsts = [(round_ * threads + mine * warp) * vector for round_, mine in looked_at]
    firsts = [first for first in firsts if first + vector <= total]
    if not firsts:
        return Fetch(rounds, vector, vectorised, 0.0, 0.0, 0.0)
    here = [min(warp, threads - first // vector % threads) for first in firsts]
    starts, lanes = np.array(firsts, dtype=np.int64)[:, None], np.arange(warp)
    last = np.minimum(np.array(here)[:, None], (total - starts) // vector)
    first = starts + np.where(lanes < last, lanes, 0) * vector
    rest = first[:, :, None] + np.arange(vector)
    address = np.full(rest.shape, base)
    local = np.zeros(first.shape, dtype=np.int64)
    for extent, stride, row in zip(reversed(box), reversed(strides), reversed(rows), strict=True):
        if extent == 1:
            continue
        rest, coordinate = np.divmod(rest, extent)
        address += coordinate * stride
        if not vectorised:
            local += coordinate[:, :, 0] * row
    touched = address * op.element_bytes // sector
    moved = _distinct(touched.reshape(len(firsts), -1)).sum() * sector
    if vectorised:
        requested, conflicts = moved, len(firsts)
    else:
        requested = _distinct(touched.swapaxes(1, 2)).sum() * sector
        conflicts = sum(bank_cycles(words, 32) for words in local)
    share = rounds * warps / len(firsts) * op.stored_share
    # The last round may be a part of one.
    share *= total / (rounds * threads * vector) if rounds * warps > SAMPLES else 1.0
    return Fetch(
        rounds, vector, vectorised, float(requested) * share, float(moved) * share, conflicts / len(firsts)
    )


def _spaced(count: int) -> list[int]:
    """Return at most ``SAMPLES`` of the numbers below `count`, evenly spaced, with the first and the last."""
    step = (count - 1) / (SAMPLES - 1)
    return sorted({*(int(n * step) for n in range(SAMPLES - 1)), count - 1})


def _distinct(values: np.ndarray) -> np.ndarray:
    """Return the number of distinct values along the last axis."""
    ordered = np.sort(values, axis=-1)
    return (ordered[..., 1:] != ordered[..., :-1]).sum(axis=-1) + 1


def _whole_vectors(box: tuple[int, ...], shape: tuple[int, ...], vector: int) -> bool:
    """Return whether every vector of a tile is contiguous and aligned in both memories."""
    run, row = 1, 1
    for extent, full in zip(reversed(box), reversed(shape), strict=True):
        run *= extent
        row *= full
        if extent < full:
            break
    return run % vector == 0 and row % vector == 0


def bank_cycles(addresses: np.ndarray, banks: int) -> int:
    """Return the cycles in which all banks serve their distinct words: the most words of one bank."""
    words = set(addresses.tolist())
    counts: dict[int, int] = {}
    for word in words:
        counts[word % banks] = counts.get(word % banks, 0) + 1
    return max(counts.values(), default=1)


def lane_addresses(kernel: StagedKernel, steps: dict[int, int], count: int) -> np.ndarray:
    """Return the addresses of the first `count` threads (last axis fastest), `steps` apart along each spatial axis."""
    rest = np.arange(count)
    address = np.zeros(count, dtype=np.int64)
    for axis in reversed(kernel.geometry.spatial):
        if kernel.lanes[axis] > 1:
            rest, at = np.divmod(rest, kernel.lanes[axis])
            if steps.get(axis):
                address += at * steps[axis]
    return address


def read_cycles(kernel: StagedKernel, number: int, warp: int, vector: int, banks: int = 32) -> float:
    """Return the cycles in which a warp reads `vector` neighbouring elements of a staged operand, with conflicts."""
    op, box, padding = kernel.geometry.operands[number], kernel.boxes[number], kernel.padding[number]
    rows = strides_of([*box[:-1], box[-1] + padding]) if box else []
    steps = dict.fromkeys(kernel.geometry.spatial, 0)
    for dim, row in zip(op.dims, rows, strict=True):
        for axis, coefficient in dim:
            if axis in steps:
                steps[axis] += kernel.thread[axis] // kernel.vthreads[axis] * coefficient * row
    count = min(warp, kernel.threads)
    known = kernel.geometry.counted
    key = ("read", kernel.lanes, tuple(steps.values()), count, vector, banks)
    if key not in known:
        known[key] = _read_cycles(lane_addresses(kernel, steps, count), vector, banks)
    return known[key]


def _read_cycles(address: np.ndarray, vector: int, banks: int) -> float:
    if vector == 1:
        return float(bank_cycles(address, banks))
    # Vectors are served a part of the warp at a time.
    together = max(1, banks // vector)
    cycles = 0
    for start in range(0, len(address), together):
        part = address[start:start + together]
        cycles += bank_cycles((part[:, None] + np.arange(vector)[None, :]).ravel(), banks)
    # Lanes that read the same vector are served with those that do.
    distinct = len(set(address.tolist())) * vector
    return float(max(1, min(cycles, max(ceil(distinct / banks), bank_cycles(address // vector, together)))))


def store_sectors(kernel: StagedKernel, warp: int, sector: int) -> float:
    """Return the number of sectors that one store instruction of a warp touches."""
    g = kernel.geometry
    strides = strides_of([g.extents[i] for i in g.spatial])
    steps = {
        axis: kernel.thread[axis] // kernel.vthreads[axis] * stride
        for axis, stride in zip(g.spatial, strides, strict=True)
    }
    count = min(warp, kernel.threads)
    key = ("store", kernel.lanes, tuple(steps.values()), count, kernel.store, sector)
    if key not in g.counted:
        address = lane_addresses(kernel, steps, count)
        touched = (address[:, None] + np.arange(kernel.store)[None, :]) * g.output_bytes // sector
        g.counted[key] = float(_distinct(touched.ravel()))
    return g.counted[key]
