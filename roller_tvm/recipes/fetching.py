"""Data movement of tiles: vector widths of fetches and stores, padding of rows in shared memory, virtual threads.

Tiles are tables of N columns (see ``gpu_nest``), and so are the results.
"""

from __future__ import annotations

import numpy as np

from ..device import DeviceSpec
from ..micro_perf.geometry import Geometry, Operand
from ..micro_perf.gpu_nest import Array, GpuNest, ceil_div
from ..micro_perf.registers import largest_divisors
from ..micro_perf.storage import VECTOR_ALIGNMENT

#: Vectors of more elements have their places computed one by one: CUDA C++ has no integer vector longer than int4.
INDEXED = 4


def within_rows(boxes: Array, vectors: Array) -> Array:
    """Return widths of fetches, narrowed where a vector would leave its row, as TVM finds no run in such a vector.

    Parameters
    ----------
    vectors : array of (operands, N)
        Elements fetched at once.

    Examples
    --------
    >>> within_rows(np.array([[[1], [8]], [[12], [3]]]), np.array([[1], [16]])).ravel().tolist()
    [1, 4]
    """
    if not (vectors > INDEXED).any():
        return vectors
    result, row = vectors.copy(), np.ones_like(vectors)
    for d in range(boxes.shape[1]):
        row = np.where(boxes[:, d] > 1, boxes[:, d], row)
    while (leaves := (result > INDEXED) & (row % result != 0)).any():
        result[leaves] //= 2
    return result


def fetch_vectors(nest: GpuNest, boxes: Array, block: Array, device: DeviceSpec, padding: Array) -> Array:
    """Return how many elements one fetch of each operand can move, (operands, N).

    They are contiguous and aligned in both memories, and not guarded.
    """
    operands = nest.geometry.operands
    # The stride of a one-dimensional buffer cannot be aligned.
    if any(len(op.shape) < 2 for op in operands) or not any(op.plain for op in operands):
        return np.ones(padding.shape, np.int64)
    most = [device.vector_bytes // op.element_bytes if op.plain else 1 for op in operands]
    widest = np.array([[1 << max(0, width.bit_length() - 1)] for width in most])
    whole = block >= nest.extents
    divided = nest.extents % block == 0
    # Distances at which blocks start along a dimension: none along an axis that a block covers whole. All lengths are
    # kept as bits: a power of two divides several numbers if it divides their bits together.
    steps = np.bitwise_or.reduce(nest.coefficients * nest.along(np.where(whole, 0, block), 0), axis=2)
    starts = np.logical_and.reduce(nest.along((block == 1) | divided, True), axis=2)
    lengths = boxes | nest.shape | nest.offsets | steps
    unpadded = (padding == 0) & ~np.logical_or.reduce(nest.uses & ~divided[nest.outer], axis=1)
    bits, below, here = np.ones_like(padding), np.ones_like(padding), np.ones(padding.shape, bool)
    for d in range(nest.rank - 1, -1, -1):
        box = boxes[:, d]
        run = np.where(starts[:, d], lengths[:, d] * below | (box * below + padding), 1)
        bits = np.where(here & nest.own_dims[:, d], run, bits)
        if d == 0:
            break
        # Trailing dimensions that the box covers whole are one run with the one before, unless rows are padded.
        here = here & unpadded & (box == nest.shape[:, d])
        if not here.any():
            break
        below = np.where(here, below * box, below)
    aligned = bits & -bits
    widths = np.where(aligned >= widest, widest, np.where(2 * aligned >= widest, widest // 2, 1))
    return within_rows(boxes, widths)


def store_vectors(nest: GpuNest, block: Array, thread: Array, vthreads: Array) -> Array:
    """Return the outputs that a thread stores in one instruction."""
    g = nest.geometry
    last = g.spatial[-1]
    own, extent = thread[last] // vthreads[last], g.extents[last]
    width, divided = np.ones_like(own), extent % block[last] == 0
    # The store walks the output's own row: parts of an axis (a split one) are not its last dimension.
    for wide in (VECTOR_ALIGNMENT // 2 // g.output_bytes, VECTOR_ALIGNMENT // g.output_bytes):
        if wide > 1 and extent % wide == 0:
            width = np.where(divided & (own % wide == 0), wide, width)
    return width


def storage_paddings(nest: GpuNest, boxes: Array, unrolled: Array, device: DeviceSpec) -> Array:
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
    vectors = thread[last] // largest_divisors(thread[last], np.array(widest))
    result[last] = np.where(g.extents[last] % block[last] == 0, vectors, 1)
    return result
