"""Layout of staged buffers: strides with bank padding and alignment, and their exact size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .gpu_nest import Array, GpuNest, product, round_up

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


def vector_quanta(nest: GpuNest, vectors: Array, whole: Array | bool = True) -> list[Array]:
    """Return, per operand, the elements of which a buffer must be a multiple to keep vectors into the next aligned."""
    wide = (np.maximum.reduce(vectors) > 1) & whole
    return [np.where(wide, max(1, VECTOR_ALIGNMENT // op.element_bytes), 1) for op in nest.geometry.operands]


def stored_bytes(
    nest: GpuNest, boxes: Sequence[Array], padding: Array, vectors: Array, whole: Array | bool = True
) -> Array:
    """Return the bytes of all staged operands: ``storage_elements`` of ``alignments`` for N boxes of each.

    Parameters
    ----------
    padding, vectors : array of (operands, N)
        Elements added to a row, and elements of a fetch.
    whole : array
        True if buffers are rounded up to whole vectors.
    """
    total = np.zeros(padding.shape[1], np.int64)
    quanta = vector_quanta(nest, vectors, whole)
    for op, box, added, quantum in zip(nest.geometry.operands, boxes, padding, quanta, strict=True):
        if len(box) < 2:
            elements = product(box, len(added))
        else:
            elements = round_up((box[-1] + added) * product(box[1:-1], len(added)), quantum) * box[0]
        total += elements * op.element_bytes
    return total


def read_widths(
    dims: Sequence[Sequence[tuple[int, int]]], box: Array, mine: Array, padding: Array, block: Array, part: Array
) -> Array:
    """Return the elements that one read of a staged buffer moves; trailing dimensions read whole are one run.

    Parameters
    ----------
    dims : sequence of sequence of (axis, stride)
        Axes that index each dimension.
    box, mine : array of (dimensions, N)
        Extents of the buffers, and of a thread's part of them.
    padding : array
        Elements added to a row.
    block, part : array of (axes, N)
        A block's tile, and a thread's number of neighbouring points.

    Examples
    --------
    >>> box, mine, block, part = (np.array(t)[:, None] for t in ([8, 32], [1, 4], [8, 32], [1, 4]))
    >>> read_widths([[(0, 1)], [(1, 1)]], box, mine, np.array([0]), block, part).tolist()
    [4]
    """
    count = box.shape[1]
    width, below = np.ones(count, np.int64), np.ones(count, np.int64)
    here = np.ones(count, bool)  # rows whose run begins in this dimension or in one before it
    for d in range(len(box) - 1, -1, -1):
        # Axes of one point count for nothing: what is left must be one axis of stride 1 to make the run longer.
        long = [block[a] > 1 for a, _ in dims[d]]
        several = np.add.reduce(long, axis=0) if long else np.zeros(count, np.int64)
        length = below
        for (a, c), is_long in zip(dims[d], long, strict=True):
            if c == 1:
                length = np.where(is_long & (several == 1), below * part[a], length)
        row = box[d] * below + np.where(below == 1, padding, 0)
        run = np.gcd(length, row)
        width = np.where(here, np.where(run % 4 == 0, 4, np.where(run % 2 == 0, 2, 1)), width)
        if d == 0:
            break
        here = here & (mine[d] == box[d]) & (padding == 0)
        if not here.any():
            break
        below = np.where(here, below * box[d], below)
    return width
