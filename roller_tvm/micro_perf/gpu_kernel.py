"""Micro-performance model of staged GPU kernels, effect by effect (see ``effects``).

The model follows a block's step through the pipes of its unit: multiply-adds, issue slots, shared memory, L2, memory.
A step takes the time of the slowest pipe over all resident blocks, or the wait of one block that no other hides. The
kernel takes the time of the busiest unit's blocks. All counts follow from the kernel's tiles: nothing is fitted per
operator. Each function below returns the cycles of one cause, a column for each kernel of a table; ``staged_times``
sums them by pipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from ..device import DeviceSpec
from .effects import ALL, Effects
from .gpu import GpuRates, busiest_unit, far_traffic, instructions, overlapped, sectors, slowest_of, started
from .gpu_access import Fetches, fetches, read_cycles, store_sectors
from .gpu_constants import (
    COORDINATE_SLOTS,
    CROWDED_OVERLAP_LOSS,
    CROWDED_SHARE,
    DRAM_SHARE,
    FETCH_SLOTS,
    FETCHES_IN_FLIGHT,
    FMA_SHARE,
    GUARD_SLOTS,
    GUARDED_IN_FLIGHT,
    LOCAL_CYCLES,
    LOOP_SLOTS,
    STAGED_BLOCK_CYCLES,
    STAGED_OVERLAP_LOSS,
    STEP_CYCLES,
)
from .gpu_nest import Array, ceil_div
from .kernel import StagedKernel, StagedTable
from .occupancy import RESOURCES
from .residency import LocalMemory, Residency, local_memory, residency, unified
from .storage import read_widths


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
class KernelTimes:
    """Predicted times of the N kernels of a table, a column each (see ``KernelTime``).

    ``seconds`` is infinite where not even one block fits on a unit.
    """

    table: StagedTable
    seconds: Array
    pipes: dict[str, Array]
    bound: Array
    held: Residency
    resident: Array
    local: LocalMemory
    far_bytes: Array

    def row(self, n: int) -> KernelTime | None:
        """Return one kernel's time; None if not even one block fits on a unit."""
        if self.held.resident[n] == 0:
            return None
        part, held = self.local, self.held
        return KernelTime(
            float(self.seconds[n]), {pipe: float(cycles[n]) for pipe, cycles in self.pipes.items()},
            str(self.bound[n]), int(self.resident[n]), RESOURCES[int(held.limit[n])], int(held.needed[n]),
            int(held.spilled[n]), bool(self.table.rolled[n]),
            LocalMemory(part.accesses[n], part.l1[n], part.l2[n], part.dram[n]),
            float(self.far_bytes[n]),
        )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of each kernel on a device, with the blocks that share a unit: input of the effects below."""

    table: StagedTable
    device: DeviceSpec
    rates: GpuRates
    effects: Effects
    resident: Array
    local: LocalMemory

    @property
    def warps(self) -> Array:
        return ceil_div(self.table.threads, self.device.vector_width)

    @property
    def uneven(self) -> Array:
        """Warps of the busiest scheduler over the mean: each warp stays with one scheduler of its unit."""
        schedulers, warps = int(self.rates.issue), self.warps * self.resident
        if not self.effects.wave_tail:
            return np.ones(self.table.count)
        return ceil_div(warps, schedulers) * schedulers / np.maximum(schedulers, warps)

    @property
    def line_cycles(self) -> float:
        """Cycles of a line's worth of shared memory."""
        return self.rates.line / self.rates.shared

    @cached_property
    def copies(self) -> Fetches:
        """Fetches of the operands."""
        return fetches(self.table, self.device.vector_width, self.rates.sector)

    @cached_property
    def instructions(self) -> Array:
        """Instructions of a thread's fetches, (operands, N)."""
        return self.copies.rounds * self.copies.instructions

    @cached_property
    def points(self) -> Array:
        """Issue slots of a thread's arithmetic in a step."""
        return self.table.outputs * self.table.depth * instructions(self.table.nest.geometry)

    @cached_property
    def reads(self) -> tuple[Array, Array]:
        """Reads of shared memory in a body: a thread's instructions, and a warp's cycles in them."""
        slots, cycles = shared_loads(self.table, self.device.vector_width)
        return slots, cycles if self.effects.bank_conflicts else slots

    @cached_property
    def far(self) -> tuple[Array, Array]:
        """Bytes from memory of the whole kernel, and their share of the bytes that the blocks request."""
        table, nest = self.table, self.table.nest
        if self.effects.coalescing:
            of_step = sectors(nest, table.boxes, self.rates.sector)
        else:
            of_step = table.elements * nest.element_bytes
        of_block = table.steps * of_step
        asked = (np.add.reduce(of_block, axis=0) * table.blocks).astype(float)
        if not self.effects.l2_reuse:
            return asked, np.ones(table.count)
        far = far_traffic(nest, self.device, table.block, self.device.units * self.resident, of_block)
        return far, np.minimum(1.0, far / asked)


