"""Construction of products with constant matrices on a GPU (the transforms of Winograd's algorithm).

A thread computes whole tiles of the constant matrices' axes, everything unrolled. TVM then inserts the constants'
values and drops the products with 0 and 1.
"""

from __future__ import annotations

from math import ceil, prod

from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry
from ..model.gpu_unrolled import own_tile, unrolled_estimate, unrolled_registers
from ..model.registers import register_cap
from .align import capacity
from .gpu_direct import linear_tile
from .program import RProgram
from .search import Search

#: Most statements of a thread, all unrolled: two 6 x 6 matrices (Winograd's F(4, 3)) have 1296.
STATEMENTS = 2048


def multiplies_constants(geometry: Geometry) -> bool:
    """Return whether the nest reduces a product with operands that are computed from their indices alone."""
    return bool(geometry.reduce) and any(op.computed for op in geometry.operands)


def construct_unrolled(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe gpu.unrolled: threads per block."""
    g, device = search.geometry, search.device
    own = own_tile(g)
    rest = [i for i in g.spatial if own[i] < g.extents[i] or g.extents[i] == 1]
    if not rest or search.reject(capacity("unrolled statements", prod(own), STATEMENTS), "gpu.unrolled"):
        return []
    count = prod(g.extents[i] for i in rest)
    found: list[tuple[RProgram, ProgramEstimate]] = []
    threads, most = device.vector_width, device.limits.max_threads_per_block or 1024
    while threads <= most and (threads == device.vector_width or threads < 2 * count):
        search.considered += 1
        near = linear_tile(g, threads, rest)
        block = tuple(near[i] if i in rest else e for i, e in enumerate(own))
        limit = register_cap(device, threads)
        full = capacity("registers", unrolled_registers(g), limit or STATEMENTS, "use fewer threads")
        if search.reject(full, f"{threads} threads"):
            break
        estimate = unrolled_estimate(g, device, block, threads)
        if estimate is not None:
            tiles = (search.rtile("block", block), search.rtile("register", own))
            choices = (("threads", threads), ("blocks", ceil(count / threads)))
            found.append((search.program("gpu.unrolled", tiles, choices), estimate))
        threads *= 2
    return sorted(found, key=lambda c: c[1].seconds)[: 2 * top]
