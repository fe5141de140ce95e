"""Products of float32 on a CPU's matrix unit: their blocks, and their time.

A matrix unit (Intel's AMX) multiplies tiles of bfloat16, 16 times as fast as vectors multiply float32. Three numbers
of bfloat16 make up one of float32 (8 + 8 + 8 bits of 24). So a product of float32 is six products of bfloat16, summed
up in float32; the three left out are below 2^-25 of the terms. It is as near to the exact one as multiply-adds are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from ..device import DeviceSpec
from .cpu_caches import holding
from .cpu_constants import (
    CACHE_SHARE,
    MATRIX_CACHE,
    MATRIX_EXPOSED,
    MATRIX_SHARE,
    PASSED_GBPS,
    SPLIT_CYCLES,
    SUM_CYCLES,
)
from .cpu_rates import of_bytes

#: What the unit multiplies.
DTYPE = "bfloat16"
#: Numbers of bfloat16 that make up one of float32, and the pairs of them to multiply, least ones first. Each pair has
#: one number in common with the next, which stays in its tile.
PARTS = 3
PAIRS = ((0, 2), (0, 1), (1, 1), (1, 0), (0, 0), (2, 0))
#: Rows and columns of a tile of accumulators, and of a block: two by two of them.
ROWS, BLOCK = 16, 32
#: Terms of a block of a sum: bfloat16 numbers of a row of a tile.
DEPTH = 32
#: Bytes of a number split in parts.
SPLIT_BYTES = 2 * PARTS


@dataclass(frozen=True)
class MatrixTiles:
    """Blocks of a product.

    Parameters
    ----------
    rows, terms, columns : int
        Of the product; `terms` is a multiple of 16. Terms and columns are filled up with zeros to whole blocks.
    row_blocks : int
        Blocks of rows that stay in a core's cache while all columns pass.
    depth_blocks : int
        Blocks of the sum that are computed at a time.
    by_rows : bool
        Whether the cores share the rows, not the columns.
    seconds : float
        Predicted time.
    taps : tuple of (int, int)
        Of a convolution: of each dimension of its windows, the number of places and the rows of the left operand from
        one to the next. A row of the result is the sum of the products of as many rows, each with `terms` terms.

    Examples
    --------
    >>> tiles = MatrixTiles(197, 768, 3072, 7, 24, False, 1e-3)
    >>> tiles.blocks, tiles.last_rows, str(tiles)
    ((7, 96, 24), 5, 'cpu.matrix rows=224 k=768 by columns')
    """

    rows: int
    terms: int
    columns: int
    row_blocks: int
    depth_blocks: int
    by_rows: bool
    seconds: float
    taps: tuple[tuple[int, int], ...] = ()

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Blocks of the rows, the columns, the sum."""
        return ceil(self.rows / BLOCK), ceil(self.columns / BLOCK), self.places * self.deep

    @property
    def places(self) -> int:
        """Rows of the left operand whose products are added."""
        return prod(count for count, _ in self.taps)

    @property
    def deep(self) -> int:
        """Blocks of the terms of one place."""
        return ceil(self.terms / DEPTH)

    @property
    def beyond(self) -> int:
        """Rows of the left operand behind those of the result."""
        return _beyond(self.taps)

    @property
    def form(self) -> tuple[int, bool]:
        """Choices that hold for any number of rows."""
        return self.depth_blocks, self.by_rows

    @property
    def chunks(self) -> int:
        """Parts of the sum, computed one after the other."""
        return self.blocks[2] // self.depth_blocks

    @property
    def last_rows(self) -> int:
        """Rows of the last block."""
        return (self.rows - 1) % BLOCK + 1

    def __str__(self) -> str:
        shared = "rows" if self.by_rows else "columns"
        return f"cpu.matrix rows={self.row_blocks * BLOCK} k={self.depth_blocks * DEPTH} by {shared}"


def _beyond(taps: tuple[tuple[int, int], ...]) -> int:
    return sum((count - 1) * step for count, step in taps)


