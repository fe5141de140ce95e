"""Layout of staged buffers: strides with bank padding and alignment, and their exact size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .gpu_nest import Array, GpuNest, round_up

# Alignment that a vector access needs, in bytes; TVM declares shared arrays one after the other without alignment.
VECTOR_ALIGNMENT = 16


def alignments(box: Sequence[int], padding: int, quantum: int) -> list[tuple[int, int]]:
    """Return the stride alignments that give a buffer its bank padding and whole vectors.

    Parameters
    ----------
    box : sequence of int
        Extents of the buffer.
    padding : int
        Elements to add to a row (rule 3).
    quantum : int
        Elements of which the whole buffer must be a multiple, so that the next buffer starts aligned;
        1 if nothing is fetched in vectors.

    Returns
    -------
    list of (dimension, factor)
        The stride of `dimension` is rounded up to a multiple of `factor`.

    Examples
    --------
    >>> alignments([16, 32], padding=1, quantum=1), alignments([16, 30], padding=0, quantum=4)
    ([(0, 33)], [(0, 32)])
    """
    result: list[tuple[int, int]] = []
    if len(box) < 2:
        return result
    row = len(box) - 2
    stride = box[-1]
    if padding:
        factor = box[-1] + padding
        if row == 0:
            factor = -(-factor // quantum) * quantum
        result.append((row, factor))
        stride = factor
    if row > 0 or not padding:
        for dim in range(row, 0, -1):
            stride *= box[dim]
        if stride % quantum:
            result.append((0, quantum if row else -(-stride // quantum) * quantum))
    return result


def storage_elements(box: Sequence[int], aligned: Sequence[tuple[int, int]]) -> int:
    """Return the elements that TVM allocates for a buffer of extents `box` with aligned strides.

    Examples
    --------
    >>> storage_elements([16, 32], [(0, 33)])
    528
    """
    factors = dict(aligned)
    stride = 1
    for dim in range(len(box) - 1, 0, -1):
        stride *= box[dim]
        factor = factors.get(dim - 1, 1)
        stride += -stride % factor
    return stride * box[0] if box else 1


def vector_quanta(nest: GpuNest, vectors: Array, whole: Array | bool = True) -> Array:
    """Return the elements of which buffers must be a multiple to keep vectors into the next aligned, (operands, N)."""
    wide = (np.maximum.reduce(vectors) > 1) & whole
    return np.where(wide, VECTOR_ALIGNMENT // nest.element_bytes, 1)


def stored_bytes(
    nest: GpuNest, boxes: Array, padding: Array, vectors: Array, whole: Array | bool = True
) -> Array:
    """Return the bytes of all staged operands: ``storage_elements`` of ``alignments`` for N boxes of each.

    Parameters
    ----------
    padding, vectors : array of (operands, N)
        Elements added to a row, and elements of a fetch.
    whole : array
        True if buffers are rounded up to whole vectors.
    """
    # The stride of an operand's first dimension is rounded up; a vector has none.
    first = np.where(nest.first_dim, boxes, 1)  # those that have rows, too
    stride = (boxes[:, -1] + padding) * np.multiply.reduce(np.where(nest.first_dim, 1, boxes)[:, :-1], axis=1)
    strided = round_up(stride, vector_quanta(nest, vectors, whole)) * np.multiply.reduce(first, axis=1)
    elements = np.where(nest.own_dims[:, -2:].all(axis=1), strided, boxes[:, -1]) if nest.rank > 1 else boxes[:, -1]
    return np.add.reduce(elements * nest.element_bytes, axis=0)


#: Elements of a read by the last two bits of its run: a power of two divides two numbers if it divides their bits
#: together.
_WIDTHS = np.array([4, 1, 2, 1])


def read_widths(
    nest: GpuNest, boxes: Array, mine: Array, padding: Array, block: Array, part: Array
) -> Array:
    """Return the elements that one read of a staged buffer moves; trailing dimensions read whole are one run.

    Parameters
    ----------
    boxes, mine : array of (operands, dimensions, N)
        Extents of the buffers, and of a thread's part of them.
    padding : array of (operands, N)
        Elements added to a row.
    block, part : array of (axes, N)
        A block's tile, and a thread's number of neighbouring points.

    Returns
    -------
    array of (operands, N)

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> from .geometry import Geometry
    >>> nest = GpuNest.of(Geometry.of(matmul(m=64, n=64, k=64), "matmul"))
    >>> block, part = (np.array(t)[:, None] for t in ([64, 32, 8], [4, 4, 1]))
    >>> read_widths(nest, nest.boxes(block), nest.boxes(part), np.array([[0], [0]]), block, part).tolist()
    [[1], [4]]
    """
    # Axes of one point count for nothing: what is left must be one axis of stride 1 to make the run longer.
    neighbours = nest.neighbours_along(block, part)
    below, unpadded = np.ones_like(padding), padding == 0
    runs, here = np.ones_like(padding), np.ones(padding.shape, bool)  # whose run begins in this dimension or before it
    whole = mine == boxes
    for d in range(nest.rank - 1, -1, -1):
        box = boxes[:, d]
        row = box * below if unpadded.all() else box * below + np.where(below == 1, padding, 0)
        runs = np.where(here & nest.own_dims[:, d], below * neighbours[:, d] | row, runs)
        if d == 0:
            break
        here = here & whole[:, d] & unpadded
        if not here.any():
            break
        below = np.where(here, below * box, below)
    return _WIDTHS[runs & 3]
