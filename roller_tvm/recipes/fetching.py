"""Data movement of tiles: vector widths of fetches and stores, padding of rows in shared memory, virtual threads.

Tiles are tables of N columns (see ``gpu_nest``), and so are the results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..device import DeviceSpec
from ..micro_perf.geometry import Geometry, Operand
from ..micro_perf.gpu_nest import Array, GpuNest, ceil_div, looked_up
from ..micro_perf.storage import VECTOR_ALIGNMENT

#: Vectors of more elements have their places computed one by one: CUDA C++ has no integer vector longer than int4.
INDEXED = 4


def within_rows(boxes: Sequence[Array], vectors: Array) -> Array:
    """Return widths of fetches, narrowed where a vector would leave its row, as TVM finds no run in such a vector.

    Parameters
    ----------
    vectors : array of (operands, N)
        Elements fetched at once.

    Examples
    --------
    >>> within_rows([np.array([[1], [8]]), np.array([[12], [3]])], np.array([[1], [16]])).ravel().tolist()
    [1, 4]
    """
    result = vectors.copy()
    for width, box in zip(result, boxes, strict=True):
        if not (width > INDEXED).any():
            continue
        row = np.ones_like(width)
        for extent in box:
            row = np.where(extent > 1, extent, row)
        while (leaves := (width > INDEXED) & (row % width != 0)).any():
            width[leaves] //= 2
    return result


def fetch_vectors(nest: GpuNest, boxes: Sequence[Array], block: Array, device: DeviceSpec, padding: Array) -> Array:
    """Return how many elements one fetch of each operand can move, (operands, N)."""
    operands = nest.geometry.operands
    if any(len(op.shape) < 2 for op in operands):  # the stride of a one-dimensional buffer cannot be aligned
        return np.ones(padding.shape, np.int64)
    over = nest.overhangs(block)
    widths = [
        _fetch_vector(nest, op, box, block, over, device, added)
        for op, box, added in zip(operands, boxes, padding, strict=True)
    ]
    return within_rows(boxes, np.array(widths).reshape(padding.shape))


def _fetch_vector(
    nest: GpuNest, operand: Operand, box: Array, block: Array, over: Array, device: DeviceSpec, padding: Array
) -> Array:
    """Return how many elements one fetch can move: contiguous and aligned in both memories, not guarded."""
    count = block.shape[1]
    best, below = np.ones(count, np.int64), np.ones(count, np.int64)
    widest = device.vector_bytes // operand.element_bytes
    if not operand.plain or widest < 2:
        return best
    guarded = np.logical_or.reduce(over[sorted(operand.axes)], axis=0) if operand.axes else np.zeros(count, bool)
    here = np.ones(count, bool)
    for d in range(len(box) - 1, -1, -1):
        # Multiples of the width: where vectors start along the dimension, and all lengths.
        multiple = np.gcd(box[d] * below, operand.shape[d] * below)
        multiple = np.gcd(np.gcd(multiple, box[d] * below + padding), operand.access.indices[d].const * below)
        starts = np.ones(count, bool)
        for a, c in operand.dims[d]:
            whole = block[a] >= nest.extents[a]
            multiple = np.gcd(multiple, np.where(whole, 0, c * block[a] * below))
            starts &= (block[a] == 1) | (nest.extents[a] % block[a] == 0)
        for width in (widest // 2, widest):
            if width > 1:
                best = np.where(here & starts & (multiple % width == 0), width, best)
        if d == 0:
            break
        # Trailing dimensions that the box covers whole are one run with the one before, unless rows are padded.
        here = here & (padding == 0) & ~guarded & (box[d] == operand.shape[d])
        if not here.any():
            break
        below = np.where(here, below * box[d], below)
        best = np.where(here, 1, best)
    return best


def store_vectors(nest: GpuNest, block: Array, thread: Array, vthreads: Array) -> Array:
    """Return the outputs that a thread stores in one instruction."""
    g = nest.geometry
    last = g.spatial[-1]
    own, extent = thread[last] // vthreads[last], g.extents[last]
    width = np.ones_like(own)
    # The store walks the output's own row: parts of an axis (a split one) are not its last dimension.
    for wide in (VECTOR_ALIGNMENT // 2 // g.output_bytes, VECTOR_ALIGNMENT // g.output_bytes):
        if wide > 1 and extent % wide == 0:
            width = np.where((own % wide == 0) & (extent % block[last] == 0), wide, width)
    return width


def storage_paddings(nest: GpuNest, boxes: Sequence[Array], unrolled: Array, device: DeviceSpec) -> Array:
    """Return rule 3's padding of each operand in elements, (operands, N): 0 unless neighbouring threads walk rows."""
    count = unrolled.shape[1]
    found = [
        _storage_padding(nest.geometry, op, box, unrolled, device)
        for op, box in zip(nest.geometry.operands, boxes, strict=True)
    ]
    return np.array([np.broadcast_to(p, count) for p in found], np.int64).reshape(len(found), count)


def _storage_padding(
    geometry: Geometry, operand: Operand, box: Array, unrolled: Array, device: DeviceSpec
) -> Array | int:
    shared = device.level("shared")
    if not shared.banks or not operand.shape or not geometry.spatial:
        return 0
    last = geometry.spatial[-1]
    walked = [d for d, dim in enumerate(operand.dims) if any(a == last for a, _ in dim)]
    if not walked or walked[-1] == len(operand.dims) - 1:
        return 0  # neighbours read neighbours, or one element for all
    row = box[-1]
    elements = max(1, shared.bank_bytes // operand.element_bytes)
    # Rows that a thread walks along are read in vectors, and fetched so.
    wide = device.vector_bytes // operand.element_bytes
    along = row % wide == 0
    for a, c in operand.dims[-1]:
        along &= (unrolled[a] % wide == 0) & (c == 1)
    return np.where(along, bank_paddings(row, wide, shared.banks, elements),
                    bank_paddings(row, 1, shared.banks, elements))  # fmt: skip


def bank_paddings(row: Array, fetched: int, banks: int, bank_elements: int) -> Array:
    """Return rule 3's padding (``alignment.bank_padding``) of N rows."""
    quantum = bank_elements * -(-fetched // bank_elements)
    if quantum >= banks * bank_elements:
        return np.zeros_like(row)
    groups = ceil_div(row, quantum)
    return (groups + (groups % 2 == 0)) * quantum - row


def virtual_threads(nest: GpuNest, block: Array, thread: Array, device: DeviceSpec) -> Array:
    """Return the virtual threads that split the innermost register extent so that a warp touches contiguous vectors."""
    g = nest.geometry
    result = np.ones_like(thread)
    if not g.spatial:
        return result
    last = g.spatial[-1]
    plain = all(
        len(dim) == 1 and dim[0][1] == 1 for op in g.operands for dim in op.dims if any(a == last for a, _ in dim)
    )
    widest = max(1, device.vector_bytes // g.output_bytes) if plain else 1
    vectors = looked_up(lambda own: own // _divisor_up_to(own, widest), thread[last])
    result[last] = np.where(g.extents[last] % block[last] == 0, vectors, 1)
    return result


def _divisor_up_to(length: int, most: int) -> int:
    """Return the largest divisor of a length that is no more than `most`."""
    return next(d for d in range(min(length, most), 0, -1) if length % d == 0)
