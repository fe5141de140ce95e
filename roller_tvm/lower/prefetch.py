"""Where a kernel should ask for its weights ahead of time, while it computes with those that it has.

A network comes to each of its kernels with weights that are in no cache: other kernels' went through since. A kernel
that reads them when it needs them waits for memory, then computes from its caches with memory idle. Its loops tell what
it will read: a panel of weights, the same one for each row of register tiles, and then the next panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

#: Trips of a loop that a thread has in a row, from which on the panel that follows is likely its own.
SEVERAL = 4


@dataclass(frozen=True)
class Around:
    """A loop around an access.

    Parameters
    ----------
    extent : int
    stride : int
        Elements that the access moves by at each trip.
    shared : bool
        Its trips are of several threads.
    """

    extent: int
    stride: int
    shared: bool = False


@dataclass(frozen=True)
class Ahead:
    """What to ask for at each trip of the innermost loop.

    Parameters
    ----------
    strides : tuple of int
        Elements that it moves by at each trip of each loop, in place of the access's own.
    shift : int
        Elements from where the access begins.
    lines : int
        How many lines, one after the other.
    """

    strides: tuple[int, ...]
    shift: int
    lines: int


def next_panel(loops: Sequence[Around], width: int, line: int, threads: int = 1) -> Ahead | None:
    """The panel after the one that the inner loops go through, shared out over all the passes through this one.

    Parameters
    ----------
    loops : sequence of Around
        Outermost first, each of more than one trip.
    width : int
        Neighbouring elements that the innermost loop's body reads.
    line : int
        Elements of a cache line.
    threads : int
        A loop that they share out has the next panel at its next trip where each of them has several in a row.

    Returns
    -------
    Ahead or None
        None where a panel is read once (it streams through: nothing is to be gained), where none follows, or where it
        is not one piece of memory.

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
