"""Micro-performance model of a CPU: vector registers, loads and multiply-adds per cycle, traffic of each cache.

A nest is: parallel *chunks* over the cores; inside a chunk, loops over *register tiles* in a given order; inside
a register tile the whole reduction. The model counts, per chunk and core, the cycles of the multiply-adds, of the
load instructions, and of the traffic through each cache level, and takes the slowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import product
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from ..device import DeviceSpec
from ..device.cpu_data import estimate
from ..ir.expression import Ops
from ..roller.candidates import Column, Tiles, each
from .cpu_constants import (
    CACHE_SHARE,
    CALL,
    EXPOSED,
    GATHERED_SLOTS,
    GUARDED_LOADS,
    INSTRUCTIONS,
    LONG_LOOP,
    OVERLAP,
    PORTS,
    SERIAL_LAUNCH,
    SIDE_BY_SIDE,
    TILE_OVERHEAD,
)
from .estimate import LevelColumn, Times
from .geometry import Geometry, Operand
from .neighbours import NEAR, vector_slots


def launch_seconds(device: DeviceSpec, chunks: Column) -> Column:
    """Return the seconds that it takes to start a kernel of `chunks` parallel tasks."""
    return np.where(np.greater(chunks, 1), device.launch_overhead_us * 1e-6, SERIAL_LAUNCH)


def instructions(*several: Ops) -> float:
    """Return the vector instruction slots that arithmetic takes on one vector."""
    return sum(n * INSTRUCTIONS[kind] for ops in several for kind, n in ops)


def calls_of(*several: Ops) -> int:
    """Return the number of function calls per element."""
    return sum(n for ops in several for kind, n in ops if kind == "special")


@dataclass(frozen=True)
class CpuRates:
    """Numbers of one core, per clock cycle."""

    cycle: float  # seconds
    lanes: int  # elements of a vector register
    fma: float  # vector multiply-adds
    latency: float  # of a multiply-add
    loads: float  # vector loads
    registers: int
    line: int
    caches: tuple[
        tuple[str, float, float], ...
    ]  # near to far: name, bytes a core can count on, bytes per cycle into the level before
    far: float  # bytes per cycle and core from memory
    ways: int  # of the nearest cache
    way_bytes: int
    stores: float  # vector stores
    page_bytes: int
    page_walk: float  # cycles of one more page that the inner loop reads from
    broadcasts: int | None = None  # registers that broadcast values take at a time
    window: int = 0  # instructions begun before the oldest is done
    edge_vectors: bool = True  # of vectors over an edge, all but the last tile's are whole

    @classmethod
    def of(cls, device: DeviceSpec, geometry: Geometry) -> CpuRates:
        """Return the rates for a nest; the widest dtype along its vector axis sets the lanes of a register."""
        return _rates(device, geometry.widest_bytes)


@lru_cache(maxsize=16)
def _rates(device: DeviceSpec, element_bytes: int) -> CpuRates:
    hertz = device.clock_ghz * 1e9
    per_core = 1e9 / hertz / device.units
    caches = []
    for level in reversed(device.levels[1:-1]):
        share = level.capacity_bytes / (device.units if level.scope == "device" else 1)
        caches.append((level.name, share * CACHE_SHARE, level.bandwidth_gbps * per_core))
    nearest = caches[0][2]
    first = device.levels[-2]
    held = first.capacity_bytes // (device.units if first.scope == "device" else 1)
    page = device.limits.page_bytes or int(estimate("page"))
    # Caches that are looked up while the address is still being translated have ways of a page.
    ways = device.limits.l1_ways or max(1, held // page)
    return CpuRates(
        1 / hertz, device.vector_bytes // element_bytes, device.limits.fma_per_cycle or 1.0,
        device.limits.fma_latency_cycles or 4.0, nearest / device.vector_bytes, device.limits.vector_registers or 16,
        device.far.line_bytes, tuple(caches), device.far.bandwidth_gbps * per_core, ways, held // ways,
        device.limits.stores_per_cycle or estimate("stores_per_cycle"), page,
        device.limits.page_walk_cycles or estimate("page_walk"), device.limits.broadcast_registers,
        device.limits.reorder_window or 0, device.limits.lanes_checked is None,
    )  # fmt: skip


@cache
def vector_of(extent: int, lanes: int) -> int:
    """Return the length of the equal vectors that make up a register tile's row of `extent` elements.

    LLVM keeps vectors of up to a register's length in registers. Longer ones it takes apart element by element
    (17, 23 and 67 elements: 10 to 25 times the time; 24 behind a check: 30 times), unless it can halve them.

    Examples
    --------
    >>> vector_of(64, 16), vector_of(48, 16), vector_of(24, 16), vector_of(7, 16), vector_of(17, 16)
    (16, 16, 12, 7, 1)
    """
    return max(d for d in range(1, min(extent, lanes) + 1) if extent % d == 0)


def vectors(extent: Column, lanes: int) -> Column:
    """Return the number of vector registers that `extent` neighbouring elements take."""
    return each(lambda e: e // vector_of(e, lanes), extent)


def lanes_filled(extent: Column, lanes: int) -> Column:
    """Return the share of the lanes that a register tile's row of `extent` elements uses."""
    return extent / (vectors(extent, lanes) * lanes)


