"""Rewritings that keep whole vectors which TVM would split, in order: edges, padding, choices, strides."""

from __future__ import annotations

from .edge_vectors import with_whole_vectors
from .padded_vectors import with_padded_vectors
from .peeled import with_peeled_loops
from .strided import with_strided_vectors

#: Functions of (flattened statement, dialect) -> statement, or None if there is nothing to do. Their results may bind
#: a name twice.
REWRITINGS = (with_whole_vectors, with_padded_vectors, with_peeled_loops, with_strided_vectors)
