"""The rewrites of CPU code that Roller adds: VectorMath, WideIndices, StackTiles, PrefetchPanels and EdgeVectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from .edge_vectors import EdgeVectors
from .prefetch import PrefetchPanels
from .stack_tiles import StackTiles
from .switch import Switch
from .vector_math import VectorMath
from .wide_indices import WideIndices


def ways_of(
    vector_math: bool = True, wide_indices: bool = True, stack_tiles: bool = True, prefetch: bool = True,
    edge_vectors: bool = True,
) -> tuple[Switch, ...]:  # fmt: skip
    """Return one context per rewrite, on or off; the last is the first to rewrite a function."""
    return (
        VectorMath(vector_math), WideIndices(wide_indices), StackTiles(stack_tiles), PrefetchPanels(prefetch),
        EdgeVectors(edge_vectors),
    )  # fmt: skip


@contextmanager
def cpu_code(**ways: bool) -> Iterator[None]:
    """Open a context in which kernels for LLVM are built with Roller's rewrites, or with some of them off.

    Parameters
    ----------
    **ways
        See `ways_of`.

    Examples
    --------
    >>> with cpu_code():  # doctest: +SKIP
    ...     module = tvm.build(schedule, args, "llvm")
    """
    with ExitStack() as stack:
        for way in ways_of(**ways):
            stack.enter_context(way)
        yield


def as_tvm() -> AbstractContextManager[None]:
    """Return a context in which kernels for LLVM are built without Roller's rewrites, even inside of another context.

    Examples
    --------
    >>> with as_tvm():  # doctest: +SKIP
    ...     module = tvm.build(schedule, args, "llvm")
    """
    return cpu_code(vector_math=False, wide_indices=False, stack_tiles=False, prefetch=False, edge_vectors=False)
