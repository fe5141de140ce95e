"""Counts over the addresses of a warp's lanes: sectors of a fetch or store, bank conflicts of shared memory reads.

The addresses follow from a kernel's tiles alone, so they are enumerated for a few warps instead of estimated: for all
kernels of a table at once, in arrays of shape (N, warps, lanes, elements).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .geometry import Geometry, Operand
from .gpu_nest import Array, ceil_div, distinct
from .kernel import StagedTable

#: Number of a fetch's warps to look at; the others are like them.
SAMPLES = 6
#: Banks of shared memory, each a word wide (every NVIDIA card since 2012, and MI50).
BANKS = 32


@dataclass(frozen=True)
class Fetches:
    """The copy of one operand into shared memory in one step of a block: a column for each of N kernels.

    Parameters
    ----------
    rounds : array
        Copies of a thread, `vector` elements each.
    vector : array
    vectorised : array
        True if a copy is one instruction, False if it takes one per element.
    requested : array
        Bytes of the sectors that the load instructions touch, counted for each instruction.
    moved : array
        Bytes of the sectors that the elements of a warp's copies touch, each sector counted once.
    conflicts : array
        Cycles that a warp's store into shared memory takes.
    """

    rounds: Array
    vector: Array
    vectorised: Array
    requested: Array
    moved: Array
    conflicts: Array


def strides_of(shape: Sequence[int]) -> list[int]:
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


def memory_shape(geometry: Geometry, operand: Operand) -> tuple[int, ...]:
    """Return an operand's shape in memory: its source's if a prologue only shifts it (padding), else its own."""
    if len(operand.sources) == 1:
        source = geometry.expression.tensors.get(operand.sources[0].tensor)
        if source is not None and len(source.shape) == len(operand.shape):
            return source.shape
    return operand.shape


def first_element(geometry: Geometry, operand: Operand) -> int:
    """Return the offset, in elements, of a tile's start in memory: negative if the padding shifts it."""
    shape = memory_shape(geometry, operand)
    for source in operand.sources[:1]:
        if len(source.indices) == len(shape):
            return sum(index.const * s for index, s in zip(source.indices, strides_of(shape), strict=True))
    return 0


def fetches(table: StagedTable, number: int, warp: int, sector: int) -> Fetches:
    """Count the copies of operand `number`: lanes take neighbouring vectors of the tile in turn."""
    op, box, vector = table.nest.geometry.operands[number], table.own_boxes(number), table.vectors[number]
    vectorised = np.zeros(table.count, bool)
    if not op.guarded and op.as_stored:
        vectorised = (vector > 1) & _whole_vectors(box, op.shape, vector)
    # Kernels that differ in their register tiles alone copy alike.
    key = np.concatenate([box, table.padding[number][None], vector[None], table.threads[None]])
    known: dict[bytes, int] = {}
    copied = np.array([known.setdefault(column.tobytes(), n) for n, column in enumerate(np.ascontiguousarray(key.T))])
    first, back = np.unique(copied, return_inverse=True)
    counted = _counted(table, number, first, vectorised[first], warp, sector)
    requested, moved, conflicts = (c[back] for c in counted)
    return Fetches(table.rounds[number], vector, vectorised, requested, moved, conflicts)


