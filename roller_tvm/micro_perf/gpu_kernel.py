"""Micro-performance model of a staged GPU kernel, effect by effect (see ``effects``).

The model follows a block's step through the pipes of its unit: multiply-adds, issue slots, shared memory, L2, memory.
A step takes the time of the slowest pipe over all resident blocks, or the wait of one block that no other hides. The
kernel takes the time of the busiest unit's blocks. All counts follow from the kernel's tiles: nothing is fitted per
operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from ..device import DeviceSpec
from .access import fetch, read_cycles, store_sectors
from .effects import ALL, Effects
from .geometry import Tile
from .gpu import GpuRates, busiest_unit, far_traffic, instructions, sectors, started
from .kernel import StagedKernel, unrolled_loops
from .residency import LocalMemory, local_memory, residency, unified
from .storage import read_width

# Issue slots of a fetched vector beside its load and store; of each further coordinate of an element (division by a
# constant); of a padding guard. Counted in compiled plans (see gpu_tiled); more if nothing is unrolled.
FETCH_SLOTS, COORDINATE_SLOTS, GUARD_SLOTS = 6, 4, 8
# Issue slots of a loop around an unrolled body: counter, comparison, branch, address.
LOOP_SLOTS = 4
# Elements of a thread's fetch that are in flight at a time: compilers unroll a copying loop by four; one behind a
# padding guard is a branch of its own.
FETCHES_IN_FLIGHT, GUARDED_IN_FLIGHT = 4, 1
# Statements that a compiler unrolls by itself, inner loops first: full unrolling stops at a few hundred instructions.
COMPILER_STATEMENTS = 256
# Cycles that a thread waits for its values in local memory (L1 hits: 28 on V100, 35 on K80; Jia et al., table 3.1).
LOCAL_CYCLES = 30
# Cycles for starting and retiring a block.
BLOCK_CYCLES = 400
# Shares of the peak that code reaches: multiply-adds between other instructions, memory between pages.
FMA_SHARE, DRAM_SHARE = 0.9, 0.85
# Fraction of the other pipes' time that the slowest pipe does not hide.
OVERLAP_LOSS = 0.1


@dataclass(frozen=True)
class KernelTime:
    """Predicted time of one kernel and its parts.

    Parameters
    ----------
    seconds : float
    cycles : dict
        Pipe -> cycles of one block's step (of a block, if there are no steps); 'latency': the part that other blocks
        leave uncovered.
    bound : str
        Pipe with the most cycles.
    resident, limit : int, str
        Blocks on a unit at a time, and the resource that limits them.
    registers : int
        Registers that a thread needs.
    spilled : int
        Accumulators of a thread without a register.
    rolled : bool
        True if a loop indexes the register tile, which therefore cannot be in registers.
    local : LocalMemory
        Traffic of accumulators that are not in registers.
    far_bytes : float
        Bytes from memory, without those of `local`.
    """

    seconds: float
    cycles: dict[str, float]
    bound: str
    resident: int
    limit: str
    registers: int
    spilled: int
    rolled: bool
    local: LocalMemory
    far_bytes: float


@dataclass(frozen=True)
class Body:
    """Straight-line code of a thread, after the schedule's and the compiler's unrolling."""

    tile: Tile  # extents per axis
    outputs: int
    depth: int
    times: float  # in one step
    rolled: bool


def body_of(kernel: StagedKernel, compiler_limit: int) -> Body:
    """Return the body after unrolling by the schedule's limit or the compiler's, whichever goes farther."""
    g = kernel.geometry
    vthreads = prod(kernel.vthreads)
    limit = kernel.unroll_limit
    flags = kernel.unrolled
    if limit is not None:
        flags = unrolled_loops([e for _, e in kernel.loops], vthreads, max(limit, compiler_limit))
    tile = kernel.inner(flags)
    outputs, depth = prod(tile[i] for i in g.spatial), prod(tile[i] for i in g.reduce)
    rolled = any(e > 1 and a in g.spatial_set and not f for (a, e), f in zip(kernel.loops, flags, strict=True))
    return Body(tile, outputs, depth, kernel.outputs * kernel.depth / (outputs * depth), rolled)


def shared_loads(kernel: StagedKernel, body: Body, warp: int) -> tuple[float, float]:
    """Return, for one body, a thread's shared memory read instructions and a warp's cycles in them."""
    slots = cycles = 0.0
    for number, op in enumerate(kernel.geometry.operands):
        distinct = 1
        for dim, extent, full in zip(op.dims, op.box(body.tile), op.shape, strict=True):
            # Of a window that no neighbour overlaps (stride as wide as the tile) only the needed elements are read.
            distinct *= min(extent, prod(body.tile[a] for a, _ in dim), full)
        vector = read_vector(kernel, number, body.tile)
        slots += distinct / vector
        cycles += distinct / vector * read_cycles(kernel, number, warp, vector)
    return slots, cycles


def read_vector(kernel: StagedKernel, number: int, own: Tile) -> int:
    """Return the number of elements that one read of shared memory moves."""
    op, vthreads = kernel.geometry.operands[number], kernel.vthreads
    part = [o // vthreads[a] if a in kernel.geometry.spatial_set else o for a, o in enumerate(own)]
    return read_width(op.dims, kernel.boxes[number], op.box(own), kernel.padding[number], kernel.block, part)


def staged_time(
    kernel: StagedKernel, device: DeviceSpec, effects: Effects = ALL, registers: int | None = None
) -> KernelTime | None:  # fmt: skip
    """Return the predicted time of a staged kernel; None if not even one block fits on a unit.

    Parameters
    ----------
    registers : int, optional
        Compiler's register count per thread, if the caller knows it; else it is estimated.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.micro_perf.geometry import Geometry
    >>> g = Geometry.of(matmul(m=1024, n=1024, k=1024), "matmul")
    >>> kernel = StagedKernel(g, (64, 64, 16), (8, 8, 1), (1, 1, 1), ((2, 16), (0, 8), (1, 8)), None, (4, 4), (0, 0))
    >>> told = staged_time(kernel, load_device("v100"))
    >>> told.bound, told.spilled
    ('compute', 0)
    """
    g, rates, limits = kernel.geometry, GpuRates.of(device, kernel.geometry.stage.dtype), device.limits
    warp, warps = device.vector_width, ceil(kernel.threads / device.vector_width)
    active = warps * warp
    issue = limits.issue_per_cycle or rates.issue
    body = body_of(kernel, COMPILER_STATEMENTS)
    held = residency(kernel, device, body.tile, body.rolled, effects, registers)
    if held is None:
        return None
    resident = max(1, min(held.resident, ceil(kernel.blocks / device.units)))
    rolled = (body.outputs, body.times) if body.rolled else None
    local = local_memory(kernel, device, rates, rolled, held, resident, effects)

    # One block, one step.
    points = kernel.outputs * kernel.depth * instructions(g)
    load_slots, load_cycles = shared_loads(kernel, body, warp)
    if not effects.bank_conflicts:
        load_cycles = load_slots
    copied, moved, fetch_slots, store_cycles, waits = 0.0, 0.0, 0.0, 0.0, 0
    asked = 1 if kernel.stages > 1 else 2  # what runs ahead goes past the registers in one instruction
    for number, op in enumerate(g.operands):
        copy = fetch(kernel, number, warp, rates.sector)
        each = 1 if copy.vectorised else copy.vector
        coordinates = max(0, sum(1 for e in kernel.boxes[number] if e > 1) - 1)
        work = COORDINATE_SLOTS * coordinates + GUARD_SLOTS * op.guarded + op.arithmetic
        fetch_slots += copy.rounds * (asked * each + (FETCH_SLOTS + work * each) * effects.index_arithmetic)
        store_cycles += copy.rounds * each * (copy.conflicts if effects.bank_conflicts else 1.0)
        waits += ceil(copy.rounds * each / (GUARDED_IN_FLIGHT if op.guarded else FETCHES_IN_FLIGHT))
        box_bytes = prod(kernel.boxes[number]) * op.element_bytes
        cached = limits.global_cache_bytes is not None
        copied += copy.requested if effects.coalescing else box_bytes
        moved += (copy.moved if cached else copy.requested) if effects.coalescing else box_bytes
    lines = rates.line / rates.shared  # cycles of a line's worth of shared memory
    compute = points * active / (rates.lanes * FMA_SHARE)
    slots = points + body.times * (load_slots + LOOP_SLOTS) + fetch_slots + local.accesses
    issued = slots * warps / issue if effects.issue_rate else 0.0
    # If L1 is a part of shared memory, global loads take its cycles too.
    beside = copied / rates.line * lines if unified(device) else 0.0
    shared = warps * (body.times * load_cycles + store_cycles) * lines + beside + local.l1
    far, missed = _far(kernel, device, resident, rates, effects)
    pipes: dict[str, float] = {
        "compute": compute, "issue": issued, "shared": shared, "l2": moved / rates.l2 + local.l2,
        "dram": far / (kernel.blocks * kernel.steps) / (rates.dram * DRAM_SHARE) + local.dram / DRAM_SHARE,
    }  # fmt: skip
    slowest = max(pipes.values())
    throughput = slowest + OVERLAP_LOSS * (sum(pipes.values()) - slowest)
    # A block does one after the other: its fetches come, all threads meet, they compute.
    arrive: float = max(pipes["l2"], pipes["dram"])
    busy: float = max(compute, issued, shared) / min(1.0, warps / rates.issue)
    if effects.latency:
        arrive += waits * fetch_latency(device, rates, missed)
        # Two barriers, first operands.
        busy += (2 + body.times) * rates.shared_latency + local.accesses * LOCAL_CYCLES
    # Fetches that run ahead have the steps between to arrive in.
    alone = arrive + busy if kernel.stages == 1 else max(busy, arrive / (kernel.stages - 1))
    pipes["latency"] = alone / resident
    step = max(throughput, pipes["latency"])

    # The whole grid: how many blocks the busiest unit runs, and how many are there at a time.
    busiest = busiest_unit(device, kernel.blocks, resident)[0] if effects.wave_tail else kernel.blocks / device.units
    store_bytes = store_sectors(kernel, warp, rates.sector) * rates.sector
    if not effects.coalescing:
        store_bytes = min(warp, kernel.threads) * kernel.store * g.output_bytes
    outputs = prod(g.extents[i] for i in g.spatial) * g.output_bytes + g.epilogue_bytes
    store = max(
        kernel.outputs / kernel.store * warps * store_bytes / rates.l2,
        outputs / kernel.blocks / (rates.dram * DRAM_SHARE),
    )
    cycles = busiest * (kernel.steps * step + store + BLOCK_CYCLES / resident) + rates.dram_latency
    pipes["store"] = store / kernel.steps
    seconds, starts = cycles * rates.cycle, started(device, kernel.blocks) if effects.block_starts else 0.0
    bound = max(pipes, key=lambda p: pipes[p]) if seconds > starts else "blocks"
    seconds = max(seconds, starts) + device.launch_overhead_us * 1e-6
    return KernelTime(
        seconds, pipes, bound, resident, held.limit, held.needed, held.spilled,
        body.rolled, local, far,
    )  # fmt: skip


def fetch_latency(device: DeviceSpec, rates: GpuRates, missed: float) -> float:
    """Return the cycles of a load if the share `missed` comes from memory and the rest from L2."""
    if not device.has("l2"):
        return rates.dram_latency
    near = device.level("l2").latency_ns * device.clock_ghz
    return near + (rates.dram_latency - near) * missed


def _far(
    kernel: StagedKernel, device: DeviceSpec, resident: int, rates: GpuRates, effects: Effects
) -> tuple[float, float]:  # fmt: skip
    """Return the bytes from memory, and their share of the bytes that the blocks request."""
    g = kernel.geometry
    of_block = [
        kernel.steps * (sectors(op, list(box), rates.sector) if effects.coalescing else prod(box) * op.element_bytes)
        for op, box in zip(g.operands, kernel.boxes, strict=True)
    ]
    asked = float(sum(of_block) * kernel.blocks)
    if not effects.l2_reuse:
        return asked, 1.0
    far = far_traffic(g, device, kernel.block, device.units * resident, of_block)
    return far, min(1.0, far / asked)
