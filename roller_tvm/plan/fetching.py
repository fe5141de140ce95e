"""Vectors of a cooperative fetch into rows of shared memory whose stride is rounded up."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.geometry import Geometry, Tile
from ..model.gpu_tiled import vector_quantum
from ..model.storage import alignments

#: Elements of a vector whose places TVM computes one by one: CUDA C++ has no vector of more integers than int4.
INDEXED = 4


def within_rows(geometry: Geometry, block: Tile, vectors: Sequence[int], padding: Sequence[int]) -> tuple[int, ...]:
    """Widths of fetches, narrower where a vector would go on in the next row and rows are not next to each other.

    Parameters
    ----------
    vectors, padding : sequence of int
        Of each operand: elements fetched at once, elements that rule 3 adds to a row.

    Examples
    --------
    >>> from roller_tvm.expr.operators import operator
    >>> g = Geometry.of(operator("conv2d_nchw", n=1, c=8, h=9, w=9, f=12, kh=3, kw=3, dtype="int8"), "conv2d")
    >>> within_rows(g, g.extents, (1, 16), (0, 0))  # 72 weights of a channel, 80 from one to the next
    (1, 8)
    """
    result = list(vectors)
    for number, (operand, added) in enumerate(zip(geometry.operands, padding, strict=True)):
        box = operand.box(block)
        aligned = alignments(box, added, vector_quantum(operand, tuple(result)))
        while result[number] > INDEXED and _crosses(box, aligned, result[number]):
            result[number] //= 2
    return tuple(result)


def _crosses(box: Sequence[int], aligned: Sequence[tuple[int, int]], width: int) -> bool:
    """Whether some vector begins in one row and ends in the next, a rounded stride away."""
    factors, stride = dict(aligned), 1
    for dim in range(len(box) - 1, 0, -1):
        stride *= box[dim]
        rounded = stride + -stride % factors.get(dim - 1, 1)
        if rounded != stride and stride % width:
            return True
        stride = rounded
    return False