def _counted(
    table: StagedTable, number: int, at: Array, vectorised: Array, warp: int, sector: int
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return requested bytes, moved bytes and conflicts of the kernels `at` (see ``Fetches``)."""
    geometry = table.nest.geometry
    op, vector = geometry.operands[number], table.vectors[number][at]
    threads, total = table.threads[at], table.elements[number][at]
    rounds, warps = table.rounds[number][at], ceil_div(threads, warp)
    # First element of each sampled warp; lanes beyond the block or the tile touch no further elements.
    sampled, counts = _spaced(rounds * warps)
    turn, mine = np.divmod(sampled, warps[:, None])
    starts = (turn * threads[:, None] + mine * warp) * vector[:, None]
    counts = counts & (starts + vector[:, None] <= total[:, None])
    here = np.minimum(warp, threads[:, None] - starts // vector[:, None] % threads[:, None])
    last = np.minimum(here, (total[:, None] - starts) // vector[:, None])
    lanes = np.arange(warp)
    first = starts[:, :, None] + np.where(lanes < last[:, :, None], lanes, 0) * vector[:, None, None]
    # Whole vectors no longer than a sector touch those of their first and last element; of others, each counts.
    if (vectorised & (vector * op.element_bytes <= sector) | (vector == 1)).all():
        address, local = _addresses(table, number, at, first[..., None])
        ends = np.array([0, 1]) if (vector > 1).any() else np.array([0])
        address = address + ends * (vector - 1)[:, None, None, None]
        own = ends < vector[:, None]
    else:
        element = np.arange(int(vector.max()))
        own = element < vector[:, None]
        element = np.minimum(element, vector[:, None] - 1)  # shorter vectors: the last element again
        address, local = _addresses(table, number, at, first[..., None] + element[:, None, None, :])
    touched = (address + first_element(geometry, op) % max(1, sector // op.element_bytes)) * op.element_bytes // sector
    number_of = np.count_nonzero(counts, axis=1)
    moved = (distinct(touched.reshape(*touched.shape[:2], -1)) * counts).sum(axis=1) * sector
    requested, conflicts = moved, number_of
    if not vectorised.all():
        each = distinct(touched.swapaxes(2, 3)) * counts[:, :, None] * own[:, None, :]
        requested = np.where(vectorised, moved, each.sum(axis=(1, 2)) * sector)
        cycles = bank_cycles(local.reshape(-1, warp), BANKS).reshape(counts.shape) * counts
        conflicts = np.where(vectorised, number_of, cycles.sum(axis=1))
    looked = np.maximum(1, number_of)
    share = rounds * warps / looked * op.stored_share
    # The last round may be a part of one.
    share = np.where(rounds * warps > SAMPLES, share * (total / (rounds * threads * vector)), share)
    return requested * share, moved * share, conflicts / looked


def _addresses(table: StagedTable, number: int, at: Array, elements: Array) -> tuple[Array, Array]:
    """Return the places of a tile's elements in memory, and in shared memory those of the first of each vector.

    Parameters
    ----------
    elements : array of (N, warps, lanes, elements)
        Numbers of elements of the tiles of kernels `at`.
    """
    op, box = table.nest.geometry.operands[number], table.own_boxes(number)[:, at]
    strides, row = strides_of(memory_shape(table.nest.geometry, op)), np.ones(len(at), np.int64)
    rest = elements.astype(np.int32)  # tiles fit shared memory
    address, local = np.zeros(elements.shape, np.int64), np.zeros(elements.shape[:3], np.int64)
    for d in range(len(box) - 1, -1, -1):
        if (box[d] > 1).any():
            extent = box[d].astype(np.int32)[:, None, None, None]
            above = rest // extent
            coordinate = rest - above * extent
            rest = above
            address += coordinate.astype(np.int64) * strides[d]
            local += coordinate[..., 0] * row[:, None, None]
        row = row * (box[d] + (table.padding[number][at] if d == len(box) - 1 else 0))
    return address, local


def _spaced(count: Array) -> tuple[Array, Array]:
    """Return ``SAMPLES`` evenly spaced numbers below each count, the first and the last among them, and which are new.

    Examples
    --------
    >>> [a.tolist() for a in _spaced(np.array([3]))]
    [[[0, 0, 0, 1, 1, 2]], [[True, False, False, True, False, True]]]
    """
    step = (count - 1) / (SAMPLES - 1)
    numbers = (np.arange(SAMPLES) * step[:, None]).astype(np.int64)
    numbers[:, -1] = count - 1
    new = np.ones(numbers.shape, bool)
    new[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    return numbers, new


def _whole_vectors(box: Array, shape: tuple[int, ...], vector: Array) -> Array:
    """Return whether every vector of a tile is contiguous and aligned in both memories."""
    run, row = np.ones_like(vector), np.ones_like(vector)
    going = np.ones(vector.shape, bool)
    for extent, full in zip(box[::-1], shape[::-1], strict=True):
        run, row = np.where(going, run * extent, run), np.where(going, row * full, row)
        going = going & (extent >= full)
    return (run % vector == 0) & (row % vector == 0)


def bank_cycles(words: Array, banks: int) -> Array:
    """Return the cycles in which all banks serve the distinct words of each row: the most words of one bank.

    Examples
    --------
    >>> bank_cycles(np.array([[0, 1, 2], [0, 32, 32], [0, 32, 64]]), banks=32).tolist()
    [1, 2, 3]
    """
    ordered = np.sort(words, axis=-1)
    new = np.ones(ordered.shape, bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    bank = ordered % banks + np.arange(len(ordered))[:, None] * banks
    return np.bincount(bank[new], minlength=len(ordered) * banks).reshape(len(ordered), banks).max(axis=1)


def lane_addresses(table: StagedTable, steps: dict[int, Array], warp: int) -> Array:
    """Return the addresses (N, warp) of a block's first lanes (last axis fastest), `steps` apart along each axis.

    Lanes beyond the block repeat those in it.
    """
    rest = np.arange(warp) % np.minimum(warp, table.threads)[:, None]
    address = np.zeros(rest.shape, np.int64)
    for axis, lanes in zip(reversed(table.nest.spatial), table.lanes[::-1], strict=True):
        rest, at = np.divmod(rest, lanes[:, None])
        if axis in steps:
            address += at * steps[axis][:, None]
    return address


def read_cycles(table: StagedTable, number: int, warp: int, vector: Array) -> Array:
    """Return the cycles in which a warp reads `vector` neighbouring elements of a staged operand, with conflicts."""
    op, box, padding = table.nest.geometry.operands[number], table.own_boxes(number), table.padding[number]
    steps: dict[int, Array] = {}
    row = np.ones(table.count, np.int64)
    for d in range(len(box) - 1, -1, -1):
        for axis, coefficient in op.dims[d]:
            if axis in table.nest.geometry.spatial_set:
                step = table.thread[axis] // table.vthreads[axis] * coefficient * row
                steps[axis] = steps[axis] + step if axis in steps else step
        row = row * (box[d] + (padding if d == len(box) - 1 else 0))
    address = lane_addresses(table, steps, warp)
    cycles = np.zeros(table.count)
    for width in set(vector.tolist()):
        rows = np.flatnonzero(vector == width)
        cycles[rows] = _read_cycles(address[rows], width, np.minimum(warp, table.threads[rows]))
    return cycles


def _read_cycles(address: Array, vector: int, count: Array) -> Array:
    """Return the cycles of reads of one width; only the first `count` addresses of each row are lanes."""
    if vector == 1:
        return bank_cycles(address, BANKS)
    # Vectors are served a part of the warp at a time.
    together = max(1, BANKS // vector)
    lanes = np.arange(address.shape[1])
    part = np.where(lanes < count[:, None], lanes, lanes // together * together)
    at_once = min(together, address.shape[1])
    words = (np.take_along_axis(address, part, 1)[:, :, None] + np.arange(vector)).reshape(-1, at_once * vector)
    cycles = bank_cycles(words, BANKS).reshape(len(address), -1)
    cycles = (cycles * (np.arange(cycles.shape[1]) * at_once < count[:, None])).sum(axis=1)
    # Lanes that read the same vector are served with those that do.
    least = ceil_div(distinct(address) * vector, BANKS)
    return np.maximum(1, np.minimum(cycles, np.maximum(least, bank_cycles(address // vector, together))))


def store_sectors(table: StagedTable, warp: int, sector: int) -> Array:
    """Return the number of sectors that one store instruction of a warp touches."""
    nest = table.nest
    strides = strides_of([nest.geometry.extents[i] for i in nest.spatial])
    steps = {
        axis: table.thread[axis] // table.vthreads[axis] * stride
        for axis, stride in zip(nest.spatial, strides, strict=True)
    }
    address = lane_addresses(table, steps, warp)
    element = np.minimum(np.arange(int(table.store.max())), table.store[:, None] - 1)
    touched = (address[:, :, None] + element[:, None, :]) * nest.geometry.output_bytes // sector
    return distinct(touched.reshape(table.count, -1))
