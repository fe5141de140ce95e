"""Micro-performance model of a CPU: vector registers, loads and multiply-adds per cycle, traffic of each cache.

A nest is: parallel *chunks* over the cores; inside a chunk, loops over *register tiles* in a given order; inside
a register tile the whole reduction. The model counts, per chunk and core, the cycles of the multiply-adds, of the
load instructions, and of the traffic through each cache level, and takes the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from ..device import DeviceSpec
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry, Operand, Tile

# Cycles to enter and leave a register tile's loop nest: index arithmetic, branch misprediction at the loop exit.
TILE_OVERHEAD = 30
# Share of a cache that one nest can count on: the rest is the output, the stack, other operands' lines.
CACHE_SHARE = 0.75
INSTRUCTIONS = {"fma": 1.0, "mul": 1.0, "add": 1.0, "cmp": 1.0, "cast": 1.0, "div": 8.0, "special": 20.0}


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
    caches: tuple[tuple[str, float, float], ...]  # near to far: name, bytes a core can count on, bytes per cycle into the level before
    far: float  # bytes per cycle and core from memory

    @classmethod
    def of(cls, device: DeviceSpec, element_bytes: int = 4) -> CpuRates:
        return _rates(device, element_bytes)


@lru_cache(maxsize=16)
def _rates(device: DeviceSpec, element_bytes: int) -> CpuRates:
    hertz = device.clock_ghz * 1e9
    per_core = 1e9 / hertz / device.units
    caches = []
    for level in reversed(device.levels[1:-1]):
        share = level.capacity_bytes / (device.units if level.scope == "device" else 1)
        caches.append((level.name, share * CACHE_SHARE, level.bandwidth_gbps * per_core))
    nearest = caches[0][2]
    return CpuRates(
        1 / hertz, device.vector_bytes // element_bytes, device.limits.fma_per_cycle or 1.0,
        device.limits.fma_latency_cycles or 4.0, nearest / device.vector_bytes, device.limits.vector_registers or 16,
        device.far.line_bytes, tuple(caches), device.far.bandwidth_gbps * per_core,
    )  # fmt: skip


def vectors(extent: int, lanes: int) -> int:
    """Vector registers that `extent` neighbouring elements take."""
    return ceil(extent / lanes)


@dataclass(frozen=True)
class RegisterUse:
    """Vector registers and instructions of one register tile, per point of the reduction."""

    accumulators: int
    vector_loads: int
    broadcasts: int
    gathers: int

    @property
    def registers(self) -> int:
        """A broadcast that feeds one multiply-add folds into it; one that feeds several needs a register."""
        folded = self.broadcasts and self.accumulators <= self.broadcasts
        return self.accumulators + self.vector_loads + (1 if folded else self.broadcasts)


def register_use(geometry: Geometry, tile: Tile, lanes: int) -> RegisterUse:
    """How a register tile uses registers: vectors along the nest's vector axis."""
    last = geometry.vector_axis
    wide = 1 if last is None else vectors(tile[last], lanes)

    def count(op: Operand) -> int:
        mine = [i for i in geometry.spatial if i in op.axes]
        return prod(wide if i == last else tile[i] for i in mine)

    loads = broadcasts = gathers = 0
    for op in geometry.operands:
        if last is None or last not in op.axes:
            broadcasts += count(op)
        elif op.stride_of(last) == 1 or op.constant:  # constants are packed at build time
            loads += count(op)
        else:
            gathers += count(op) * lanes
    accumulators = prod(wide if i == last else tile[i] for i in geometry.spatial)
    return RegisterUse(accumulators, loads, broadcasts, gathers)


