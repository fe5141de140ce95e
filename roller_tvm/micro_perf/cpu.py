"""Micro-performance model of a CPU: vector registers, loads and multiply-adds per cycle, traffic of each cache.

A nest is: parallel *chunks* over the cores; inside a chunk, loops over *register tiles* in a given order; inside
a register tile the whole reduction. The model counts, per chunk and core, the cycles of the multiply-adds, of the
load instructions, and of the traffic through each cache level, and takes the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, gcd, prod

from ..device import DeviceSpec
from ..device.cpu_data import estimate
from ..ir.expression import Ops
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry, Operand, Tile
from .neighbours import NEAR, vector_slots

# Cycles to enter and leave a register tile's loop nest: index arithmetic, branch misprediction at the loop exit.
TILE_OVERHEAD = 30
# Share of a cache that one nest can count on: the rest is the output, the stack, other operands' lines.
CACHE_SHARE = 0.75
# Load slots that one element behind a bounds check costs.
GUARDED_LOADS = 4
# Load slots of an element that is put into a vector on its own: its load and its insertion (measured on Zen 3,
# LLVM 22: A B^T of 12 x 128x128x64, gathered, 436 us; the loads alone would take 263).
GATHERED_SLOTS = 2
# Vectors that LLVM computes side by side in a loop that it vectorises itself; the rest of a row is computed one by one.
SIDE_BY_SIDE = 4
# Elements of the shortest loop in which LLVM computes several vectors side by side (TinyTripCountInterleaveThreshold).
LONG_LOOP = 128
# How sharply throughput and latency of the multiply-adds change over: the exponent of their norm (measured on Zen 3,
# LLVM 10 and 22: 8 accumulators, just enough at a latency of 4 cycles and 2 a cycle, reach 92% of the peak).
OVERLAP = 8
# The same for multiply-adds and loads that are both near their limit (measured on Zen 3, LLVM 10 and 22: 14 vectors
# with one load more take 1.28 of the multiply-adds' cycles, 7 with 8 loads 1.35; with vectors of 512 bits, LLVM 22: 28
# and 14 with one load more 1.09 and 1.12, with 16 and 9 loads 1.03 and 1.04).
PORTS = 4
# Seconds to enter a function that runs on the calling thread alone.
SERIAL_LAUNCH = 0.2e-6
# Share of a cache level's time that prefetching does not hide behind arithmetic.
EXPOSED = 0.15
# Slots of a vector instruction. 'exp' is a polynomial or a quotient of two, 'sqrt' with the division by it (measured on
# Zen 3, LLVM 10 and 22: 16 to 25, and 10 to 17); calls are counted apart.
INSTRUCTIONS = {
    "fma": 1.0, "mul": 1.0, "add": 1.0, "cmp": 1.0, "cast": 1.0, "div": 8.0, "exp": 20.0, "sqrt": 16.0, "special": 0.0,
}  # fmt: skip
# Cycles of log, sin and the like, an element: calls, whatever the vectors around them (measured: 5 to 12).
CALL = 8.0


def launch_seconds(device: DeviceSpec, chunks: int) -> float:
    """Return the seconds that it takes to start a kernel of `chunks` parallel tasks."""
    return device.launch_overhead_us * 1e-6 if chunks > 1 else SERIAL_LAUNCH


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


def vectors(extent: int, lanes: int) -> int:
    """Return the number of vector registers that `extent` neighbouring elements take."""
    return extent // vector_of(extent, lanes)


def lanes_filled(extent: int, lanes: int) -> float:
    """Return the share of the lanes that a register tile's row of `extent` elements uses."""
    return extent / (vectors(extent, lanes) * lanes)


@dataclass(frozen=True)
class RegisterUse:
    """Vector registers and instructions of one register tile, per point of the reduction.

    `held` broadcast values are in registers at a time, if the code generator's order is known (else None).
    `gathered` vectors are assembled from `gathers` load slots. `once` of the loaded vectors feed one instruction each.
    """

    accumulators: int
    vector_loads: int
    broadcasts: int
    gathers: int
    held: int | None = None
    gathered: int = 0
    once: int = 0

    @property
    def registers(self) -> int:
        """Vector registers in use: an operand of several multiply-adds needs one, of a single one it is folded in."""
        folded = self.broadcasts and self.accumulators <= self.broadcasts
        held = self.broadcasts if self.held is None else min(self.held, self.broadcasts)
        loaded = self.vector_loads - self.once + (1 if self.once else 0)
        return self.accumulators + loaded + self.gathered + (1 if folded else held)