@dataclass(frozen=True)
class RegisterUse:
    """Vector registers and instructions of N register tiles, per point of the reduction: a column each.

    `held` broadcast values are in registers at a time, if the code generator's order is known (else None).
    `gathered` vectors are assembled from `gathers` load slots. `once` of the loaded vectors feed one instruction each.
    """

    accumulators: Column
    vector_loads: Column
    broadcasts: Column
    gathers: Column
    held: int | None = None
    gathered: Column = 0
    once: Column = 0

    @property
    def registers(self) -> Column:
        """Vector registers in use: an operand of several multiply-adds needs one, of a single one it is folded in."""
        folded = np.logical_and(self.broadcasts, np.less_equal(self.accumulators, self.broadcasts))
        held = self.broadcasts if self.held is None else np.minimum(self.held, self.broadcasts)
        loaded = self.vector_loads - self.once + np.where(np.equal(self.once, 0), 0, 1)
        return self.accumulators + loaded + self.gathered + np.where(folded, 1, held)

    def take(self, rows: NDArray[np.intp]) -> RegisterUse:
        """Return the use of these tiles; one number stands for all."""
        columns = (self.accumulators, self.vector_loads, self.broadcasts, self.gathers, self.gathered, self.once)
        n, v, b, a, d, o = (c[rows] if np.ndim(c) else c for c in columns)
        return RegisterUse(n, v, b, a, self.held, d, o)


def inner_cycles(
    use: RegisterUse, rates: CpuRates, points: int, reduces: bool, per_point: float = 1.0
) -> tuple[Column, Column]:
    """Return the cycles of arithmetic and of load instructions of register tiles over `points` of the reduction."""
    # Few accumulators leave gaps between dependent multiply-adds well before the latency itself is the limit.
    chain = rates.latency if reduces else 0.0

    def busy(accumulators: int) -> float:
        return float(((accumulators * per_point / rates.fma) ** OVERLAP + chain**OVERLAP) ** (1 / OVERLAP))

    loads = use.vector_loads + use.broadcasts + use.gathers
    return points * each(busy, use.accumulators), points * loads / rates.loads


def combined(arithmetic: Column, loads: Column) -> Column:
    """Return the cycles of arithmetic and loads that run side by side."""
    busiest, least = np.maximum(arithmetic, loads), np.minimum(arithmetic, loads)
    shares = np.divide(least, busiest, out=np.zeros_like(busiest, dtype=float), where=busiest > 0)
    return busiest * each(lambda share: (1.0 + share**PORTS) ** (1 / PORTS), shares)