def tiled_estimate(geometry: Geometry, device: DeviceSpec, chunk: Tile, tile: Tile, order: tuple[int, ...]) -> ProgramEstimate:
    """Predicted time of recipe cpu.tiled.

    Parameters
    ----------
    chunk : tuple of int
        Extents that one parallel task computes (reductions whole).
    tile : tuple of int
        Register tile (reductions 1).
    order : tuple of int
        Axis positions of the loops over register tiles inside a chunk, outermost first.
    """
    g = geometry
    rates = CpuRates.of(device, g.operands[0].element_bytes if g.operands else 4)
    use = register_use(g, tile, rates.lanes)
    points = prod(g.extents[i] for i in g.reduce)
    per_point = sum(n * INSTRUCTIONS[kind] for kind, n in g.stage.ops) or 1.0
    chain = rates.latency if g.reduce else 0.0
    arithmetic = points * max(use.accumulators * per_point / rates.fma, chain)
    loads = points * (use.vector_loads + use.broadcasts + use.gathers) / rates.loads
    spilled = max(0, use.registers - rates.registers)
    loads += points * 2 * spilled / rates.loads
    epilogue = use.accumulators * (2 + g.epilogue_flops) / rates.fma + TILE_OVERHEAD
    tiles = prod(ceil(chunk[i] / tile[i]) for i in g.spatial)
    chunks = prod(ceil(g.extents[i] / chunk[i]) for i in g.spatial)

    whole = tuple(g.extents[i] if i in g.reduce else tile[i] for i in range(len(tile)))
    core = tiles * (max(arithmetic, loads) + epilogue)
    levels: list[LevelTime] = []
    worst, bound = core, "compute" if arithmetic >= loads else "load"
    busiest = ceil(chunks / device.units)
    below = "register"
    for name, capacity, rate in rates.caches:
        moved = _through(g, below, levels, whole, chunk, order, tile, rates, chunks) if below != "register" else tiles * points * (
            use.vector_loads * rates.lanes * 4.0 + use.broadcasts * 4.0
        )
        cycles = moved / rate
        levels.append(LevelTime(name, moved * chunks, moved * chunks / device.units / rate * rates.cycle))
        if below != "register" and cycles > worst:
            worst, bound = cycles, name
        below = name
    compulsory = (sum(op.source_bytes for op in g.operands) + g.epilogue_bytes) / max(1, chunks)
    stored = prod(chunk[i] for i in g.spatial) * g.output_bytes
    del compulsory
    seconds = busiest * (worst + _exposed(worst, levels, core)) * rates.cycle + device.launch_overhead_us * 1e-6
    outputs = prod(g.extents[i] for i in g.spatial)
    levels.reverse()
    return ProgramEstimate(
        seconds, core * chunks / device.units * rates.cycle, tuple(levels), bound,
        g.stage.flops + g.epilogue_flops * outputs, chunks, busiest, 1, "", 1, use.registers,
        int(sum(op.elements(whole) * op.element_bytes for op in g.operands) + stored * 0), chunks / (busiest * device.units),
    )  # fmt: skip


def _exposed(worst: float, levels: list[LevelTime], core: float) -> float:
    return 0.0


def _through(g: Geometry, below: str, levels: list[LevelTime], whole: Tile, chunk: Tile, order: tuple[int, ...], tile: Tile,
             rates: CpuRates, chunks: int) -> float:
    """Bytes that one chunk moves into cache level `below` from the next one."""
    capacity = next(c for n, c, _ in rates.caches if n == below)
    # Find the outermost loop whose whole working set fits into the cache; grow from the register tile outwards.
    current = list(whole)
    outer = list(order)
    fits = g.input_bytes(tuple(current)) <= capacity
    if not fits:  # even one register tile's operands stream through
        return prod(ceil(chunk[i] / tile[i]) for i in g.spatial) * float(g.input_bytes(tuple(current)))
    while outer:
        axis = outer[-1]
        grown = list(current)
        grown[axis] = chunk[axis]
        if g.input_bytes(tuple(grown)) > capacity:
            break
        current = grown
        outer.pop()
    trips = {i: ceil(chunk[i] / current[i]) for i in outer}
    total = 0.0
    box = tuple(current)
    for op in g.operands:
        # An operand that the loop just outside does not index stays while that loop runs, if it fits beside a
        # tile of the others.
        repeat = 1
        resident = True
        for axis in reversed(outer):
            if axis in op.axes:
                resident = False
            if not (resident and axis not in op.axes):
                repeat *= trips[axis]
        total += repeat * op.elements(box) * op.element_bytes
    return total


def direct_estimate(geometry: Geometry, device: DeviceSpec, chunks: int) -> ProgramEstimate:
    """Predicted time of recipe cpu.direct: rows of vectors, memory traffic once."""
    g = geometry
    rates = CpuRates.of(device, g.output_bytes)
    outputs = prod(g.extents[i] for i in g.spatial)
    per_point = sum(n * INSTRUCTIONS[kind] for kind, n in g.stage.ops)
    points = g.stage.points
    last = g.vector_axis
    contiguous = [last is not None and op.stride_of(last) in (0, 1) for op in g.operands]
    vectorised = rates.lanes if last is not None and (not g.reduce or all(contiguous)) else 1
    loads = sum(points / (vectorised if c else 1) for c in contiguous)
    chain = rates.latency if g.reduce else 0.0  # one accumulator at a time
    cycles = points / vectorised * max(per_point / rates.fma, chain) + loads / rates.loads + outputs * (1 + g.epilogue_flops) / vectorised
    moved = sum(op.source_bytes for op in g.operands) + outputs * g.output_bytes + g.epilogue_bytes
    level, rate = "dram", rates.far
    for name, capacity, _ in rates.caches:
        if moved / device.units <= capacity:
            level = name
            rate = next(r for n, _, r in rates.caches if n == name)
            break
    units = min(device.units, chunks)
    busiest = ceil(chunks / device.units) / chunks
    memory = moved * busiest / rate
    core = cycles * busiest
    overhead = device.launch_overhead_us * 1e-6 if chunks > 1 else 0.2e-6
    seconds = max(memory, core) * rates.cycle + overhead
    return ProgramEstimate(
        seconds, core * rates.cycle, (LevelTime(level, moved, moved / (rate * units) * rates.cycle),),
        level if memory > core else "compute", g.stage.flops + g.epilogue_flops * outputs, chunks, ceil(chunks / device.units),
        registers=0, utilisation=1 / (busiest * device.units),
    )  # fmt: skip