def inner_cycles(
    use: RegisterUse, rates: CpuRates, points: int, reduces: bool, per_point: float = 1.0
) -> tuple[float, float]:
    """Return the cycles of arithmetic and of load instructions of a register tile over `points` of the reduction."""
    # Few accumulators leave gaps between dependent multiply-adds well before the latency itself is the limit.
    chain = rates.latency if reduces else 0.0
    busy = use.accumulators * per_point / rates.fma
    arithmetic = points * (busy**OVERLAP + chain**OVERLAP) ** (1 / OVERLAP)
    return arithmetic, points * (use.vector_loads + use.broadcasts + use.gathers) / rates.loads


def combined(use: RegisterUse, arithmetic: float, loads: float) -> float:
    """Return the cycles of arithmetic and loads that run side by side."""
    if not (busiest := max(arithmetic, loads)):
        return 0.0
    return busiest * sum((n / busiest) ** PORTS for n in (arithmetic, loads)) ** (1 / PORTS)


def register_use(
    geometry: Geometry, tile: Tile, lanes: int, held: int | None = None, picked: bool = False
) -> RegisterUse:
    """Return the registers that a register tile uses, with vectors along the nest's vector axis.

    Parameters
    ----------
    held : int, optional
        Broadcast values in registers at a time.
    picked : bool
        True if elements close to each other are picked out of vectors of neighbours.
    """
    last = geometry.vector_axis
    wide = 1 if last is None else vectors(tile[last], lanes)

    def count(op: Operand) -> int:
        mine = [i for i in geometry.spatial if i in op.axes]
        return prod(wide if i == last else tile[i] for i in mine)

    accumulators = prod(wide if i == last else tile[i] for i in geometry.spatial)
    loads = broadcasts = gathers = gathered = once = 0
    for op in geometry.operands:
        number = count(op)
        if op.guarded:  # a branch per load, a load per lane if the check depends on the vector axis
            gathers += number * (GUARDED_LOADS * (lanes if last in op.guard_axes else 1) - 1)
        if last is None or last not in op.axes:
            broadcasts += number
        elif op.stride_of(last) == 1 or op.constant:  # constants are packed at build time
            loads += number
            once += number if number == accumulators else 0
        else:
            near = picked and 1 <= op.stride_of(last) <= NEAR
            slots = vector_slots(op.stride_of(last), tile[last] // wide) if near else lanes * GATHERED_SLOTS
            gathers, gathered = gathers + number * slots, gathered + number
    return RegisterUse(accumulators, loads, broadcasts, gathers, held, gathered, once)


def prologue_slots(operand: Operand) -> float:
    """Return the vector instruction slots of computing one vector of an operand in place."""
    return operand.arithmetic + instructions(operand.functions)


def prologues(geometry: Geometry, tile: Tile, rates: CpuRates) -> tuple[float, int]:
    """Return vector cycles and calls, per point of the reduction, of the operands computed inside a register tile."""
    cycles, calls = 0.0, 0
    for op in geometry.operands:
        own = prod(tile[i] for i in op.axes if i in geometry.spatial_set)
        wide = rates.lanes if geometry.vector_axis in op.axes else 1
        cycles += prologue_slots(op) * own / wide / rates.fma
        calls += calls_of(op.functions) * own
    return cycles, calls


def epilogue_slots(geometry: Geometry) -> float:
    """Return the vector instruction slots of the epilogue on one vector."""
    return geometry.epilogue_flops + instructions(geometry.epilogue_functions)


def epilogue_cycles(geometry: Geometry, vectors: float, outputs: int, rates: CpuRates) -> float:
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


def conflicts(geometry: Geometry, tile: Tile, rates: CpuRates) -> int:
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
    """Cost of a register tile, independent of the chunks and of the order of the loops around it.

    Parameters
    ----------
    use : RegisterUse
    arithmetic, loads : float
        Cycles over the whole reduction.
    pages : frozenset of str
        Operands read from another page at each step unless they are copied together.
    page_walk : float
        Cycles of each such step.
    other : float
        Cycles of missed lines, special functions, the epilogue and entering the tile.
    """

    use: RegisterUse
    arithmetic: float
    loads: float
    pages: frozenset[str]
    page_walk: float
    other: float

    @classmethod
    def of(cls, geometry: Geometry, tile: Tile, rates: CpuRates) -> TileCost:
        g = geometry
        use = register_use(g, tile, rates.lanes, rates.broadcasts, rates.edge_vectors)
        points = prod(g.extents[i] for i in g.reduce)
        per_point = instructions(g.stage.ops) or 1.0
        arithmetic, loads = inner_cycles(use, rates, points, bool(g.reduce), per_point)
        missed = conflicts(g, tile, rates) * rates.line / rates.caches[1][2] if len(rates.caches) > 1 else 0.0
        outputs = prod(tile[i] for i in g.spatial)
        epilogue = 2 * use.accumulators / rates.fma + epilogue_cycles(g, use.accumulators, outputs, rates)
        before, calls = prologues(g, tile, rates)
        arithmetic += points * before
        calls += calls_of(g.stage.ops) * outputs
        pages = frozenset(op.name for op in g.operands if scattered(g, op, rates))
        other = points * (missed + CALL * calls) + epilogue + TILE_OVERHEAD
        return cls(use, arithmetic, loads, pages, rates.page_walk, other)

    def cycles(self, points: int, packed: frozenset[str]) -> float:
        """Return the cycles of one register tile if the operands `packed` are copied together."""
        together = combined(self.use, self.arithmetic, self.loads)
        return together + points * len(self.pages - packed) * self.page_walk + self.other


def tiled_estimate(
    geometry: Geometry,
    device: DeviceSpec,
    chunk: Tile,
    tile: Tile,
    order: tuple[int, ...],
    packed: frozenset[str] = frozenset(),
    cost: TileCost | None = None,
    stored: int | None = None,
) -> ProgramEstimate:
    """Return the predicted time of recipe cpu.tiled.

    Parameters
    ----------
    chunk : tuple of int
        Extents of one parallel task (reductions whole).
    tile : tuple of int
        Register tile (reductions 1).
    order : tuple of int
        Axis positions of the loops over register tiles inside a chunk, outermost first.
    packed : frozenset of str
        Operands copied together once per chunk, register tile by register tile.
    cost : TileCost, optional
        Cost of `tile`, if it is known already.
    stored : int, optional
        Bytes read and written after the anchor; by default those of its output and its epilogue.
    """
    g = geometry
    rates = CpuRates.of(device, g)
    cost = cost or TileCost.of(g, tile, rates)
    use = cost.use
    points = prod(g.extents[i] for i in g.reduce)
    tiles = prod(ceil(chunk[i] / tile[i]) for i in g.spatial)
    chunks = prod(ceil(g.extents[i] / chunk[i]) for i in g.spatial)

    whole = tuple(g.extents[i] if i in g.reduce else tile[i] for i in range(len(tile)))
    whole_chunk = tuple(g.extents[i] if i in g.reduce else chunk[i] for i in range(len(chunk)))
    copied = [op for op in g.operands if op.name in packed]
    turned = {op.name for op in copied if g.vector_axis is not None and op.stride_of(g.vector_axis) != 1}
    copies = sum(
        copying(op, whole, whole_chunk, rates, op.name in cost.pages, op.name in turned) for op in copied
    )
    core = tiles * cost.cycles(points, packed) + copies
    levels: list[LevelTime] = []
    worst, bound = core, "compute" if cost.arithmetic >= cost.loads else "load"
    busiest = ceil(chunks / device.units)
    below, exposed = "register", 0.0
    for name, _, rate in rates.caches:
        if below == "register":
            moved = (
                tiles
                * points
                * (use.vector_loads * device.vector_bytes + use.broadcasts * float(g.output_bytes))
            )
        else:
            moved = through(g, below, whole, chunk, order, rates, packed)
        cycles = moved / rate
        levels.append(LevelTime(name, moved * chunks, moved * chunks / device.units / rate * rates.cycle))
        if below != "register":
            exposed += EXPOSED * cycles
            if cycles > worst:
                worst, bound = cycles, name
        below = name
    launch = launch_seconds(device, chunks)
    seconds = busiest * max(worst, core + exposed) * rates.cycle + launch
    outputs = prod(g.extents[i] for i in g.spatial)
    after = outputs * g.output_bytes + g.epilogue_bytes if stored is None else stored
    everything = sum(op.source_bytes for op in g.operands) + after
    if everything > rates.caches[-1][1] * device.units:  # comes from memory, however the loops are ordered
        streamed = everything / (rates.far * device.units) * rates.cycle
        levels.append(LevelTime(device.far.name, everything, streamed))
        if streamed + launch > seconds:
            seconds, bound = streamed + launch, device.far.name
    levels.reverse()
    return ProgramEstimate(
        seconds, core * chunks / device.units * rates.cycle, tuple(levels), bound,
        g.stage.flops + g.epilogue_flops * outputs, chunks, busiest, 1, "", 1, use.registers,
        g.input_bytes(whole), chunks / (busiest * device.units),
    )  # fmt: skip


def copying(
    operand: Operand, panel: Tile, chunk: Tile, rates: CpuRates, pages: bool, turned: bool = False
) -> float:
    """Return the cycles of copying a chunk's part of an operand together, a panel at a time, from the last cache.

    With `pages` each row of a panel lies in another page. A `turned` operand is copied element by element.
    """
    elements = operand.elements(chunk)
    rows = elements / operand.run(operand.box(panel))
    moved = elements * operand.element_bytes * sum(1 / rate for _, _, rate in rates.caches[1:] or rates.caches)
    gathered = elements * GATHERED_SLOTS / rates.loads if turned else 0.0
    return moved + gathered + (rows * rates.page_walk if pages else 0.0)


def through(
    g: Geometry, below: str, tile: Tile, chunk: Tile, order: tuple[int, ...], rates: CpuRates,
    packed: frozenset[str] = frozenset(),
) -> float:  # fmt: skip
    """Return the bytes that one chunk moves into cache level `below` from the next one.

    Loops whose working set fits into the cache, from the register tile outwards, are free. Outside of them, an operand
    is loaded again in every loop on which it depends, and in the loops outside that one.
    """
    capacity = next(c for n, c, _ in rates.caches if n == below)
    outer = list(order)
    current = tile
    while outer:
        axis = outer[-1]
        grown = (*current[:axis], chunk[axis], *current[axis + 1 :])
        if held(g, grown, rates, packed) > capacity:
            break
        current = grown
        outer.pop()
    trips = {i: ceil(chunk[i] / current[i]) for i in outer}
    fits = held(g, current, rates, packed) <= capacity
    total = 0.0
    for op in g.operands:
        repeat, stays = 1, fits
        for axis in reversed(outer):
            stays = stays and axis not in op.axes
            if not stays:
                repeat *= trips[axis]
        total += repeat * op.elements(current) * op.element_bytes
    return total


def held(g: Geometry, tile: Tile, rates: CpuRates, packed: frozenset[str]) -> float:
    """Return the cache bytes that a tile's operands block: all ways of the sets into which their lines fall."""
    total = 0.0
    for op in g.operands:
        own = op.elements(tile) * op.element_bytes
        total += own if op.constant or op.name in packed else own / sets_reached(op, tile, rates)
    return total


def sets_reached(operand: Operand, tile: Tile, rates: CpuRates) -> float:
    """Return the share of a cache's sets into which the lines of an operand's box fall.

    Rows at equal distances fall on the same few places of a page, and these select the set (larger caches also use
    the page's address, as good as random). Example: in a matrix with rows of 512 bytes, a column of lines can use an
    eighth of the cache.
    """
    box = operand.box(tile)
    run = operand.run(box) * operand.element_bytes
    strides, stride, contiguous = [], operand.element_bytes, True
    for extent, full in zip(reversed(box), reversed(operand.shape), strict=True):
        if not contiguous and extent > 1:
            strides.append(stride)
        contiguous = contiguous and extent == full
        stride *= full
    return min(1.0, max(run, rates.line) / gcd(rates.page_bytes, *strides)) if strides else 1.0