def shared_loads(table: StagedTable, warp: int) -> tuple[Array, Array]:
    """Return, for one body, a thread's shared memory read instructions and a warp's cycles in them."""
    nest, mine = table.nest, table.body_boxes
    vectors = read_widths(nest, table.boxes, mine, table.padding, table.block, table.part)
    slots = nest.read_once(mine, table.body) / vectors
    return np.add.reduce(slots, axis=0), np.add.reduce(slots * read_cycles(table, warp, vectors), axis=0)


def compute_cycles(step: Step) -> Array:
    """Return the cycles of a block's multiply-adds in a step."""
    active = step.warps * step.device.vector_width
    return step.points * active / (step.rates.lanes * FMA_SHARE) * step.uneven


def fetch_slots(step: Step) -> Array:
    """Return the issue slots of a thread's fetches: loads, stores, coordinates, guards."""
    table, nest, each = step.table, step.table.nest, step.copies.instructions
    asked = np.where(table.stages > 1, 1, 2)  # what runs ahead goes past the registers in one instruction
    coordinates = np.maximum(0, np.count_nonzero(table.boxes > 1, axis=1) - 1)
    work = COORDINATE_SLOTS * coordinates + GUARD_SLOTS * nest.guarded + nest.arithmetic
    slots = asked * each + (FETCH_SLOTS + work * each) * step.effects.index_arithmetic
    return np.add.reduce(step.copies.rounds * slots, axis=0)


def issue_cycles(step: Step) -> Array:
    """Return the cycles in which the schedulers issue a block's instructions of a step."""
    if not step.effects.issue_rate:
        return np.zeros(step.table.count)
    issue = step.device.limits.issue_per_cycle or step.rates.issue
    slots = step.points + step.table.times * (step.reads[0] + LOOP_SLOTS) + fetch_slots(step) + step.local.accesses
    return slots * step.warps / issue * step.uneven


def shared_cycles(step: Step) -> Array:
    """Return the cycles of shared memory: reads, stores of what is fetched, and what goes through the same memory."""
    cycles = step.copies.conflicts if step.effects.bank_conflicts else 1.0
    stored, copied = np.add.reduce(step.instructions * cycles, axis=0), np.add.reduce(requested(step), axis=0)
    # If L1 is a part of shared memory, global loads take its cycles too.
    beside = copied / step.rates.line * step.line_cycles if unified(step.device) else 0.0
    return step.warps * (step.table.times * step.reads[1] + stored) * step.line_cycles + beside + step.local.l1


def crowded_cycles(device: DeviceSpec, pipes: dict[str, Array]) -> Array | float:
    """Return the cycles by which reads of shared memory and multiply-adds delay one another, beyond other pipes' loss.

    Where multiply-adds can take every issue slot, a read takes the place of one.
    """
    schedulers, most = device.limits.schedulers_per_unit, device.limits.fma_per_cycle
    if not schedulers or not most:
        return 0.0
    slots = schedulers * ceil(most / schedulers)  # schedulers that take more than one multiply-add a cycle issue two
    if most < CROWDED_SHARE * slots:
        return 0.0
    return (CROWDED_OVERLAP_LOSS - STAGED_OVERLAP_LOSS) * np.minimum(pipes["issue"], pipes["shared"])


def requested(step: Step) -> Array:
    """Return the bytes that a step's load instructions ask for, (operands, N)."""
    if step.effects.coalescing:
        return step.copies.requested
    return step.table.elements * step.table.nest.element_bytes


def l2_cycles(step: Step) -> Array:
    """Return the cycles of L2: sectors that a step loads, once each if a unit caches its loads."""
    cached = step.device.limits.global_cache_bytes is not None and step.effects.coalescing
    moved = np.add.reduce(step.copies.moved if cached else requested(step), axis=0)
    return moved / step.rates.l2 + step.local.l2


def dram_cycles(step: Step) -> Array:
    """Return the cycles of memory: a step's share of the bytes that miss L2."""
    far = step.far[0] / (step.table.blocks * step.table.steps) / (step.rates.dram * DRAM_SHARE)
    return far + step.local.dram / DRAM_SHARE


