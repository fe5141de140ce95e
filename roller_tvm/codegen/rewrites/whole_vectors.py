"""Whole vectors where TVM would split them: edges, padding, choices, strides; initial values out of their way first.

TVM computes a vector that may cross the edge of an axis one element at a time (521 columns in vectors of 16, for
instance): 20 times slower than whole vectors. The same goes for vectors that reach into padding, and for vectors of
stride 2. Some of Roller's plans rely on this: built without it, they are slow.
"""

from __future__ import annotations

from typing import Any

from ..dialect import Dialect
from .edge_vectors import with_whole_vectors
from .hoisted_choices import with_hoisted_choices
from .initial_values import with_initial_values_first
from .padded_vectors import with_padded_vectors
from .peeled_loops import with_peeled_loops
from .strided_vectors import with_strided_vectors

#: Functions of (flattened statement, dialect) -> statement, or None if there is nothing to do. Their results may bind
#: a name twice.
REWRITINGS = (
    with_whole_vectors, with_padded_vectors, with_peeled_loops, with_strided_vectors, with_hoisted_choices,
)  # fmt: skip


def with_edge_vectors(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc that checks tiles instead of lanes."""
    first = (with_initial_values_first,) if dialect.checks_first_trip else ()
    for rewritten in (*first, *REWRITINGS):
        body = rewritten(func.body, dialect)
        if body is not None:
            func = dialect.with_body(func, body)
    return func
