"""What keeps vectors whole that TVM takes apart, in order: over edges, into padding, behind choices, strided."""

from __future__ import annotations

from .edge_vectors import with_whole_vectors
from .padded_vectors import with_padded_vectors
from .peeled import with_peeled_loops
from .strided import with_strided_vectors

#: Functions of (flattened statement, dialect) -> statement, or None where there is nothing to do; names may stand
#: twice in what they make.
REWRITINGS = (with_whole_vectors, with_padded_vectors, with_peeled_loops, with_strided_vectors)