def latency_cycles(step: Step, pipes: dict[str, Array]) -> Array:
    """Return the cycles of a step that one block takes alone: its fetches come, all threads meet, they compute."""
    table, rates = step.table, step.rates
    arrive = np.maximum(pipes["l2"], pipes["dram"])
    busy = np.maximum(np.maximum(pipes["compute"], pipes["issue"]), pipes["shared"])
    busy = busy / np.minimum(1.0, step.warps / rates.issue)
    if step.effects.latency:
        in_flight = np.where(table.nest.guarded, GUARDED_IN_FLIGHT, FETCHES_IN_FLIGHT)
        waits = np.add.reduce(ceil_div(step.instructions, in_flight), axis=0)
        arrive = arrive + waits * fetch_latency(step.device, rates, step.far[1])
        # Two barriers, first operands.
        busy = busy + ((2 + table.times) * rates.shared_latency + step.local.accesses * LOCAL_CYCLES)
    # Fetches that run ahead have the steps between to arrive in.
    ahead = np.maximum(busy, arrive / np.maximum(1, table.stages - 1))
    return np.where(table.stages == 1, arrive + busy, ahead)


def store_cycles(step: Step) -> Array:
    """Return the cycles in which a block's outputs reach memory."""
    table, rates, g = step.table, step.rates, step.table.nest.geometry
    if step.effects.coalescing:
        stored = store_sectors(table, step.device.vector_width, rates.sector) * rates.sector
    else:
        stored = np.minimum(step.device.vector_width, table.threads) * table.store * g.output_bytes
    outputs = table.nest.outputs_whole * g.output_bytes + g.epilogue_bytes
    return np.maximum(
        table.outputs / table.store * step.warps * stored / rates.l2,
        outputs / table.blocks / (rates.dram * DRAM_SHARE),
    )


def staged_times(
    table: StagedTable, device: DeviceSpec, effects: Effects = ALL, registers: Array | None = None
) -> KernelTimes:
    """Return the predicted times of staged kernels.

    Parameters
    ----------
    registers : array, optional
        Compiler's register count per thread, if the caller knows it; else it is estimated.
    """
    rates = GpuRates.of(device, table.nest.geometry.stage.dtype)
    held = residency(table, device, effects, registers)
    resident = np.maximum(1, np.minimum(held.resident, ceil_div(table.blocks, device.units)))
    local = local_memory(table, device, rates, held, resident, effects)
    step = Step(table, device, rates, effects, resident, local)

    # One block, one step.
    pipes = {
        "compute": compute_cycles(step), "issue": issue_cycles(step), "shared": shared_cycles(step),
        "l2": l2_cycles(step), "dram": dram_cycles(step),
    }  # fmt: skip
    throughput = overlapped(list(pipes.values()), STAGED_OVERLAP_LOSS) + crowded_cycles(device, pipes)
    throughput = throughput + STEP_CYCLES / resident * effects.latency
    pipes["latency"] = latency_cycles(step, pipes) / resident
    slowest = np.maximum(throughput, pipes["latency"])

    # The whole grid: how many blocks the busiest unit runs, and how many are there at a time.
    busiest = busiest_unit(device, table.blocks, resident)[0] if effects.wave_tail else table.blocks / device.units
    store = store_cycles(step)
    cycles = busiest * (table.steps * slowest + store + STAGED_BLOCK_CYCLES / resident) + rates.dram_latency
    pipes["store"] = store / table.steps
    seconds = cycles * rates.cycle
    starts = started(device, table.blocks) if effects.block_starts else 0.0
    bound = np.where(seconds > starts, slowest_of(pipes), "blocks")
    seconds = np.maximum(seconds, starts) + device.launch_overhead_us * 1e-6
    seconds = np.where(held.resident == 0, np.inf, seconds)
    return KernelTimes(table, seconds, pipes, bound, held, resident, local, step.far[0])


def staged_time(
    kernel: StagedKernel, device: DeviceSpec, effects: Effects = ALL, registers: int | None = None
) -> KernelTime | None:  # fmt: skip
    """Return the predicted time of a staged kernel, a table of one row; None if not even one block fits on a unit.

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
    known = None if registers is None else np.array([registers])
    return staged_times(StagedTable.of([kernel]), device, effects, known).row(0)


def fetch_latency(device: DeviceSpec, rates: GpuRates, missed: Array) -> Array:
    """Return the cycles of a load if the share `missed` comes from memory and the rest from L2."""
    if not device.has("l2"):
        return missed * 0 + rates.dram_latency
    near = device.level("l2").latency_ns * device.clock_ghz
    return near + (rates.dram_latency - near) * missed