def register_use(
    geometry: Geometry, tiles: Tiles, lanes: int, held: int | None = None, picked: bool = False
) -> RegisterUse:
    """Return the registers that register tiles use, with vectors along the nest's vector axis.

    Parameters
    ----------
    held : int, optional
        Broadcast values in registers at a time.
    picked : bool
        True if elements close to each other are picked out of vectors of neighbours.
    """
    last = geometry.vector_axis
    wide = 1 if last is None else vectors(tiles[last], lanes)

    def count(axes: Iterable[int]) -> Column:
        return prod(wide if i == last else tiles[i] for i in axes)

    accumulators = count(geometry.spatial)
    loads = broadcasts = gathers = gathered = once = 0 * accumulators
    for op in geometry.operands:
        number = count(i for i in geometry.spatial if i in op.axes)
        if op.guarded:  # a branch per load, a load per lane if the check depends on the vector axis
            gathers = gathers + number * (GUARDED_LOADS * (lanes if last in op.guard_axes else 1) - 1)
        if last is None or last not in op.axes:
            broadcasts = broadcasts + number
        elif op.stride_of(last) == 1 or op.constant:  # constants are packed at build time
            loads = loads + number
            once = once + np.where(number == accumulators, number, 0)
        else:
            step = op.stride_of(last)
            if picked and 1 <= step <= NEAR:
                slots = each(lambda length, step=step: vector_slots(step, length), tiles[last] // wide)
            else:
                slots = lanes * GATHERED_SLOTS
            gathers, gathered = gathers + number * slots, gathered + number
    return RegisterUse(accumulators, loads, broadcasts, gathers, held, gathered, once)


def prologue_slots(operand: Operand) -> float:
    """Return the vector instruction slots of computing one vector of an operand in place."""
    return operand.arithmetic + instructions(operand.functions)


def prologues(geometry: Geometry, tiles: Tiles, rates: CpuRates) -> tuple[Column, Column]:
    """Return vector cycles and calls, per point of the reduction, of the operands computed inside register tiles."""
    cycles, calls = 0.0, 0
    for op in geometry.operands:
        own = prod(tiles[i] for i in op.axes if i in geometry.spatial_set)
        wide = rates.lanes if geometry.vector_axis in op.axes else 1
        cycles = cycles + prologue_slots(op) * own / wide / rates.fma
        calls = calls + calls_of(op.functions) * own
    return cycles, calls


def epilogue_slots(geometry: Geometry) -> float:
    """Return the vector instruction slots of the epilogue on one vector."""
    return geometry.epilogue_flops + instructions(geometry.epilogue_functions)


def epilogue_cycles(geometry: Geometry, vectors: Column, outputs: Column, rates: CpuRates) -> Column:
    """Return the cycles of the epilogue for `vectors` of sums with `outputs` elements."""
    calls = calls_of(geometry.epilogue_functions) * outputs
    return vectors * epilogue_slots(geometry) / rates.fma + CALL * calls


def left_over(row: int, lanes: int) -> int:
    """Return how many elements at the end of a row remain, one by one, in a loop that LLVM vectorises itself.

    Examples
    --------
    >>> left_over(521, 16), left_over(67, 16), left_over(64, 16)
    (9, 3, 0)
    """
    return row % (lanes * (SIDE_BY_SIDE if row >= LONG_LOOP else 1))


def vectors_along(geometry: Geometry, operand: Operand) -> bool:
    """Return whether the nest reads vectors of an operand directly from memory: contiguous, unguarded, not packed."""
    last = geometry.vector_axis
    return not (last is None or operand.constant or operand.guarded or operand.stride_of(last) != 1)


def step_bytes(geometry: Geometry, operand: Operand) -> int:
    """Return the bytes between the reads of neighbouring steps of the reduction, the smallest; 0 if it has no steps."""
    steps = [operand.stride_of(i) for i in geometry.reduce if i in operand.axes and geometry.extents[i] > 1]
    return min(steps, default=0) * operand.element_bytes


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
        strides = [(op.stride_of(i) * op.element_bytes, tile[i]) for i in mine]
        sets: dict[int, set[int]] = {}
        for steps in product(*(range(n) for _, n in strides)):
            address = sum(step * stride for step, (stride, _) in zip(steps, strides, strict=True))
            sets.setdefault(address % rates.way_bytes // rates.line, set()).add(address // rates.line)
        found += sum(len(lines) for lines in sets.values() if len(lines) > rates.ways)
    return found


@dataclass(frozen=True)
class TileCost:
    """Cost of N register tiles, independent of the chunks and of the order of the loops around them: a column each.

    Parameters
    ----------
    use : RegisterUse
    arithmetic, loads : column of float
        Cycles over the whole reduction.
    pages : frozenset of str
        Operands read from another page at each step unless they are copied together.
    page_walk : float
        Cycles of each such step.
    other : column of float
        Cycles of missed lines, special functions, the epilogue and entering the tile.
    """

    use: RegisterUse
    arithmetic: Column
    loads: Column
    pages: frozenset[str]
    page_walk: float
    other: Column

    @classmethod
    def of(cls, geometry: Geometry, tiles: Tiles, rates: CpuRates) -> TileCost:
        g = geometry
        use = register_use(g, tiles, rates.lanes, rates.broadcasts, rates.edge_vectors)
        points = prod(g.extents[i] for i in g.reduce)
        per_point = instructions(g.stage.ops) or 1.0
        arithmetic, loads = inner_cycles(use, rates, points, bool(g.reduce), per_point)
        missed: Column = 0.0
        if len(rates.caches) > 1:
            table = np.asarray(tiles)
            evicted = np.array([conflicts(g, tile, rates) for tile in table.reshape(len(table), -1).T.tolist()])
            missed = evicted.reshape(table.shape[1:]) * rates.line / rates.caches[1][2]
        outputs = g.outputs(tiles)
        epilogue = 2 * use.accumulators / rates.fma + epilogue_cycles(g, use.accumulators, outputs, rates)
        before, calls = prologues(g, tiles, rates)
        arithmetic = arithmetic + points * before
        calls = calls + calls_of(g.stage.ops) * outputs
        pages = frozenset(op.name for op in g.operands if scattered(g, op, rates))
        other = points * (missed + CALL * calls) + epilogue + TILE_OVERHEAD
        return cls(use, arithmetic, loads, pages, rates.page_walk, other)

    def take(self, rows: NDArray[np.intp]) -> TileCost:
        """Return the cost of these tiles; one cost stands for all."""
        arithmetic, loads, other = (c[rows] if np.ndim(c) else c for c in (self.arithmetic, self.loads, self.other))
        return TileCost(self.use.take(rows), arithmetic, loads, self.pages, self.page_walk, other)

    def cycles(self, points: int, copied: Column = 0) -> Column:
        """Return the cycles of register tiles if `copied` of the operands in `pages` are copied together."""
        together = combined(self.arithmetic, self.loads)
        return together + points * (len(self.pages) - copied) * self.page_walk + self.other


def tiled_times(
    geometry: Geometry,
    device: DeviceSpec,
    chunks: Tiles,
    tiles: Tiles,
    orders: Tiles,
    packed: Mapping[str, Column] | None = None,
    cost: TileCost | None = None,
    stored: int | None = None,
    rates: CpuRates | None = None,
) -> Times:
    """Return the predicted times of N candidates of recipe cpu.tiled.

    Parameters
    ----------
    chunks : tiles
        Extents of one parallel task (reductions whole).
    tiles : tiles
        Register tiles (reductions 1).
    orders : tiles
        Axis positions of the loops over register tiles inside a chunk, outermost first; -1 where there is no loop.
    packed : mapping of str to column of bool
        Operands that may be copied together once per chunk, register tile by register tile: which candidates do.
    cost : TileCost, optional
        Cost of `tiles`, if it is known already.
    stored : int, optional
        Bytes read and written after the anchor; by default those of its output and its epilogue.
    rates : CpuRates, optional
        Rates of the nest, if they are known already.
    """
    g, copies = geometry, packed or {}
    chunks, tiles = (np.asarray(t).reshape(len(t), -1) for t in (chunks, tiles))
    rates = rates or CpuRates.of(device, g)
    cost = cost or TileCost.of(g, tiles, rates)
    use = cost.use
    points = prod(g.extents[i] for i in g.reduce)
    count, number = g.covering(tiles, chunks), g.covering(chunks)
    whole, whole_chunk = g.reducing(tiles), g.reducing(chunks)
    copied = sum((copies[name] * 1 for name in copies if name in cost.pages), start=np.zeros((), np.int64))
    extra: Column = 0.0
    for op in g.operands:
        if op.name in copies:
            turned = g.vector_axis is not None and op.stride_of(g.vector_axis) != 1
            cycles = copying(op, whole, whole_chunk, rates, op.name in cost.pages, turned)
            extra = extra + np.where(copies[op.name], cycles, 0.0)
    core = count * cost.cycles(points, copied) + extra
    bounds = ["compute", "load", *(name for name, _, _ in rates.caches), device.far.name]
    worst, bound = core, np.where(np.greater_equal(cost.arithmetic, cost.loads), 0, 1)
    busiest = -(-number // device.units)
    levels: list[LevelColumn] = []
    exposed: Column = 0.0
    nest = Loops(g, rates, chunks, np.asarray(orders, np.int64).reshape(len(orders), tiles.shape[1]), copies)
    for at, (name, _, rate) in enumerate(rates.caches):
        if at == 0:
            read = use.vector_loads * device.vector_bytes + use.broadcasts * float(g.output_bytes)
            moved = count * points * read
        else:
            moved = nest.through(rates.caches[at - 1][1], tiles)
        cycles = moved / rate
        levels.append(LevelColumn(name, moved * number, moved * number / device.units / rate * rates.cycle))
        if at > 0:
            exposed = exposed + EXPOSED * cycles
            bound = np.where(cycles > worst, 2 + at, bound)
            worst = np.maximum(worst, cycles)
    launch = launch_seconds(device, number)
    seconds = busiest * np.maximum(worst, core + exposed) * rates.cycle + launch
    outputs = prod(g.extents[i] for i in g.spatial)
    after = outputs * g.output_bytes + g.epilogue_bytes if stored is None else stored
    everything = sum(op.source_bytes for op in g.operands) + after
    if everything > rates.caches[-1][1] * device.units:  # comes from memory, however the loops are ordered
        streamed = everything / (rates.far * device.units) * rates.cycle
        levels.append(LevelColumn(device.far.name, everything, streamed))
        bound = np.where(streamed + launch > seconds, len(bounds) - 1, bound)
        seconds = np.maximum(seconds, streamed + launch)
    held = sum(prod(op.boxes(whole)) * op.element_bytes for op in g.operands)
    return Times(
        seconds, core * number / device.units * rates.cycle, tuple(reversed(levels)), tuple(bounds), bound,
        g.stage.flops + g.epilogue_flops * outputs, number, busiest, use.registers, held,
        number / (busiest * device.units),
    )  # fmt: skip


def copying(
    operand: Operand, panels: Tiles, chunks: Tiles, rates: CpuRates, pages: bool, turned: bool = False
) -> Column:
    """Return the cycles of copying a chunk's part of an operand together, a panel at a time, from the last cache.

    With `pages` each row of a panel lies in another page. A `turned` operand is copied element by element.
    """
    elements = prod(operand.boxes(chunks))
    rows = elements / operand.runs(operand.boxes(panels))
    moved = elements * operand.element_bytes * sum(1 / rate for _, _, rate in rates.caches[1:] or rates.caches)
    gathered = elements * GATHERED_SLOTS / rates.loads if turned else 0.0
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
    """

    geometry: Geometry
    rates: CpuRates
    chunks: NDArray[np.int64]
    orders: NDArray[np.int64]
    packed: Mapping[str, Column] = field(default_factory=dict)

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
