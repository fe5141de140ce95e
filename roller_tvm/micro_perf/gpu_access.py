"""Counts over the addresses of a warp's lanes: sectors of a fetch or store, bank conflicts of shared memory reads.

The addresses follow from a kernel's tiles alone, so they are enumerated for a few warps instead of estimated: for all
kernels of a table at once, in arrays of shape (N, warps, lanes, elements).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .geometry import Geometry, Operand
from .gpu_nest import Array, GpuNest, ascending, ceil_div, distinct, distinct_columns
from .kernel import StagedTable

#: Number of a fetch's warps to look at; the others are like them.
SAMPLES = 6
#: Banks of shared memory, each a word wide (every NVIDIA card since 2012, and MI50).
BANKS = 32


@dataclass(frozen=True)
class Fetches:
    """Copies of the operands into shared memory in one step of a block, each an array of (operands, N).

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

    @property
    def instructions(self) -> Array:
        """Instructions of a copy: one for a vector, or one for each element."""
        return np.where(self.vectorised, 1, self.vector)


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


def fetches(table: StagedTable, warp: int, sector: int) -> Fetches:
    """Count the copies of the operands: lanes take neighbouring vectors of a tile in turn."""
    nest, boxes, vector = table.nest, table.boxes, table.vectors
    whole = np.array([[not op.guarded and op.as_stored] for op in nest.geometry.operands])
    vectorised = whole & (vector > 1) & _whole_vectors(nest, boxes, vector)
    copies = Copies.of(table)
    # Kernels that differ in their register tiles alone copy alike.
    first, back = distinct_columns(
        np.stack([copies.operand, copies.padding, copies.vector, copies.threads]), copies.box
    )
    copies, at_once = copies.take(first), vectorised.ravel()[first]
    # Lanes that touch one sector each, with a whole vector or an element, and others.
    inside = (copies.vector == 1) | at_once & copies.within(sector)
    counted = np.empty((3, len(first)))
    for one_sector in (True, False):
        if (rows := np.flatnonzero(inside == one_sector)).size:
            counted[:, rows] = _counted(copies.take(rows), at_once[rows], one_sector, warp, sector)
    requested, moved, conflicts = (c[back].reshape(vector.shape) for c in counted)
    return Fetches(table.rounds, vector, vectorised, requested, moved, conflicts)