def matrix_tiles(
    rows: int,
    terms: int,
    columns: int,
    device: DeviceSpec,
    moved_bytes: int = 0,
    taps: tuple[tuple[int, int], ...] = (),
    slots: float = 0.0,
    form: tuple[int, bool] | None = None,
) -> MatrixTiles | None:
    """Return the blocks of a product of float32 by a constant; None without a matrix unit, or if they do not fit.

    Parameters
    ----------
    rows, terms, columns : int
        (rows x terms) by (terms x columns).
    moved_bytes : int
        Of the tensors that are read and written beside the constant.
    taps : tuple of (int, int)
        As of `MatrixTiles`.
    slots : float
        Vector instruction slots of what follows the product.
    form : (int, bool), optional
        `MatrixTiles.form`, where it is given; by default the fastest one.

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> matrix_tiles(128, 768, 768, device_for_target("llvm -mcpu=haswell -num-cores=2")) is None
    True
    """
    peak = device.peak(DTYPE, tensor=True)
    if not peak or terms % ROWS or not device.has("l2"):
        return None
    cache = device.level("l2").capacity_bytes
    height, width, deep = ceil(rows / BLOCK), ceil(columns / BLOCK), ceil(terms / DEPTH)
    depth, beyond = deep * prod(count for count, _ in taps), _beyond(taps)
    block = BLOCK * DEPTH * SPLIT_BYTES  # bytes of a block of either operand

    def blocks_kept(chunk: int) -> int:
        """Blocks of rows whose parts stay beside a panel of the constant; those of windows have all their terms."""
        if not taps:
            return int(cache * MATRIX_CACHE / (chunk * block)) - 1
        return int((cache * MATRIX_CACHE / block - chunk) / deep) - ceil(beyond / BLOCK)

    kept = {n: min(height, blocks_kept(n)) for n in range(1, depth + 1) if depth % n == 0}
    padded, units, cycle = ROWS * ceil(rows / ROWS), device.units, 1 / (device.vector_width * device.clock_ghz)
    summed, across = DEPTH * depth, BLOCK * width
    splitting = (rows + beyond) * terms * SPLIT_CYCLES * cycle / units
    sums, constant = 4 * rows * across, SPLIT_BYTES * summed * across
    near = "l2" if sums <= units * cache * CACHE_SHARE else device.far.name
    passed = 2 * sums / device.bandwidth(near)  # nanoseconds to read and write sums
    common = next(level for level in reversed(device.levels) if level.scope == "device")
    following = SUM_CYCLES + slots / of_bytes(device, 4).fma

    def shared(chunk: int, by_rows: bool) -> MatrixTiles:
        """The product with its rows or its columns shared by the cores; the busiest one tells its time."""
        own_rows = min(padded, BLOCK * ceil(height / units)) if by_rows else padded
        own_columns = across if by_rows else BLOCK * ceil(width / units)
        products = 2.0 * own_rows * summed * own_columns * len(PAIRS) / (peak / units * MATRIX_SHARE)
        # The constant passes once for all rows that stay in the cache, first from memory: a network comes to it anew.
        passes, readers = ceil(height / kept[chunk]), units if by_rows else 1
        again = (passes - 1) * readers * constant / holding(constant * readers / units, device).bandwidth_gbps
        again += (readers - 1) * constant / common.bandwidth_gbps
        moved = constant / device.far.bandwidth_gbps + again
        nanoseconds = max(products, moved) + MATRIX_EXPOSED * min(products, moved) + splitting
        parts = 0 if by_rows else SPLIT_BYTES * (rows + beyond) * DEPTH * deep
        level = holding((moved_bytes + parts) / units, device)
        if level.scope == "device":  # parts are written by one core each, and read by all
            nanoseconds += (moved_bytes + (1 + units) * parts) / level.bandwidth_gbps
        nanoseconds += passed * (depth // chunk - 1) + own_rows * own_columns * following * cycle
        nanoseconds += parts * (1 - 1 / units) / PASSED_GBPS
        seconds = nanoseconds * 1e-9 + (1 if by_rows else 2) * device.launch_overhead_us * 1e-6
        return MatrixTiles(rows, terms, columns, kept[chunk], chunk, by_rows, seconds, taps)

    forms = [(chunk, by_rows) for chunk in reversed(kept) if kept[chunk] > 0 for by_rows in (False, True)]
    ways = [shared(*one) for one in forms if form is None or one == form]
    return min(ways, key=lambda tiles: tiles.seconds, default=None)
