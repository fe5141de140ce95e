"""Prefetches of the next weights, while a kernel computes with the current ones.

When a network calls a kernel, its weights are in no cache: other kernels' weights have passed through since. A kernel
that reads them when it needs them waits for memory, then computes from its caches while memory is idle: in ResNet-50 a
convolution with 9 MB of weights takes 1.5 times as long as with its weights in the cache. Its loops tell the next
reads: a panel of weights, the same one for each row of register tiles, and then the next panel. Passes of an open
number ask for equal parts of it. Of chunks that threads share, panels and rows are digits of one loop (`loop_digits`).

A product of few rows reads its weights once, in order: they stream through. An Intel core's own prefetchers start anew
at each page and keep few lines under way: 7 x 4096 x 4096 takes 3.3 ms where memory delivers the weights in 1.2 ms.
Such a stream asks for elements at a fixed distance ahead; cores with better prefetchers of their own (`Simd.streams`)
are not asked. What several loops of a kernel read in turn, the rows of a normalisation, is not asked for (1,500 x 512
would take 51 us for 42).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from ...device.known import estimate, simd_of_mcpu
from ...te.numbering import PARALLEL, dtype_of_node
from ..dialect import SECOND_LEVEL, Dialect
from ..flat import (
    Memory,
    Sum,
    access_of,
    kind_of,
    loads_of,
    names_of,
    nests,
    number_of,
    statements,
    sum_of,
)
from .loop_blocks import BLOCK_TRIPS, in_blocks
from .loop_digits import LoopAxis, axes_of

#: A thread's consecutive trips of a loop from which on the next panel is likely its own.
SEVERAL = 2
#: Shortest run of a stream, of the distance of its prefetches.
LONG_RUN = 4
#: Fewest passes through a panel in which all of the next one is asked for, if their number is open: a trip of fewer
#: passes would ask for more lines.
ROUNDS = 3
#: Distance of prefetches in a stream, and the bytes that no core's caches keep of it: read once, read again.
STREAM = ("prefetch_distance", "l2_capacity", "l2_largest")
_BITS_OF_A_BYTE = 8


@dataclass(frozen=True)
class Around:
    """A loop around an access."""

    extent: int
    stride: int  # elements by which the access moves at each trip
    shared: bool = False  # true if several threads share the trips


@dataclass(frozen=True)
class Ahead:
    """The prefetches of each trip of a loop, most often the innermost."""

    strides: tuple[int, ...]  # elements by which the prefetch moves at each trip of each loop, down to that loop
    shift: int  # elements from the start of the access to the start of the prefetch
    lines: int  # number of consecutive cache lines
    every: int = 1  # trips of that loop from one prefetch to the next


def next_panel(
    loops: Sequence[Around], width: int, line: int, threads: int = 1, at_once: int = 0
) -> Ahead | None:
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
        Threads that share a loop, or several as one. The next trip has the next panel if each thread has several in a
        row.
    at_once : int
        Most lines for which trips of the innermost loop, or one of an outer loop, ask together: few instructions among
        the multiply-adds. By default each trip asks for its own.

    Returns
    -------
    Ahead or None
        None if a panel is read only once (see `further_on`), if none follows, or if it is not contiguous in memory.

    Examples
    --------
    A panel of 512 x 32 weights is read for each of 7 rows, and 16 panels follow each other. A trip asks for a 7th of
    what it reads, rounded up:

    >>> next_panel([Around(16, 16384), Around(7, 0), Around(512, 32)], 32, 16)
    Ahead(strides=(16384, 2560, 5), shift=16384, lines=1, every=1)
    >>> next_panel([Around(16, 16384), Around(7, 0), Around(512, 32)], 32, 16, at_once=12)  # four trips together
    Ahead(strides=(16384, 2560, 5), shift=16384, lines=2, every=4)
    >>> next_panel([Around(16, 16384), Around(512, 32)], 32, 16) is None
    True
    >>> next_panel([Around(16, 4096), Around(32, 0), Around(256, 16)], 16, 16, at_once=12)  # a tile, for 8 lines
    Ahead(strides=(4096, 128), shift=4096, lines=8, every=1)
    """
    inner = len(loops)
    while inner and loops[inner - 1].stride and not loops[inner - 1].shared:
        inner -= 1
    rows = inner
    while rows and not loops[rows - 1].stride:
        rows -= 1
    if not 0 < rows < inner < len(loops):
        return None
    panel, outer = loops[inner:], loops[rows - 1]
    size = prod(loop.extent for loop in panel) * width
    span = sum((loop.extent - 1) * loop.stride for loop in panel) + width
    if outer.stride != size or span != size or any(loop.stride < 0 for loop in panel):
        return None
    if outer.shared and outer.extent < SEVERAL * threads or loops[rows].shared and not outer.shared:
        return None
    last = len(loops)
    step = ceil(size / prod(loop.extent for loop in loops[rows:]))
    while at_once and step < line and last > rows + 1:
        more = ceil(size / line / prod(loop.extent for loop in loops[rows : last - 1])) * line
        if more > at_once * line:
            break
        last, step = last - 1, more
    strides = [loop.stride for loop in loops[:rows]]
    strides += [step * prod(loop.extent for loop in loops[n + 1 : last]) for n in range(rows, last)]
    every = max(BLOCK_TRIPS[0], power_of_two(line // step)) if at_once and last == len(loops) else 1
    return Ahead(tuple(strides), size, ceil(every * step / line), every)


def power_of_two(most: int) -> int:
    """Return the largest power of two up to a number, at least 1.

    Examples
    --------
    >>> power_of_two(16), power_of_two(7), power_of_two(0)
    (16, 4, 1)
    """
    return 1 << max(0, most.bit_length() - 1)


def further_on(
    loops: Sequence[Around], width: int, line: int, distance: int, least: int, again: int, threads: int = 1
) -> Ahead | None:
    """Return the prefetch of a tensor that streams through, `distance` elements ahead of its reads.

    Parameters
    ----------
    loops, width, line
        As of `next_panel`.
    distance : int
        Elements, a multiple of a line.
    least, again : int
        Fewest elements of a stream, each read in order: more than a core's caches keep. The second number is for a
        stream that comes again, at the trips of an outer loop: from a cache, a prefetch takes as long as a read.
    threads : int
        Threads that share a loop.

    Returns
    -------
    Ahead or None
        None if fewer elements are read once, if a trip reads less than a line, or if too few trips of the inner
        loops read neighbours.

    Examples
    --------
    >>> further_on([Around(16, 16384), Around(512, 32)], 32, 16, distance=1024, least=65536, again=524288)
    Ahead(strides=(16384, 32), shift=1024, lines=2, every=1)
    >>> further_on([Around(7, 0), Around(16, 16384), Around(512, 32)], 32, 16, 1024, 65536, 524288) is None  # 7 times
    True
    """
    once = in_order = width
    for loop in reversed(loops):
        if not loop.stride:
            least = again if loop.extent > (threads if loop.shared else 1) else least
            break
        in_order = in_order * loop.extent if loop.stride == in_order == once else in_order
        once *= loop.extent
    if width < line or once < least or in_order < LONG_RUN * distance:
        return None
    return Ahead(tuple(loop.stride for loop in loops), distance, width // line)


@dataclass(frozen=True)
class Reads:
    """Neighbouring vectors of one tensor that the body of an innermost loop reads."""

    buffer: Any
    start: Sum  # index of the first element
    width: int  # number of elements
    loops: tuple[Any, ...]  # loops around the reads, outermost first

    def axes(self, tir: Any) -> list[list[LoopAxis] | None]:
        """Return the axes of each loop, None for a loop whose digits the reads do not tell."""
        return [axes_of(loop, self.start, tir) for loop in self.loops]

    def all_elements(self, axes: Sequence[Sequence[LoopAxis] | None]) -> bool:
        """Return whether the loops, of these axes, read as many elements as the tensor has."""
        trips = (axis.extent or 0 for own in axes for axis in own or () if axis.stride)
        return self.width * prod(trips) == elements_of(self.buffer)


def vector_reads(body: Any) -> Iterator[Reads]:
    """Yield the whole vectors that the innermost loops of a flattened function read, one tensor at a time."""
    named = names_of(body)
    for loops, innermost in nests(body, ()):
        variables = {hash(loop.loop_var) for loop in loops if int(loop.kind) != PARALLEL}
        found: dict[int, tuple[Any, list[tuple[Sum, int]]]] = {}
        usable = True
        for load in loads_of(innermost):
            buffer, indices = access_of(load)
            if len(indices) != 1 or kind_of(indices[0]) != "Ramp" or number_of(indices[0].stride) != 1:
                continue
            start, lanes = sum_of(indices[0].base, named, variables), number_of(indices[0].lanes)
            if start is None or lanes is None:
                usable = False
                continue
            found.setdefault(hash(buffer), (buffer, []))[1].append((start, lanes))
        if not usable:  # an index that is no sum: what moves with the loops is not known
            continue
        for buffer, parts in found.values():
            first = min(parts, key=lambda part: part[0].number)[0]
            least = [start.plus(first, -1) for start, _ in parts]
            if not all(other.is_number for other in least):
                continue  # they lie apart in a way that depends on the loops
            ends = sorted({(o.number, o.number + lanes) for o, (_, lanes) in zip(least, parts, strict=True)})
            if all(ends[n][1] == ends[n + 1][0] for n in range(len(ends) - 1)):
                yield Reads(buffer, first, ends[-1][1], loops)


def with_prefetch(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc that prefetches the next panel of the tensors it only reads."""
    tir, memory = dialect.tir, Memory.of_body(func.body)
    written = {memory.of(node.buffer) for node in statements(func.body) if kind_of(node) == "BufferStore"}
    target = (func.attrs or {}).get("target")
    threads = int((target.attrs.get("num-cores") if target is not None else 0) or os.cpu_count() or 1)
    simd = simd_of_mcpu(str(target.attrs.get("mcpu") or "")) if target is not None else None
    streams = simd is None or not simd.streams
    asked: dict[int, list[Asks]] = {}  # by the hash of a loop's variable
    found = [(reads, reads.axes(tir)) for reads in vector_reads(func.body)]
    whole = Counter(memory.of(reads.buffer) for reads, all_axes in found if reads.all_elements(all_axes))
    for reads, all_axes in found:
        parts = [own for loop, own in zip(reads.loops, all_axes, strict=True) if number_of(loop.extent) != 1]
        if None in parts:
            continue
        axes = [axis for part in parts for axis in part or ()]
        around = [Around(axis.extent or ROUNDS, axis.stride, int(axis.loop.kind) == PARALLEL) for axis in axes]
        open_loops = [axis.extent is None for axis in axes]
        if memory.of(reads.buffer) in written or any(a.stride for a, o in zip(around, open_loops, strict=True) if o):
            continue
        bytes_of, line = element_bytes(reads.buffer), line_elements(reads.buffer)
        distance, least, again = (int(estimate(key)) // bytes_of for key in STREAM)
        at_once = 0 if any(open_loops) else int(estimate("in_flight")) // int(estimate("line"))
        ahead = next_panel(around, reads.width, line, threads, at_once)
        if ahead is None and streams and whole[memory.of(reads.buffer)] < 2:
            ahead = further_on(around, reads.width, line, distance, least, again, threads)
        if ahead is None:
            continue
        passes = (n for n, is_open in enumerate(open_loops) if is_open and ahead.strides[n])
        opened = next(passes, None)  # the loop of an open number of passes through the panel
        if opened is not None and any(around[n].stride != stride for n, stride in enumerate(ahead.strides[:opened])):
            continue  # other passes through the panel stand around
        passed, axes = Sum(0), axes[: len(ahead.strides)]
        inside = {hash(loop.loop_var) for loop in reads.loops} - {hash(axis.loop.loop_var) for axis in axes}
        index = reads.start.outside(inside).plus(Sum(ahead.shift))
        for n, (axis, stride) in enumerate(zip(axes, ahead.strides, strict=True)):
            own = opened is not None and n >= opened
            index.add(axis.place(), (0 if own else stride) - axis.stride)
            if own and n != opened:
                passed = passed.plus(axis.place(), stride // ahead.strides[-1])
        further = None
        if opened is not None:
            inner = [a.extent for a in around[opened + 1 :]]
            further = _in_all_passes(axes[opened].loop, passed.expression(tir), ahead.shift, prod(inner), tir)
        for n in range(ahead.lines):
            place = index.plus(Sum(n * line)).expression(tir)
            ask = dialect.asking(reads.buffer, place if further is None else place + further, SECOND_LEVEL)
            asked.setdefault(hash(axes[-1].loop.loop_var), []).append(Asks(ask, ahead.every))
    return with_asked(func, asked, dialect)


@dataclass(frozen=True)
class Asks:
    """A statement in a loop, and the trips from one time to the next, a power of two."""

    statement: Any
    every: int = 1


def with_asked(func: Any, asked: Mapping[int, list[Asks]], dialect: Dialect) -> Any:
    """Return a function with statements in loops, by the hash of a loop's variable.

    Trips of statements that stand there now and then become blocks: a check in each would stand among multiply-adds.
    """
    if not asked:
        return func

    def asking(loop: Any) -> Any | None:
        asks = asked.get(hash(loop.loop_var))
        return None if asks is None else in_blocks(loop, [(ask.statement, ask.every) for ask in asks], dialect)

    return func.with_body(dialect.with_loops(func.body, asking))


def _in_all_passes(loop: Any, passed: Any, size: int, trips: int, tir: Any) -> Any:
    """Return how far a trip asks into the next panel, of which all passes of an open number ask for equal parts.

    Parameters
    ----------
    loop : For
        Over the passes.
    passed : Expr
        Trips of the inner loops before this one.
    size : int
        Elements of a panel.
    trips : int
        Of the inner loops in a pass.
    tir : module
    """

    def const(value: int) -> Any:
        return tir.const(value, dtype_of_node(loop.loop_var))

    each = const(ceil(size / trips))  # elements that a trip asks for in a single pass
    passes = tir.max(loop.extent, const(ROUNDS))
    step = tir.floordiv(each + passes - 1, passes)
    last = tir.floordiv(each + step - 1, step) - 1  # later passes ask for nothing new
    return step * (tir.min(loop.loop_var, last) * const(trips) + passed)


def elements_of(buffer: Any) -> int:
    """Return the elements of a buffer; 0 if its extents are not known."""
    return prod(number_of(extent) or 0 for extent in buffer.shape)


def element_bytes(buffer: Any) -> int:
    """Return the bytes of an element of a buffer, at least one."""
    import tvm

    return max(1, tvm.DataType(str(buffer.dtype)).bits // _BITS_OF_A_BYTE)


def line_elements(buffer: Any) -> int:
    """Return the elements of a buffer in a cache line."""
    return int(estimate("line")) // element_bytes(buffer)
