"""Caches of a CPU: the bytes that loops over tiles move through them, lines that share a set, the cost of copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from ..device import DeviceSpec, MemoryLevel
from ..roller.candidates import Column, Tiles
from .cpu_constants import (
    BEFORE_FOUND,
    CACHE_SHARE,
    CROWDED,
    EVICTED,
    PAGES,
    RUN_START,
    RUNS_FOLLOWED,
    STORED,
)
from .cpu_rates import CpuRates, of_bytes
from .geometry import Geometry, Operand
from .neighbours import TURNED_BYTES, turned_slots

#: Times that a tensor that leaves the core's caches is moved: read before it is written, written, read.
PASSES = 3
#: Bytes of an element, of which the rates of caches do not depend.
ELEMENT = 4


def vectors_along(geometry: Geometry, operand: Operand) -> bool:
    """Return whether the nest reads vectors of an operand directly from memory: contiguous, unguarded, not packed."""
    last = geometry.vector_axis
    return not (last is None or operand.constant or operand.guarded or operand.stride_of(last) != 1)


def step_bytes(geometry: Geometry, operand: Operand) -> int:
    """Return the bytes between the reads of neighbouring steps of the reduction, the smallest; 0 if it has no steps."""
    steps = [operand.stride_of(i) for i in geometry.reduce if i in operand.axes and geometry.extents[i] > 1]
    return min(steps, default=0) * operand.element_bytes


def touched_bytes(geometry: Geometry, operand: Operand, line: int) -> int:
    """Return the bytes of an operand that a nest reads, of lines of `line` bytes: a slice is a part of its tensor.

    Rows that are looked up are at most one a point.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> transpose = Geometry.of(operator("transpose", shape=(64, 48), perm=(1, 0)), "transpose")
    >>> touched_bytes(transpose, transpose.operands[0], 64) == 64 * 48 * 4
    True
    """
    places = min(prod(operand.boxes(geometry.extents)), geometry.stage.points)
    steps = [step for axis in operand.axes if geometry.extents[axis] > 1 and (step := operand.stride_of(axis))]
    apart = min(steps, default=line) * operand.element_bytes
    return min(operand.source_bytes, places * min(apart, line) * len(operand.sources))


def staying(size: Column, capacity: float) -> Column:
    """Return the share of `size` bytes that a cache keeps until a kernel reads them again.

    Lines that are read in turns evict one another little by little: of twice what a nest can count on, none stays
    (measured on an Emerald Rapids, 2 MB: reading 1.5 MB again and again is as fast as 64 kB, 2 MB as if 0.65 of it
    stayed, 3 MB as if nothing).

    Examples
    --------
    >>> [float(staying(size, 100)) for size in (100, 150, 250)]
    [1.0, 0.5, 0.0]
    """
    return np.minimum(1.0, np.maximum(0.0, 2 - size / capacity))


def stream_cycles(moved: float, written: float, rates: CpuRates, device: DeviceSpec) -> tuple[str, float]:
    """Return where most of the bytes are that a nest moves once, and the cycles of all of them at a core's rate.

    Parameters
    ----------
    written : float
        Bytes, of those moved, that are written.
    """
    found, cycles, most, where = 0.0, 0.0, 0.0, device.far.name
    for at, (name, capacity, rate) in enumerate([*rates.caches, (device.far.name, float("inf"), rates.far)]):
        share = staying(moved / device.units, capacity) - found
        cycles += share * (moved + (written * (STORED - 1) if at == 1 else 0)) / rate
        found, (most, where) = found + share, max((most, where), (share, name))
    return where, cycles


def may_scatter(geometry: Geometry, operand: Operand, rates: CpuRates) -> bool:
    """Return whether each reduction step reads its vectors from other lines, so that copying them may pay off."""
    return vectors_along(geometry, operand) and step_bytes(geometry, operand) > rates.line


def scattered(geometry: Geometry, operand: Operand, rates: CpuRates) -> bool:
    """Return whether each step of the reduction reads its vectors from another page."""
    return vectors_along(geometry, operand) and step_bytes(geometry, operand) >= rates.page_bytes


def conflicts(geometry: Geometry, tile: Sequence[int], rates: CpuRates) -> int:
    """Return how many elements of a register tile, read one by one, evict each other from the nearest cache.

    Lines whose addresses differ by a multiple of one way's bytes share a set, and a set holds only as many as the
    cache has ways (measured: 1024^3 product, 16 rows of a page each, half the speed of 8).
    """
    found = 0
    for op in geometry.operands:
        mine = [i for i in geometry.spatial if i in op.axes and tile[i] > 1]
        if geometry.vector_axis in op.axes or prod(tile[i] for i in mine) <= rates.ways:
            continue
        found += crowded(op, mine, tile, rates)
    return found


def crowded(operand: Operand, axes: Sequence[int], tile: Sequence[int], rates: CpuRates) -> int:
    """Return how many lines of a tile, its extents along these axes, evict each other from the nearest cache."""
    strides = [(operand.stride_of(i) * operand.element_bytes, tile[i]) for i in axes]
    sets: dict[int, set[int]] = {}
    for steps in product(*(range(n) for _, n in strides)):
        address = sum(step * stride for step, (stride, _) in zip(steps, strides, strict=True))
        sets.setdefault(address % rates.way_bytes // rates.line, set()).add(address // rates.line)
    return sum(len(lines) for lines in sets.values() if len(lines) > rates.ways)


def copying(
    operand: Operand, panels: Tiles, chunks: Tiles, rates: CpuRates, stays: Sequence[Column], pages: bool,
    turned: bool = False,
) -> Column:  # fmt: skip
    """Return the cycles of copying a chunk's part of an operand together, a panel at a time.

    `stays` is the share of the nest that each cache keeps. With `pages` each row of a panel lies in another page. Of a
    `turned` operand the lanes of a vector lie rows apart.
    """
    elements = prod(operand.boxes(chunks))
    rows = elements / operand.runs(operand.boxes(panels))
    passed = sum((1 - kept) / rate for kept, (_, _, rate) in zip(stays, rates.caches[1:], strict=False))
    moved = elements * operand.element_bytes * passed
    gathered: Column = 0.0
    if turned:
        slots = turned_slots(rates.lanes, 1, operand.boxes(panels)[-1] if operand.element_bytes == TURNED_BYTES else 1)
        gathered = elements / rates.lanes * slots / rates.loads
    return moved + gathered + (rows * rates.page_walk if pages else 0.0)


@dataclass(frozen=True)
class Loops:
    """Loops over register tiles in N chunks, and the bytes that they move through the caches.

    Parameters
    ----------
    chunks : array [A, N]
    orders : array [L, N]
        Axis positions of the loops, outermost first; -1 where there is no loop.
    packed : mapping of str to column of bool
        Operands whose copies lie together.
    units : int
        Cores.
    after : float
        Bytes written and read after the anchor, of the whole nest.
    """

    geometry: Geometry
    rates: CpuRates
    chunks: NDArray[np.int64]
    orders: NDArray[np.int64]
    packed: Mapping[str, Column] = field(default_factory=dict)
    units: int = 1
    after: float = 0.0

    def staying(self, capacity: float) -> Column:
        """Return the share of what a core's chunks touch that a cache keeps."""
        return staying(self._touched, capacity)

    @cached_property
    def _touched(self) -> Column:
        """Bytes that a core's chunks read and write."""
        g, line = self.geometry, self.rates.line
        own, whole = np.ceil(g.covering(self.chunks) / self.units), g.reducing(self.chunks)
        total: Column = self.after / self.units
        for op in g.operands:
            total = total + np.minimum(prod(op.boxes(whole)) * op.element_bytes * own, touched_bytes(g, op, line))
        return total

    def through(self, capacity: float, tiles: NDArray[np.int64]) -> Column:
        """Return the bytes that each chunk moves into a cache of that capacity from the next one.

        Loops whose working set fits into the cache, from the register tile outwards, are free. Outside of them, an
        operand is loaded again in every loop on which it depends, and in the loops outside that one.
        """
        g, rows = self.geometry, np.arange(tiles.shape[1])
        one = np.ones((1, tiles.shape[1]), np.int64)  # the last row stands for no axis, which is position -1
        chunks, current = np.vstack([self.chunks, one]), np.vstack([tiles, one])
        boxes = [op.boxes(g.reducing(current)) for op in g.operands]
        fits = held(g, boxes, self.rates, self.packed) <= capacity
        growing = np.ones(len(rows), bool)
        outer: list[NDArray[np.int64]] = []
        for order in self.orders[::-1]:
            grown = current.copy()
            grown[order, rows] = chunks[order, rows]
            moving = frozenset(order.tolist())
            larger = [op.boxes(g.reducing(grown), box, moving) for op, box in zip(g.operands, boxes, strict=True)]
            there = order >= 0
            taken = growing & there & (held(g, larger, self.rates, self.packed) <= capacity)
            growing &= taken | ~there
            fits |= taken
            if taken.all():
                current, boxes = grown, larger
            elif taken.any():
                current = np.where(taken, grown, current)
                boxes = [
                    [a if a is b else np.where(taken, b, a) for a, b in zip(box, more, strict=True)]
                    for box, more in zip(boxes, larger, strict=True)
                ]
            outer.append(np.where(taken, -1, order))
        trips = -(-chunks // current)
        again = [trips[order, rows] for order in outer]
        total: Column = 0.0
        for op, box in zip(g.operands, boxes, strict=True):
            own = np.array([i in op.axes for i in range(len(current))])
            repeat, stays = np.ones(len(rows), np.int64), fits
            for order, trip in zip(outer, again, strict=True):
                stays = stays & ~own[order]
                repeat = np.where(stays, repeat, repeat * trip)
            total = total + repeat * prod(box) * op.element_bytes
        return total

    def again(self, capacity: float, tiles: NDArray[np.int64], moved: Column) -> Column:
        """Return the bytes that come again, nothing hides them, because sets of a crowded cache overflow.

        Parameters
        ----------
        moved : column
            What moves into the cache otherwise: `through`.
        """
        g, crowded = self.geometry, capacity * CROWDED
        boxes = [op.boxes(g.reducing(self.chunks)) for op in g.operands]
        if np.all(held(g, boxes, self.rates, self.packed) <= crowded):
            return 0.0
        return EVICTED * (self.through(crowded, tiles) - moved)


def stored_bytes(geometry: Geometry) -> int:
    """Return the bytes written and read after the anchor: outputs, and what the epilogue reads."""
    outputs = prod(geometry.extents[i] for i in geometry.spatial)
    return outputs * geometry.output_bytes + geometry.epilogue_bytes


def entering(nest: Loops, at: int, tiles: NDArray[np.int64]) -> Column:
    """Return the bytes of operands that each chunk moves into a cache from the next one.

    Nothing comes from beyond the cache that holds all of a core's part: the kernel before has left it there.

    Parameters
    ----------
    at : int
        Number of the next cache, from 1.
    """
    capacity = nest.rates.caches[at - 1][1]
    stays = nest.staying(capacity)
    return np.zeros(tiles.shape[1]) if np.all(stays == 1) else (1 - stays) * nest.through(capacity, tiles)


def own_caches(device: DeviceSpec) -> int:
    """Return how many caches a core has of its own, the nearest ones of `CpuRates.caches`."""
    return sum(level.scope != "device" for level in device.levels[1:-1])


def leaving(nest: Loops, device: DeviceSpec) -> tuple[int, Column]:
    """Return how many caches a core has of its own, and the share of what its chunks touch that leaves these."""
    own = own_caches(device)
    return own, 1 - nest.staying(nest.rates.caches[own - 1][1]) if own else 0.0


def starting(nest: Loops, tiles: NDArray[np.int64], device: DeviceSpec, issued: Column) -> Column:
    """Return the cycles in which each chunk waits for the first lines of runs that come from beyond a core's caches.

    A prefetcher follows neighbouring lines, after it has seen the first, and few runs at a time. What a register tile
    reads goes on with the next one's if the inner loops walk along the tensor. Runs that begin together wait together;
    so do those as far ahead as a core begins instructions.

    Parameters
    ----------
    issued : column
        Instructions of a step of the reduction.
    """
    g, rates, rows = nest.geometry, nest.rates, np.arange(tiles.shape[1])
    own, leaves = leaving(nest, device)
    if not g.reduce or not np.any(leaves):
        return 0.0
    beyond = device.levels[-2 - own]
    wait = BEFORE_FOUND * beyond.latency_ns * 1e-9 / rates.cycle
    total: Column = 0.0
    for op in g.operands:
        if op.constant:
            continue
        near = [i for i in g.reduce if i in op.axes and op.stride_of(i) * op.element_bytes < rates.line]
        step = [g.extents[i] if i in near else 1 if i in g.reduce else tiles[i] for i in range(len(tiles))]
        box = op.boxes(step)
        together = prod(box) / op.runs(box)  # runs that a tile's rows begin at once
        together = together * np.maximum(1.0, rates.window / (issued * prod(g.extents[i] for i in near)))
        current = np.vstack([np.array(np.broadcast_arrays(*g.reducing(tiles))), np.ones((1, tiles.shape[1]), np.int64)])
        box = op.boxes(current)
        run = alone = op.runs(box)
        for order in nest.orders[::-1]:
            current[order, rows] = np.where(order >= 0, nest.chunks[order, rows], 1)
            run = np.maximum(run, op.runs(op.boxes(current)))
        # Other operands and the output are runs, too.
        lost = np.clip((prod(box) / alone + len(g.operands)) / RUNS_FOLLOWED - 1, 0, 1)
        starts = prod(op.boxes(g.reducing(nest.chunks))) * (lost / alone + (1 - lost) / run)
        total = total + leaves * wait * starts / together
    return total


def walking(nest: Loops, operand: Operand, tiles: NDArray[np.int64]) -> Column:
    """Return the share of register tiles that read an operand from pages of which no address is known.

    While inner loops read the same part again, the pages of its steps are known, if there are no more than `PAGES`.
    Measured on two cores of a Zen 3: 30 rows by 64 x 1500, tiles of 6 x 16, 97 us if the loop over columns stands
    inside, 81 if that over rows does.
    """
    g, rows = nest.geometry, np.arange(tiles.shape[1])
    if prod(g.extents[i] for i in g.reduce if i in operand.axes) > PAGES:
        return np.ones(len(rows))
    again, same = np.ones(len(rows)), np.ones(len(rows), bool)
    for order in nest.orders[::-1]:
        there = order >= 0
        same &= ~there | ~np.isin(order, list(operand.axes))
        again = np.where(same & there, again * -(-nest.chunks[order, rows] // tiles[order, rows]), again)
    return 1 / again


def run_length(geometry: Geometry, chunks: Tiles, tiles: Tiles, orders: Tiles) -> Column:
    """Return how many consecutive elements are stored in order: along the vector axis, and the next if it is whole."""
    g, last = geometry, geometry.vector_axis
    if last is None:
        return 1
    inner, next_ = [-1, -1, *orders][-1], [-1, -1, *orders][-2]
    run = np.where(np.equal(inner, last), chunks[last], tiles[last])
    before = max((i for i in g.spatial if i < last), default=None)
    if before is not None:
        along = np.where(np.equal(np.where(np.equal(inner, last), next_, inner), before), chunks[before], tiles[before])
        run = run * np.where(run == g.extents[last], along, 1)
    return run


def storing(nest: Loops, tiles: NDArray[np.int64], device: DeviceSpec) -> Column:
    """Return the cycles in which each chunk waits to begin runs of outputs that leave a core's caches.

    A line is read before it is written, and a prefetcher has to find the run. Measured on two cores of a Granite Rapids
    class server, 64 to 256 channels of 56 x 56 pixels with a residual, tiles of 14 pixels by 32 channels: 627 us if the
    loop over pixels stands inside, 520 if that over channels does; of 4 pixels by 64 channels 510 and 470.
    """
    g, rates = nest.geometry, nest.rates
    own, leaves = leaving(nest, device)
    runs = g.outputs(nest.chunks) / run_length(g, nest.chunks, tiles, nest.orders)
    return leaves * runs * RUN_START / [*(rate for _, _, rate in rates.caches), rates.far][own]


def held(
    geometry: Geometry, boxes: Sequence[Sequence[Column]], rates: CpuRates, packed: Mapping[str, Column]
) -> Column:
    """Return the cache bytes that operands' boxes block: all ways of the sets into which their lines fall."""
    total: Column = 0.0
    for op, box in zip(geometry.operands, boxes, strict=True):
        own: Column = prod(box) * op.element_bytes
        if not op.constant:
            spread = own / sets_reached(op, box, rates)
            own = np.where(packed[op.name], own, spread) if op.name in packed else spread
        total = total + own
    return total


def sets_reached(operand: Operand, box: Sequence[Column], rates: CpuRates) -> Column:
    """Return the share of a cache's sets into which the lines of an operand's box fall.

    Rows at equal distances fall on the same few places of a page, and these select the set (larger caches also use
    the page's address, as good as random). Example: in a matrix with rows of 512 bytes, a column of lines can use an
    eighth of the cache.
    """
    run: Column = 1
    apart: Column = rates.page_bytes
    several: Column = False
    contiguous: Column = True
    for extent, full, stride in zip(reversed(box), reversed(operand.shape), reversed(operand.strides), strict=True):
        if contiguous is True:
            run = run * extent
        else:
            run = run * np.where(contiguous, extent, 1)
            steps = np.greater(extent, 1) & ~contiguous
            within = gcd(rates.page_bytes, stride * operand.element_bytes)
            apart = np.where(steps, np.gcd(apart, within), apart)
            several = several | steps
        whole = np.equal(extent, full)
        contiguous = contiguous if whole is True or np.ndim(whole) == 0 and whole else contiguous & whole
    return np.where(several, np.minimum(1.0, np.maximum(run * operand.element_bytes, rates.line) / apart), 1.0)


def passing_seconds(size: float, device: DeviceSpec) -> float:
    """Return the seconds that a core takes to hand a tensor of its own on to its next kernel, beside both kernels.

    What fits its own caches costs nothing. Else it is written to the nearest memory that holds it, which reads each
    line before (write-allocate), and read again. Plans count such traffic as hidden behind arithmetic; of stores it is
    not (measured on an Intel server: scores of 8 x 1500 x 1500 and their softmax, 72 MB each, take 33.4 ms where the
    plans say 16.6 and this adds 13.5).

    Parameters
    ----------
    size : float
        Bytes a core.

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> device = device_for_target("llvm -mcpu=haswell -num-cores=2")
    >>> passing_seconds(1000, device), passing_seconds(1e9, device) == 3e9 * 2 / device.far.bandwidth_gbps / 1e9
    (0.0, True)
    """
    level = holding(size, device)
    return PASSES * size * device.units / level.bandwidth_gbps / 1e9 if level.scope == "device" else 0.0


def holding(size: float, device: DeviceSpec) -> MemoryLevel:
    """Return the nearest memory that holds so many bytes a core of all cores.

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> device = device_for_target("llvm -mcpu=haswell -num-cores=2")
    >>> [holding(size, device).name for size in (1 << 10, 1 << 40)]
    ['l1', 'dram']
    """
    for level in reversed(device.levels[:-1]):
        if level.capacity_bytes / (device.units if level.scope == "device" else 1) * CACHE_SHARE >= size:
            return level
    return device.far


def near_seconds(size: int, beside: int, device: DeviceSpec) -> float:
    """Return the seconds in which a core hands a tensor on, if what it works with leaves its nearest cache.

    Plans count the copy of a picture's padding as hidden behind arithmetic. Where a tile leaves the nearest cache it is
    not (measured: a 3x3 window of 128 channels takes 255 us in tiles of 8 x 8, 231 of 4 x 4, 195 of 2 x 4).

    Parameters
    ----------
    size : int
        Bytes of the tensor.
    beside : int
        Bytes of all that the core works with meanwhile, the tensor among them.

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> device = device_for_target("llvm -mcpu=haswell -num-cores=2")
    >>> near_seconds(1000, 2000, device), near_seconds(50000, 60000, device) > 0
    (0.0, True)
    """
    rates = of_bytes(device, ELEMENT)
    (_, held, _), (_, _, rate), *_ = (*rates.caches, ("", 0.0, rates.far))
    return PASSES * size / rate * rates.cycle if beside > held else 0.0
