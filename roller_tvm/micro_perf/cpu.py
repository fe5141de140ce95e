"""Micro-performance model of a CPU: vector registers, loads and multiply-adds per cycle, traffic of each cache.

A nest is: parallel *chunks* over the cores; inside a chunk, loops over *register tiles* in a given order; inside
a register tile the whole reduction. The model counts, per chunk and core, the cycles of the multiply-adds, of the
load instructions, and of the traffic through each cache level, and takes the slowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..device import DeviceSpec
from ..ir.stage import Ops
from ..roller.alignment import divisors
from ..roller.candidates import Column, Tiles, each
from .cold_weights import waiting
from .cpu_caches import (
    Loops,
    conflicts,
    copying,
    entering,
    scattered,
    starting,
    staying,
    stored_bytes,
    storing,
    touched_bytes,
    walking,
)
from .cpu_constants import (
    CALL,
    EMBEDS,
    EXPOSED,
    GATHERED_SLOTS,
    GUARDED_LOADS,
    INSTRUCTIONS,
    LONG_LOOP,
    OVERLAP,
    SERIAL_LAUNCH,
    SIDE_BY_SIDE,
    TILE_OVERHEAD,
    TRIP_INSTRUCTIONS,
    TRIP_STEPS,
    UNROLLED_LOADS,
)
from .cpu_rates import CpuRates
from .estimate import LevelColumn, Times
from .geometry import Geometry, Operand
from .neighbours import NEAR, vector_slots
from .other_cores import arriving


def launch_seconds(device: DeviceSpec, chunks: Column) -> Column:
    """Return the seconds that it takes to start a kernel of `chunks` parallel tasks."""
    return np.where(np.greater(chunks, 1), device.launch_overhead_us * 1e-6, SERIAL_LAUNCH)


def instructions(*several: Ops) -> float:
    """Return the vector instruction slots that arithmetic takes on one vector."""
    return sum(n * INSTRUCTIONS[kind] for ops in several for kind, n in ops)


def point_slots(geometry: Geometry) -> float:
    """Return the vector instruction slots of one point of the anchor; of what only moves data, one."""
    return instructions(geometry.stage.ops) or 1.0


def calls_of(*several: Ops) -> int:
    """Return the number of function calls per element."""
    return sum(n for ops in several for kind, n in ops if kind == "special")


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
    return max(d for d in divisors(extent) if d <= lanes)


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


def combined(arithmetic: Column, loads: Column, ports: float) -> Column:
    """Return the cycles of arithmetic and loads that run side by side; `ports` as in `CpuRates`."""
    busiest, least = np.maximum(arithmetic, loads), np.minimum(arithmetic, loads)
    shares = np.divide(least, busiest, out=np.zeros_like(busiest, dtype=float), where=busiest > 0)
    return busiest * each(lambda share: (1.0 + share**ports) ** (1 / ports), shares)


def step_cycles(
    use: RegisterUse, rates: CpuRates, arithmetic: Column, loads: Column, points: int = 1, per_point: float = 1.0
) -> Column:
    """Return the cycles of register tiles over `points` of the reduction, of these of arithmetic and of loads.

    A core begins so many instructions a cycle, and half of them while another machine's thread shares it. Measured on
    two cores of a Zen 3, shared about half of the time, operands in the nearest cache: tiles of 6 x 2, 4 x 3 and 5 x 2
    vectors, in trips of four steps, reach 0.90, 0.91 and 0.88 of the peak, 14 x 1 and 10 x 1, step by step, 0.70 and
    0.65; in quiet moments 6 x 2 reach 0.99, 14 x 1 0.89.
    """
    together = combined(arithmetic, loads, rates.ports)
    if rates.dispatch is None:
        return together
    alone = np.greater_equal(use.broadcasts, use.accumulators)  # rows of one vector
    broadcasts = np.where(alone & (rates.registers >= EMBEDS), 0, use.broadcasts)
    trip = TRIP_INSTRUCTIONS / np.where(alone, 1, TRIP_STEPS)
    begun = use.accumulators * per_point + use.vector_loads - use.once + broadcasts + use.gathers + trip
    begun = points * begun / rates.dispatch
    shared = rates.shared * np.maximum(together, 2 * begun)
    return (1 - rates.shared) * np.maximum(together, begun) + shared


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

    def apart(step: int, axis: int) -> Column:
        """Return the slots of a vector of elements at this distance along an axis."""
        return each(lambda length: vector_slots(step, length), tiles[axis] // wide)

    accumulators = count(geometry.spatial)
    loads = broadcasts = gathers = gathered = once = 0 * accumulators
    kept: Column = 1
    for op in geometry.operands:
        number = count(i for i in geometry.spatial if i in op.axes)
        if op.guarded:  # a branch per load, a load per lane if the check depends on the vector axis
            slots = number * (GUARDED_LOADS * (lanes if op.checked_along(last) else 1) - 1)
            rows = [i for i in geometry.spatial if i in op.axes and i != last]
            if last not in op.axes and rows:  # one check serves a row
                slots = np.minimum(slots, GUARDED_LOADS * number / tiles[rows[-1]])
                kept = unrolled_points(geometry, tiles, lanes)
            gathers = gathers + slots
        if last is None or last not in op.axes:
            broadcasts = broadcasts + number
        elif op.stride_of(last) == 1 or op.constant:  # constants are packed at build time
            loads = loads + number
            gathers = gathers + number * _piecewise(tiles[last] // wide, tiles[last], geometry.extents[last])
            once = once + np.where(number == accumulators, number, 0)
        else:
            step = op.stride_of(last)
            slots = apart(step, last) if picked and 1 <= step <= NEAR else lanes * GATHERED_SLOTS
            gathers, gathered = gathers + number * slots, gathered + number
        if op.told and last is not None:  # a row's first and last vectors are put together of what is no padding
            ends = np.minimum(1.0, 2 * tiles[last] / geometry.extents[last])
            gathers = gathers + number * apart(op.stride_of(last), last) * ends
    return RegisterUse(accumulators, loads, broadcasts, gathers, held, gathered + loads * (kept - 1), once)


def unrolled_points(geometry: Geometry, tiles: Tiles, lanes: int) -> Column:
    """Return the points of a sliding window that register tiles unroll where elements are read behind checks.

    LLVM keeps the vectors of all of them in registers: the tile's rows, with their checks, stand inside.
    """
    g, points = geometry, np.ones((), np.int64)
    size = prod(tiles[i] for i in g.spatial) // lanes
    for i in reversed(g.window_axes):
        size = size * g.extents[i]
        points = np.where(size <= UNROLLED_LOADS, points * g.extents[i], points)
    return points


def _piecewise(length: Column, row: Column, extent: int) -> Column:
    """Return the slots, beyond one, of loading a vector of a register tile's row, at the mean of all along the axis.

    Where tiles stand over the edge, the last vector has as many lanes as are left, and is loaded in as many pieces as
    one of that length.
    """
    left = extent % length
    last = each(lambda lanes: vector_slots(1, lanes) - 1 if lanes else 0, left) / -(-extent // length)
    own = each(lambda lanes: vector_slots(1, lanes) - 1, length)
    return own + np.where(np.equal(extent % row, 0), 0.0, last)


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


@dataclass(frozen=True)
class TileCost:
    """Cost of N register tiles, independent of the chunks and of the order of the loops around them: a column each.

    Parameters
    ----------
    use : RegisterUse
    arithmetic, loads, together : column of float
        Cycles over the whole reduction; `together` of both, side by side.
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
    together: Column
    pages: frozenset[str]
    page_walk: float
    other: Column

    @classmethod
    def of(cls, geometry: Geometry, tiles: Tiles, rates: CpuRates) -> TileCost:
        g = geometry
        use = register_use(g, tiles, rates.lanes, rates.broadcasts, rates.edge_vectors)
        points = prod(g.extents[i] for i in g.reduce)
        per_point = point_slots(g)
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
        together = step_cycles(use, rates, arithmetic, loads, points, per_point)
        return cls(use, arithmetic, loads, together, pages, rates.page_walk, other)

    def take(self, rows: NDArray[np.intp]) -> TileCost:
        """Return the cost of these tiles; one cost stands for all."""
        columns = (self.arithmetic, self.loads, self.together, self.other)
        arithmetic, loads, both, other = (c[rows] if np.ndim(c) else c for c in columns)
        return replace(self, use=self.use.take(rows), arithmetic=arithmetic, loads=loads, together=both, other=other)

    def cycles(self, points: int, walks: Column = 0) -> Column:
        """Return the cycles of register tiles that read `walks` operands from another page at each step."""
        return self.together + points * walks * self.page_walk + self.other


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
    order: Sequence[int] | None = None,
    cold: bool = True,
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
    order : sequence of int, optional
        Spatial axes in the order of the chunks, outermost first; by default the output's.
    cold : bool
        Whether memory delivers the weights, as in a network; to one of several slices of a nest, a cache does.
    """
    g, copies, around = geometry, packed or {}, order or geometry.spatial
    chunks, tiles = (np.asarray(t).reshape(len(t), -1) for t in (chunks, tiles))
    rates = rates or CpuRates.of(device, g)
    cost = cost or TileCost.of(g, tiles, rates)
    use = cost.use
    points = prod(g.extents[i] for i in g.reduce)
    count, number = g.covering(tiles, chunks), g.covering(chunks)
    whole, whole_chunk = g.reducing(tiles), g.reducing(chunks)
    after, loops = stored_bytes(g) if stored is None else stored, np.asarray(orders, np.int64)
    nest = Loops(g, rates, chunks, loops.reshape(len(orders), tiles.shape[1]), copies, device.units, after)
    stays = [nest.staying(capacity) for _, capacity, _ in rates.caches] if copies else []
    extra: Column = 0.0
    walks: Column = 0.0
    for op in g.operands:
        if op.name in cost.pages:
            walks = walks + np.where(copies.get(op.name, False), 0.0, walking(nest, op, tiles))
        if op.name in copies:
            turned = g.vector_axis is not None and op.stride_of(g.vector_axis) != 1
            cycles = copying(op, whole, whole_chunk, rates, stays, op.name in cost.pages, turned)
            extra = extra + np.where(copies[op.name], cycles, 0.0)
    core = count * cost.cycles(points, walks) + extra
    worst = near = core
    bound = np.where(np.greater_equal(cost.arithmetic, cost.loads), 0, 1)
    levels: list[LevelColumn] = []
    exposed: Column = 0.0
    before: Column = 0.0
    for at, (name, _, rate) in enumerate(rates.caches):
        if at == 0:
            read = use.vector_loads * device.vector_bytes + use.broadcasts * float(g.output_bytes)
            moved = count * points * read
        else:
            moved = entering(nest, at, tiles)
        cycles = moved / rate
        levels.append(LevelColumn(name, moved * number, moved * number / device.units / rate * rates.cycle))
        if at == 0:
            before = moved
            continue
        if at == 1:
            # The nearest cache takes in lines while it is read. Measured on a Zen 5, tiles of 2 x 7 and 1 x 7 vectors
            # of 512 bits whose weights come from the second cache, 1.0 and 1.5 times the arithmetic: 1.46 and 1.39 of
            # the longer; of 256 bits, 0.28 and 0.47 times: 1.06 and 1.09. A sum of one tensor reads each line once.
            shared = np.sqrt(core * core + cycles * cycles)
            near = shared if len(g.operands) > 1 else core + EXPOSED * cycles
        else:
            exposed = exposed + EXPOSED * cycles
            exposed = exposed + nest.again(rates.caches[at - 1][1], tiles, moved) / rate
        if at == 2:
            # A core's own caches serve no later pass while lines come into them. Measured on two cores of an Emerald
            # Rapids: 16 products of 16 rows by 512 x 512, of which memory delivers the weights in 0.51 ms, take 1.03,
            # 0.84, 0.69 ms in tiles of 2, 4, 8 rows; a pass through the second cache takes 0.06.
            cycles = cycles + np.maximum(0.0, before - moved) / rates.caches[at - 1][2]
        bound = np.where(cycles > worst, 2 + at, bound)
        worst = np.maximum(worst, cycles)
        before = moved
    chunk = np.maximum(worst + EXPOSED * core * (worst > core), near + exposed)
    if cold:
        chunk = np.maximum(chunk, near + waiting(nest, tiles, near, number, around))
    step = np.maximum(cost.arithmetic, cost.loads) / points
    chunk = chunk + arriving(g, device, rates, chunks, tiles, use.accumulators, step, number, around)
    chunk = chunk + starting(nest, tiles, device, use.accumulators + use.vector_loads + use.broadcasts)
    chunk = chunk + storing(nest, tiles, device)
    return chunk_times(g, device, rates, tiles, number, core, chunk, bound, levels, use.registers, after)


def chunk_times(
    geometry: Geometry, device: DeviceSpec, rates: CpuRates, tiles: Tiles, number: Column, core: Column, chunk: Column,
    bound: Column, levels: list[LevelColumn], registers: Column, stored: int | None = None,
) -> Times:  # fmt: skip
    """Return the times of a nest of chunks, which cores take in turns and memory serves.

    Parameters
    ----------
    tiles : tiles
        Register tiles.
    number : column
        Chunks.
    core, chunk : columns of cycles
        A chunk's, without and with its waits for the caches.
    bound : column
        Place in (compute, load, the caches) of the longest part of a chunk.
    levels : list of LevelColumn
        Traffic with the caches, nearest first.
    registers : column
    stored : int, optional
        Bytes read and written after the anchor; by default those of its output and its epilogue.
    """
    g = geometry
    bounds = ("compute", "load", *(name for name, _, _ in rates.caches), device.far.name)
    busiest, launch = -(-number // device.units), launch_seconds(device, number)
    seconds = busiest * chunk * rates.cycle + launch
    outputs = prod(g.extents[i] for i in g.spatial)
    after = stored_bytes(g) if stored is None else stored
    everything = float(sum(touched_bytes(g, op, rates.line) for op in g.operands) + after)
    everything *= 1 - staying(everything / device.units, rates.caches[-1][1])
    if everything:  # comes from memory, however the loops are ordered
        streamed = everything / (rates.far * np.minimum(number, device.units)) * rates.cycle  # a core has its share
        levels.append(LevelColumn(device.far.name, everything, streamed))
        served = streamed + launch
        bound, seconds = np.where(served > seconds, len(bounds) - 1, bound), np.maximum(seconds, served)
    held = sum(prod(op.boxes(g.reducing(tiles))) * op.element_bytes for op in g.operands)
    return Times(
        seconds, core * number / device.units * rates.cycle, tuple(reversed(levels)), bounds, bound,
        g.stage.flops + g.epilogue_flops * outputs, number, busiest, registers, held, number / (busiest * device.units),
    )  # fmt: skip