@dataclass(frozen=True)
class Copies:
    """Copies of single operands in one step of a block, a column each.

    Parameters
    ----------
    operand : array
        Its number.
    box, strides : array of (dimensions, N)
        Extents of the tile, and elements between neighbours in memory.
    padding, vector, threads : array
    total : array
        Elements of the tile.
    rounds : array
        Copies of a thread.
    element_bytes, share, first : array
        Bytes of an element; share of them that is in memory; number of the tile's first element in memory.
    """

    operand: Array
    box: Array
    strides: Array
    padding: Array
    vector: Array
    threads: Array
    total: Array
    rounds: Array
    element_bytes: Array
    share: Array
    first: Array

    @classmethod
    def of(cls, table: StagedTable) -> Copies:
        """Return the copies of all operands, one operand after the other."""
        nest, count = table.nest, table.count
        geometry, number = nest.geometry, np.repeat(np.arange(len(nest.shape)), count)
        strides = np.array([
            [0] * before + strides_of(memory_shape(geometry, op))
            for op, before in zip(geometry.operands, nest.before, strict=True)
        ])  # fmt: skip
        first = np.array([first_element(geometry, op) for op in geometry.operands])
        return cls(
            number, np.concatenate(list(table.boxes), axis=1), strides.T[:, number], table.padding.ravel(),
            table.vectors.ravel(), np.tile(table.threads, len(nest.shape)), table.elements.ravel(),
            table.rounds.ravel(), nest.element_bytes[number, 0], nest.stored_share[number, 0], first[number],
        )  # fmt: skip

    def offset(self, sector: int) -> Array:
        """Return the elements between a sector's start and the tile's."""
        return self.first % (sector // self.element_bytes)

    def within(self, sector: int) -> Array:
        """Return whether a vector that is aligned in its tile lies within one sector."""
        apart = sector // self.element_bytes % self.vector | self.offset(sector) % self.vector
        return (self.vector * self.element_bytes <= sector) & (apart == 0)

    def take(self, rows: Array) -> Copies:
        """Return some of them."""
        return Copies(
            self.operand[rows], self.box[:, rows], self.strides[:, rows], self.padding[rows], self.vector[rows],
            self.threads[rows], self.total[rows], self.rounds[rows], self.element_bytes[rows], self.share[rows],
            self.first[rows],
        )  # fmt: skip


def _counted(
    copies: Copies, vectorised: Array, inside: bool, warp: int, sector: int
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return requested bytes, moved bytes and conflicts of copies (see ``Fetches``).

    Parameters
    ----------
    inside : bool
        True if all elements of a lane's copy lie in one sector.
    """
    vector, threads, total, rounds = copies.vector, copies.threads, copies.total, copies.rounds
    warps = ceil_div(threads, warp)
    # First element of each sampled warp; lanes beyond the block or the tile are where the last one is.
    sampled, counts = _spaced(rounds * warps)
    turn, mine = np.divmod(sampled, warps[:, None])
    starts = (turn * threads[:, None] + mine * warp) * vector[:, None]
    counts = counts & (starts + vector[:, None] <= total[:, None])
    here = np.minimum(warp, threads[:, None] - mine * warp)
    last = np.minimum(here, (total[:, None] - starts) // vector[:, None])
    lanes = np.maximum(0, np.minimum(np.arange(warp), last[:, :, None] - 1))
    first = (starts[:, :, None] + lanes * vector[:, None, None]).astype(np.int32)  # tiles fit shared memory
    # Elements of shorter vectors: the last one again.
    element = np.arange(1 if inside else int(vector.max()), dtype=np.int32)
    own = element < vector[:, None]
    each = first[..., None] + np.minimum(element, (vector[:, None] - 1).astype(np.int32))[:, None, None, :]
    address, words = _addresses(copies, each)
    size = copies.element_bytes[:, None, None, None]
    touched = (address + copies.offset(sector)[:, None, None, None]) * size // sector
    number_of = np.count_nonzero(counts, axis=1)
    moved = (distinct(touched.reshape(*touched.shape[:2], -1)) * counts).sum(axis=1) * sector
    requested, conflicts = moved, number_of
    if not inside:
        by_element = distinct(touched.swapaxes(2, 3)) * counts[:, :, None] * own[:, None, :]
        requested = np.where(vectorised, moved, by_element.sum(axis=(1, 2)) * sector)
    if not vectorised.all():
        cycles = ceil_div(last, BANKS)  # of neighbours
        if (apart := np.flatnonzero((vector != 1) | (copies.padding != 0))).size:
            local = words[apart].reshape(-1, warp)
            cycles[apart] = bank_cycles(local, BANKS).reshape(len(apart), counts.shape[1])
        conflicts = np.where(vectorised, number_of, (cycles * counts).sum(axis=1))
    looked = np.maximum(1, number_of)
    share = rounds * warps / looked * copies.share
    # The last round may be a part of one.
    share = np.where(rounds * warps > SAMPLES, share * (total / (rounds * threads * vector)), share)
    return requested * share, moved * share, conflicts / looked


def _addresses(copies: Copies, elements: Array) -> tuple[Array, Array]:
    """Return the places of a tile's elements in memory, and in shared memory those of the first of each vector.

    Parameters
    ----------
    elements : array of (N, warps, lanes, elements)
        Numbers of elements of the tiles.
    """
    long = [d for d in range(len(copies.box) - 1, -1, -1) if (copies.box[d] > 1).any()] or [len(copies.box) - 1]
    rest, address = elements, np.zeros((), np.int64)
    for d in long:
        coordinate = rest
        if d != long[-1]:
            extent = copies.box[d].astype(np.int32)[:, None, None, None]
            above = rest // extent
            coordinate, rest = rest - above * extent, above
        address = address + coordinate * copies.strides[d][:, None, None, None]
    words, row = elements[..., 0], copies.box[-1].astype(np.int32)[:, None, None]
    if copies.padding.any():
        words = words + words // row * copies.padding[:, None, None]
    return address, words


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


def _whole_vectors(nest: GpuNest, boxes: Array, vectors: Array) -> Array:
    """Return whether every vector of a tile is contiguous and aligned in both memories, (operands, N)."""
    run, row = np.ones_like(vectors), np.ones_like(vectors)
    going = np.ones(vectors.shape, bool)
    for d in range(nest.rank - 1, -1, -1):
        box, full = boxes[:, d], nest.shape[:, d]
        run, row = np.where(going, run * box, run), np.where(going, row * full, row)
        going = going & (box >= full)
    return (run % vectors == 0) & (row % vectors == 0)


def bank_cycles(words: Array, banks: int) -> Array:
    """Return the cycles in which all banks serve the distinct words of each row: the most words of one bank.

    Examples
    --------
    >>> bank_cycles(np.array([[0, 1, 2], [0, 32, 32], [0, 32, 64]]), banks=32).tolist()
    [1, 2, 3]
    """
    ordered = ascending(words)
    new = np.ones(ordered.shape, bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    bank = ordered % banks + np.arange(len(ordered))[:, None] * banks
    return np.bincount(bank[new], minlength=len(ordered) * banks).reshape(len(ordered), banks).max(axis=1)


def read_cycles(table: StagedTable, warp: int, vectors: Array) -> Array:
    """Return the cycles in which a warp reads `vectors` neighbouring elements of staged operands, with conflicts.

    Parameters
    ----------
    vectors : array of (operands, N)

    Returns
    -------
    array of (operands, N)
    """
    nest, boxes = table.nest, table.boxes
    rows = np.ones_like(boxes)  # elements between neighbours along each dimension
    rows[:, :-1] = np.multiply.accumulate(
        np.concatenate([(boxes[:, -1] + table.padding)[:, None], boxes[:, -2:0:-1]], axis=1), axis=1
    )[:, ::-1]
    own = np.where(table.lanes > 1, table.thread[nest.outer] // table.vthreads[nest.outer], 0)
    steps = np.concatenate(list((nest.slopes.swapaxes(1, 2) @ rows) * own), axis=1)
    lanes, threads = np.tile(table.lanes, len(boxes)), np.tile(table.threads, len(boxes))
    first, back = distinct_columns(np.stack([vectors.ravel(), threads]), lanes, steps)
    address, width = lane_addresses(lanes[:, first], steps[:, first], threads[first], warp), vectors.ravel()[first]
    cycles, count = np.zeros(len(first)), np.minimum(warp, threads[first])
    for vector in set(width.tolist()):
        at = np.flatnonzero(width == vector)
        cycles[at] = _read_cycles(address[at], vector, count[at])
    return cycles[back].reshape(vectors.shape)


def lane_addresses(lanes: Array, steps: Array, threads: Array, warp: int) -> Array:
    """Return the addresses (N, warp) of blocks' first lanes (the last axis fastest), `steps` apart along each axis.

    Lanes beyond a block repeat those in it.

    Parameters
    ----------
    lanes, steps : array of (axes, N)
    threads : array
        Threads of a block.
    """
    rest = np.arange(warp) % np.minimum(warp, threads)[:, None]
    address = np.zeros(rest.shape, np.int64)
    for along, step in zip(lanes[::-1, :, None], steps[::-1, :, None], strict=True):
        rest, at = np.divmod(rest, along)
        address += at * step
    return address


def _read_cycles(address: Array, vector: int, count: Array) -> Array:
    """Return the cycles of reads of one width; only the first `count` addresses of each row are lanes."""
    if vector == 1:
        return bank_cycles(address, BANKS)
    # Vectors are served a part of the warp at a time.
    together = BANKS // vector
    lanes = np.arange(address.shape[1])
    part = np.where(lanes < count[:, None], lanes, lanes // together * together)
    at_once = min(together, address.shape[1])
    words = (np.take_along_axis(address, part, 1)[:, :, None] + np.arange(vector)).reshape(-1, at_once * vector)
    cycles = bank_cycles(words, BANKS).reshape(len(address), -1)
    cycles = (cycles * (np.arange(cycles.shape[1]) * at_once < count[:, None])).sum(axis=1)
    # Lanes that read the same vector are served with those that do.
    return np.minimum(cycles, bank_cycles(address // vector, together))


def store_sectors(table: StagedTable, warp: int, sector: int) -> Array:
    """Return the number of sectors that one store instruction of a warp touches."""
    nest = table.nest
    strides = np.array(strides_of([nest.geometry.extents[i] for i in nest.spatial]), np.int64)[:, None]
    steps = np.where(table.lanes > 1, table.thread[nest.outer] // table.vthreads[nest.outer], 0) * strides
    first, back = distinct_columns(np.stack([table.store, table.threads]), table.lanes, steps)
    address = lane_addresses(table.lanes[:, first], steps[:, first], table.threads[first], warp)
    element = np.minimum(np.arange(int(table.store.max())), table.store[first, None] - 1)
    touched = (address[:, :, None] + element[:, None, :]) * nest.geometry.output_bytes // sector
    return distinct(touched.reshape(len(first), -1))[back]
