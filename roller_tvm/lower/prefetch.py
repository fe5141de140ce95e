"""When and where a kernel should prefetch its weights, while it computes with those that it has.

When a network calls a kernel, its weights are in no cache: other kernels' weights have passed through since. A kernel
that reads them when it needs them waits for memory, then computes from its caches while memory is idle. Its loops tell
the next reads: a panel of weights, the same one for each row of register tiles, and then the next panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

#: A thread's consecutive trips of a loop from which on the next panel is likely its own.
SEVERAL = 4


@dataclass(frozen=True)
class Around:
    """A loop around an access.

    Parameters
    ----------
    extent : int
    stride : int
        Elements by which the access moves at each trip.
    shared : bool
        True if several threads share the trips.
    """

    extent: int
    stride: int
    shared: bool = False


@dataclass(frozen=True)
class Ahead:
    """The prefetches of each trip of the innermost loop.

    Parameters
    ----------
    strides : tuple of int
        Elements by which the prefetch moves at each trip of each loop.
    shift : int
        Elements from the start of the access to the start of the prefetch.
    lines : int
        Number of consecutive cache lines.
    """

    strides: tuple[int, ...]
    shift: int
    lines: int


def next_panel(loops: Sequence[Around], width: int, line: int, threads: int = 1) -> Ahead | None:
    """Return the prefetch of the next panel, spread over all the passes through the current one.

    Parameters
    ----------
    loops : sequence of Around
        Outermost first, each of more than one trip.
    width : int
        Neighbouring elements that the innermost loop's body reads.
    line : int
        Elements of a cache line.
    threads : int
        Threads that share a loop. Its next trip has the next panel if each thread has several trips in a row.

    Returns
    -------
    Ahead or None
        None if a panel is read only once (it streams through, so nothing can be gained), if none follows, or if it
        is not contiguous in memory.

    Examples
    --------
    A panel of 512 x 32 weights is read for each of 7 rows, and 16 panels follow each other. A trip asks for a 7th of
    what it reads, rounded up:

    >>> next_panel([Around(16, 16384), Around(7, 0), Around(512, 32)], 32, 16)
    Ahead(strides=(16384, 2560, 5), shift=16384, lines=1)
    >>> next_panel([Around(16, 16384), Around(512, 32)], 32, 16) is None
    True
    """
    inner = len(loops)
    while inner and loops[inner - 1].stride and not loops[inner - 1].shared:
        inner -= 1
    rows = inner
    while rows and not loops[rows - 1].stride and not loops[rows - 1].shared:
        rows -= 1
    if not 0 < rows < inner < len(loops):
        return None
    panel, outer = loops[inner:], loops[rows - 1]
    size = prod(loop.extent for loop in panel) * width
    span = sum((loop.extent - 1) * loop.stride for loop in panel) + width
    if outer.stride != size or span != size or any(loop.stride < 0 for loop in panel):
        return None
    if outer.shared and outer.extent < SEVERAL * threads:
        return None
    step = ceil(size / prod(loop.extent for loop in loops[rows:]))
    strides = [loop.stride for loop in loops[:rows]]
    strides += [step * prod(loop.extent for loop in loops[n + 1 :]) for n in range(rows, len(loops))]
    return Ahead(tuple(strides), size, ceil(step / line))
