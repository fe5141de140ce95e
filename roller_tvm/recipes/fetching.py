"""Data movement of tiles: vector widths of fetches and stores, padding of rows in shared memory, lanes of a warp."""

from __future__ import annotations

from collections.abc import Sequence

from ..device import DeviceSpec
from ..micro_perf.geometry import Geometry, Operand, Tile
from ..micro_perf.storage import VECTOR_ALIGNMENT
from ..roller.alignment import bank_padding

#: Vectors of more elements have their places computed one by one: CUDA C++ has no integer vector longer than int4.
INDEXED = 4


def within_rows(geometry: Geometry, block: Tile, vectors: Sequence[int]) -> tuple[int, ...]:
    """Return widths of fetches, narrowed if a vector would leave its row, as TVM finds no run in such a vector.

    Parameters
    ----------
    vectors : sequence of int
        For each operand, the elements fetched at once.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> g = Geometry.of(operator("conv2d_nchw", n=1, c=8, h=9, w=9, f=12, kh=3, kw=3, dtype="int8"), "conv2d")
    >>> within_rows(g, g.extents, (1, 16))  # weights in rows of 3
    (1, 4)
    """
    result = list(vectors)
    for number, operand in enumerate(geometry.operands):
        row = next((extent for extent in reversed(operand.box(block)) if extent > 1), 1)
        while result[number] > INDEXED and row % result[number]:
            result[number] //= 2
    return tuple(result)


def fetch_vector(geometry: Geometry, operand: Operand, block: Tile, device: DeviceSpec, padding: int) -> int:
    """Return how many elements one fetch can move: contiguous and aligned in both memories, not guarded."""
    if not operand.plain:
        return 1
    box = operand.box(block)
    # Trailing dimensions that the box covers whole are one run with the dimension before them, unless rows are padded.
    first, below = len(box) - 1, 1
    if not padding and box[first] == operand.shape[first]:
        guarded = any(a in operand.axes for a in geometry.overhanging(block))
        while first > 0 and box[first] == operand.shape[first] and not guarded:
            below *= box[first]
            first -= 1
    run, row = box[first] * below, operand.shape[first] * below
    for width in (device.vector_bytes // operand.element_bytes, device.vector_bytes // operand.element_bytes // 2):
        if width < 2:
            break
        starts = all(
            c * block[a] * below % width == 0 or block[a] >= geometry.extents[a] for a, c in operand.dims[first]
        )
        const = operand.access.indices[first].const * below % width == 0
        starts = starts and not any(geometry.extents[a] % block[a] for a, _ in operand.dims[first] if block[a] > 1)
        if starts and const and run % width == 0 and row % width == 0 and (run + padding) % width == 0:
            return width
    return 1


def store_vector(geometry: Geometry, block: Tile, thread: Tile, vthreads: Tile) -> int:
    """Return the outputs that a thread stores in one instruction."""
    last = geometry.spatial[-1]
    own = thread[last] // vthreads[last]
    if geometry.extents[last] % block[last]:
        return 1
    # The store walks the output's own row: parts of an axis (a split one) are not its last dimension.
    for width in (VECTOR_ALIGNMENT // geometry.output_bytes, VECTOR_ALIGNMENT // 2 // geometry.output_bytes):
        if width > 1 and own % width == 0 and geometry.extents[last] % width == 0:
            return width
    return 1


def storage_padding(
    geometry: Geometry, operand: Operand, block: Tile, unrolled: Tile, device: DeviceSpec
) -> int:
    """Return rule 3's padding in elements, for an operand whose rows neighbouring threads walk; else 0."""
    shared = device.level("shared")
    if not shared.banks or not operand.shape or not geometry.spatial:
        return 0
    last = geometry.spatial[-1]
    walked = [d for d, dim in enumerate(operand.dims) if any(a == last for a, _ in dim)]
    if not walked or walked[-1] == len(operand.dims) - 1:
        return 0  # neighbours read neighbours, or one element for all
    row = operand.box(block)[-1]
    elements = max(1, shared.bank_bytes // operand.element_bytes)
    # Rows that a thread walks along are read in vectors, and fetched so.
    wide = device.vector_bytes // operand.element_bytes
    along = all(unrolled[a] % wide == 0 and c == 1 for a, c in operand.dims[-1])
    return bank_padding(row, wide if along and row % wide == 0 else 1, shared.banks, elements)


def virtual_threads(geometry: Geometry, block: Tile, thread: Tile, device: DeviceSpec) -> Tile:
    """Return the virtual threads that split the innermost register extent so that a warp touches contiguous vectors."""
    result = [1] * len(thread)
    if geometry.spatial and not geometry.extents[geometry.spatial[-1]] % block[geometry.spatial[-1]]:
        last = geometry.spatial[-1]
        plain = all(
            len(dim) == 1 and dim[0][1] == 1
            for op in geometry.operands for dim in op.dims if any(a == last for a, _ in dim)
        )
        width = min(thread[last], max(1, device.vector_bytes // geometry.output_bytes)) if plain else 1
        while thread[last] % width:
            width -= 1
        result[last] = thread[last] // width
    return tuple(result)
