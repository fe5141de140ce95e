"""How Roller has TVM generate code for CPUs: VectorMath and WideIndices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .vector_math import VectorMath
from .wide_indices import WideIndices


@contextmanager
def cpu_code(vector_math: bool = True, wide_indices: bool = True) -> Iterator[None]:
    """Kernels that are built for LLVM in this context are built as ``build`` does; with both False, as TVM does.

    Examples
    --------
    >>> with cpu_code():  # doctest: +SKIP
    ...     module = tvm.build(schedule, args, "llvm")
    """
    with VectorMath(vector_math), WideIndices(wide_indices):
        yield
