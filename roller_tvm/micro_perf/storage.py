"""Layout of staged buffers: strides with bank padding and alignment, and their exact size."""

from __future__ import annotations

from collections.abc import Sequence

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


def read_width(
    dims: Sequence[Sequence[tuple[int, int]]], box: Sequence[int], mine: Sequence[int], padding: int,
    block: Sequence[int], part: Sequence[int],
) -> int:  # fmt: skip
    """Return the elements that one read of a staged buffer moves; trailing dimensions read whole are one run.

    Parameters
    ----------
    dims : sequence of sequence of (axis, stride)
        Axes that index each dimension.
    box, mine : sequence of int
        Extents of the buffer, and of a thread's part of it.
    padding : int
        Elements added to a row.
    block, part : sequence of int
        By axis: the block's tile, and a thread's number of neighbouring points.

    Examples
    --------
    >>> read_width([[(0, 1)], [(1, 1)]], [8, 32], [1, 4], 0, block=[8, 32], part=[1, 4])
    4
    """
    first, below = len(box) - 1, 1
    while first > 0 and mine[first] == box[first] and not padding:
        below *= box[first]
        first -= 1
    if first < 0:
        return 1
    dim = [(a, c) for a, c in dims[first] if block[a] > 1]
    length, row = below, box[first] * below + (padding if below == 1 else 0)
    if len(dim) == 1 and dim[0][1] == 1:
        length *= part[dim[0][0]]
    return next((v for v in (4, 2) if length % v == 0 and row % v == 0), 1)
