"""Rewrites of flattened functions for CPUs, one mechanism a file: what TVM flattens slowly, computed as planned.

Results stay the same, and schedules and records do not change. Each rewrite is a function of (PrimFunc, dialect) of
either TVM line. ``relay/rewrites.py`` and ``relax/rewrites.py`` have the lines' builds call them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from ..dialect import dialect_here
from ..flat import remembering
from .merged_lanes import with_merged_lanes
from .neighbouring_lanes import with_neighbouring_lanes
from .prefetch_panels import with_prefetch
from .prefetch_residuals import with_residuals_asked
from .prefetch_rows import with_rows_asked
from .reciprocals import with_reciprocals
from .stack_tiles import with_stack_tiles
from .turned_tiles import with_turned_tiles
from .unrolled_sums import with_unrolled_sums
from .vector_math import with_vector_math
from .whole_vectors import with_edge_vectors
from .wide_indices import with_wide_indices

#: Name -> rewrite, in the order in which they are made.
REWRITES: dict[str, Callable[..., Any]] = {
    "neighbouring_lanes": with_neighbouring_lanes,
    "edge_vectors": with_edge_vectors,
    "turned_tiles": with_turned_tiles,
    "residuals": with_residuals_asked,
    "rows": with_rows_asked,
    "prefetch": with_prefetch,  # whose addresses the one before would take for reads
    "unrolled_sums": with_unrolled_sums,
    "stack_tiles": with_stack_tiles,
    "wide_indices": with_wide_indices,
    "merged_lanes": with_merged_lanes,
    "reciprocals": with_reciprocals,
    "fast_math": partial(with_vector_math, fast=True),  # leaves nothing to the next
    "vector_math": with_vector_math,
}
#: Name -> rewrites that are made where that is.
WITH = {
    "vector_math": ("merged_lanes", "reciprocals"), "prefetch": ("residuals", "rows"),
    "stack_tiles": ("unrolled_sums",), "edge_vectors": ("turned_tiles",),
}  # fmt: skip


def rewritten(func: Any, names: Collection[str]) -> Any:
    """Return a flattened PrimFunc with the rewrites of these names made, and those that belong to them."""
    names = {*names, *(more for name in names for more in WITH.get(name, ()))}
    with remembering():
        for name, rewrite in REWRITES.items():
            if name in names:
                func = rewrite(func, dialect_here())
    return func
