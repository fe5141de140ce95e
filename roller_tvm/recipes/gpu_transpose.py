"""Construction of layout changes on a GPU: output and input run along different axes in memory.

A block fetches a tile along the input's rows and stores it along the output's. In between the tile is in shared memory,
with padded rows, so that walking down a column meets every bank (rule 3).

Micro-performance model of recipe gpu.transpose: tiles turned in shared memory, both ways in whole transactions.

Recipe gpu.transpose as schedule steps::

tiles.. -> blockIdx   inside a tile: serial  thread -> threadIdx.x      output, along its own rows
                      serial  fetch -> threadIdx.x                      staged inputs, along theirs, in shared
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil, prod

import numpy as np

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.estimate import LevelTime, ProgramEstimate
from ..micro_perf.geometry import Geometry, Operand, Tile, operand_of
from ..micro_perf.gpu import GpuRates, busiest_unit, far_traffic, in_waves, sectors
from ..micro_perf.gpu_access import bank_cycles, strides_of
from ..micro_perf.gpu_constants import (
    AHEAD_MOST,
    AHEAD_REGISTERS,
    FETCH_OVERHEAD,
    IN_FLIGHT,
    LOAD_OVERHEAD,
    PER_ITEM,
    TURN_REGISTERS,
)
from ..micro_perf.gpu_nest import GpuNest, columns
from ..micro_perf.occupancy import occupancy
from ..micro_perf.registers import register_cap
from ..micro_perf.storage import alignments, storage_elements
from ..roller.alignment import aligned_extents, bank_padding, capacity, execution_unit
from ..roller.loops import fuse, open_parts
from ..roller.partition import NestShape, is_identity
from ..roller.rprogram import RProgram
from ..roller.steps import Bind, CacheRead, ComputeAt, Inline, Reorder, Split, Step, StorageAlign
from .gpu_loops import fetch
from .gpu_nests import tiles_loops
from .recipe import Context, Fit, Ranked, Recipe

#: Most elements of a tile along one axis (breadth of the search): whole transactions both ways, and some more.
TILE_MOST = 128
#: Share of a tile that may stand over the edge: a guard there costs a comparison, and nothing is computed.
STANDS_OVER = 0.25


class GpuTranspose(Recipe):
    """Tiles turned in shared memory."""

    name = "gpu.transpose"
    says = "blocks turn tiles in shared memory: read along the input's rows, stored along the output's"

    def applies(self, ctx: Context) -> Fit:
        if not tiles_loops(ctx) or ctx.device.kind != "gpu" or ctx.geometry.reduce:
            return Fit.NO
        return Fit.LAST_RESORT if ctx.geometry.is_contraction() else Fit.YES

    def construct(self, ctx: Context, top: int) -> Ranked:
        """Return ranked candidates of recipe gpu.transpose: tiles of both axes, threads."""
        g, device, nest = ctx.geometry, ctx.device, ctx.nest
        if nest.anchor != nest.output or any(a.fused_of for a in g.stage.axes):
            return []
        read = reading(g, nest.inlined)
        if not read.staged or g.vector_axis is None or not device.has("shared"):
            return []
        staged, others, banks = read.staged, read.others, device.level("shared")
        largest = max(staged, key=lambda op: op.source_bytes)
        there, here = input_run(g, largest), [i for i in reversed(g.spatial) if g.extents[i] > 1]
        most_shared = device.limits.shared_per_block_bytes or banks.capacity_bytes
        found: Ranked = []
        for wide, deep in product(runs(g, here), runs(g, there)):
            both = wide | deep
            # Through a reshape TVM finds the region of whole axes only.
            if set(wide) & set(deep) or (read.reshaped and any(both[i] < g.extents[i] for i in both)):
                continue
            tile = tuple(both.get(i, 1) for i in range(len(g.extents)))
            if not g.stage.is_box(tile):
                continue
            padding = tuple(
                bank_padding(op.box(tile)[-1], 1, banks.banks or 1, max(1, (banks.bank_bytes or 4) // op.element_bytes))
                if prod(op.box(tile)[:-1]) > 1 else 0
                for op in staged
            )
            threads = device.vector_width
            while threads <= min(prod(tile), device.limits.max_threads_per_block or threads):
                ctx.considered += 1
                shape, label = TurnedShape(tile, threads, padding), f"tile {tile} {threads} threads"
                threads_now, threads = threads, 2 * threads
                if ctx.reject(execution_unit(threads_now, device.vector_width), label):
                    continue
                shared = turned_shared_bytes(staged, shape)
                if ctx.reject(capacity("shared memory of a block", shared, most_shared), label):
                    break
                estimate = transpose_estimate(g, device, staged, others, shape)
                if estimate is None:
                    continue
                names = {op.name: p for op, p in zip(staged, padding, strict=True)}
                tiles = (ctx.rtile("shared", tile, {n: p for n, p in names.items() if p}),
                         ctx.rtile("register", tuple(1 for _ in tile)))
                choices = (("threads", threads_now), ("blocks", estimate.blocks))
                found.append((ctx.program("gpu.transpose", tiles, choices, tuple(names)), estimate))
        return sorted(found, key=lambda c: c[1].seconds)[: 2 * top]

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        """Return the steps of recipe gpu.transpose."""
        steps: list[Step] = [Inline(name) for name in program.inlined]
        geometry = Geometry.of(expression, program.anchor, program.inlined, program.output)
        shared, output, threads = program.tile("shared"), expression.stage(program.output), program.choice("threads")
        tile, padding, out = tuple(shared[a] for a in geometry.axes), dict(shared.padding), output.name
        opened, loops = open_parts(out, output.spatial)
        steps += opened
        outer: list[str] = []
        inner: list[str] = []
        for axis, loop in zip(output.spatial, loops, strict=True):
            if shared[axis.name] == 1:
                outer.append(loop)
            else:
                steps.append(Split(out, loop, (shared[axis.name],), (f"{loop}.b", f"{loop}.t")))
                outer.append(f"{loop}.b")
                inner.append(f"{loop}.t")
        steps.append(Reorder(out, (*outer, *inner)))
        block = fuse(steps, out, outer, "block")
        steps.append(Bind(out, block, "blockIdx.x"))
        # Before the tile is one loop of rounds of threads: these may go past its end, and TensorIR would fetch that.
        for op in reading(geometry, program.inlined).staged:
            staged = f"{op.name}.shared"
            dims = tuple(f"d{n}" for n in range(len(op.shape)))
            readers = tuple(s.name for s in expression.consumers(op.name) if s.name in (*program.inlined, out))
            steps += [CacheRead(op.name, "shared", readers, staged), ComputeAt(staged, out, block)]
            steps += [
                StorageAlign(staged, f"d{dim}", factor, 0)
                for dim, factor in alignments(op.box(tile), padding.get(op.name, 0), 1)
            ]
            steps += fetch(staged, dims, threads, 1)
        whole = fuse(steps, out, inner, "tile")
        steps += [Split(out, whole, (threads,), ("serial", "thread")), Bind(out, "thread", "threadIdx.x")]
        return steps


@dataclass(frozen=True)
class Reading:
    """Reads of a nest without reduction, by its output's axes: operands turned in shared memory, and others."""

    staged: tuple[Operand, ...] = ()
    others: tuple[Operand, ...] = ()
    reshaped: bool = False  # on the way from the output to what is staged axes are taken apart or put together


def reading(geometry: Geometry, inlined: tuple[str, ...]) -> Reading:
    """Return the reads of a nest; if a reshape hides an input's axes, the turned operand is the stage that has them."""
    expression, position = geometry.expression, {a: i for i, a in enumerate(geometry.axes)}
    staged: list[Operand] = []
    within: set[str] = set()  # tensors that a staged stage reads
    raw = expression.resolve(geometry.stage, inlined)
    names = [a.tensor for a in raw]
    order = [s.name for s in expression.stages if s.name in inlined]
    read = {s: {a.tensor for a in expression.resolve(expression.stage(s), inlined)} for s in order}
    for access in raw:
        name = access.tensor
        if name in within or names.count(name) > 1:
            continue  # what is read in two ways would have two tiles
        if turned(geometry, operand_of(expression, access, position, ())) is None:
            continue
        for candidate in (name, *order):
            below = read.get(candidate, {candidate})
            if name not in below:
                continue
            reads = [a for a in expression.resolve(geometry.stage, set(inlined) - {candidate}) if a.tensor == candidate]
            op = operand_of(expression, reads[0], position, ()) if len(reads) == 1 else None
            if op is not None and plain(op) and turned(geometry, op) is not None:
                staged.append(op)
                within |= below
                break
    downstream = [s for s in expression.stages if s.name in inlined and s.name not in {op.name for op in staged}]
    reshaped = any(a.part_of for s in (*downstream, geometry.stage) for a in s.axes)
    others = tuple(operand_of(expression, a, position, ()) for a in raw if a.tensor not in within)
    return Reading(tuple(staged), others, reshaped)


def plain(operand: Operand) -> bool:
    """Return whether each dimension is one axis: then TVM finds the region of a tile exactly."""
    return all(index.is_affine and len(index.terms) <= 1 for index in operand.access.indices) and all(
        c == 1 for dim in operand.dims for _, c in dim
    )


def turned(geometry: Geometry, operand: Operand) -> int | None:
    """Return the axis along which an operand runs in memory, if the output runs along another one; else None."""
    last = geometry.vector_axis
    affine = all(index.is_affine for index in operand.access.indices)
    if last is None or operand.guarded or not affine or len(operand.shape) < 2 or operand.stride_of(last) <= 1:
        return None
    along = [i for i in geometry.spatial if operand.stride_of(i) == 1 and geometry.extents[i] > 1]
    return along[0] if len(along) == 1 else None


def turns(expression: TensorExpression, nest: NestShape) -> bool:
    """Return whether a nest changes the memory order of its data."""
    stage = expression.stage(nest.anchor)
    if stage.reduce or nest.anchor != nest.output:
        return False
    if all(is_identity(access, stage) for access in expression.resolve(stage, nest.inlined)):
        return False
    geometry = Geometry.of(expression, nest.anchor, nest.inlined, nest.output)
    return bool(reading(geometry, nest.inlined).staged)


def input_run(geometry: Geometry, operand: Operand) -> list[int]:
    """Return the axes that walk an operand element by element, innermost first, up to the first gap."""
    found: list[int] = []
    length = 1
    while True:
        following = [i for i in geometry.spatial if geometry.extents[i] > 1 and operand.stride_of(i) == length]
        if len(following) != 1 or following[0] in found:
            return found
        found.append(following[0])
        length *= geometry.extents[following[0]]


def runs(geometry: Geometry, axes: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield extents of a tile along a run: part of the first axis, or the first whole and part of the next, ..."""
    whole: dict[int, int] = {}
    for axis in axes:
        room = TILE_MOST // prod(whole.values())
        for extent in aligned_extents(geometry.extents[axis], 0.0 if whole else STANDS_OVER, most=room):
            if extent > 1:
                yield whole | {axis: extent}
        if geometry.extents[axis] > room:
            return
        whole[axis] = geometry.extents[axis]




@dataclass(frozen=True)
class TurnedShape:
    """A candidate of recipe gpu.transpose: extents per axis position."""

    tile: Tile
    threads: int
    padding: tuple[int, ...]  # per staged operand, elements added to a row


def turned_shared_bytes(staged: Sequence[Operand], shape: TurnedShape) -> int:
    """Return the shared memory of a block in bytes: the staged boxes with padded rows."""
    total = 0
    for op, padding in zip(staged, shape.padding, strict=True):
        box = op.box(shape.tile)
        total += storage_elements(box, alignments(box, padding, 1)) * op.element_bytes
    return total


def turn_cycles(
    geometry: Geometry, device: DeviceSpec, operand: Operand, tile: Tile, padding: int, threads: int
) -> int:
    """Return the cycles in which a warp reads its part of a tile from shared memory; lanes of one bank wait.

    Padding separates the rows that neighbouring lanes read; if whole rows lie between them, some conflicts remain.
    """
    level, box = device.level("shared"), operand.box(tile)
    rows = strides_of([*box[:-1], box[-1] + padding])
    steps = tuple(
        sum(c * row for dim, row in zip(operand.dims, rows, strict=True) for axis, c in dim if axis == i)
        for i in geometry.spatial
    )
    lanes, extents = min(device.vector_width, threads, prod(tile)), tuple(tile[i] for i in geometry.spatial)
    return _lanes_of_one_bank(lanes, extents, steps, operand.element_bytes, level.bank_bytes or 4, level.banks or 1)


@cache
def _lanes_of_one_bank(
    lanes: int, extents: tuple[int, ...], steps: tuple[int, ...], element_bytes: int, bank_bytes: int, banks: int
) -> int:
    """Return the cycles of lanes that walk a tile, `steps` elements apart along each axis."""
    at = np.unravel_index(np.arange(lanes), extents)
    address = sum((a * step for a, step in zip(at, steps, strict=True)), start=np.zeros(lanes, np.int64))
    return int(bank_cycles((address * element_bytes // bank_bytes)[None], banks)[0])


def turn_registers(items: int) -> int:
    """Return the registers of a thread that moves `items` elements of a tile.

    Examples
    --------
    >>> turn_registers(4), turn_registers(16), turn_registers(256)
    (28, 44, 140)
    """
    return max(
        TURN_REGISTERS + PER_ITEM * min(items, IN_FLIGHT), AHEAD_REGISTERS + PER_ITEM * min(items, AHEAD_MOST)
    )


def transpose_estimate(
    geometry: Geometry, device: DeviceSpec, staged: Sequence[Operand], others: Sequence[Operand], shape: TurnedShape
) -> ProgramEstimate | None:
    """Return the predicted time of recipe gpu.transpose, or None if not even one block fits on a unit.

    Parameters
    ----------
    staged, others : sequence of Operand
        Reads from memory, in terms of the output's axes: turned in shared memory, and read in place.
    """
    rates = GpuRates.of(device, geometry.stage.dtype)
    tile, threads = shape.tile, shape.threads
    elements, outputs = prod(tile), prod(geometry.extents)
    items = ceil(elements / threads)
    registers = turn_registers(items) + len(others)
    registers = min(registers, register_cap(device, threads) or registers)
    shared = turned_shared_bytes(staged, shape)
    resident, limit = occupancy(device, threads, registers, shared)
    if resident == 0:
        return None
    blocks = geometry.tiles(tile, geometry.spatial)
    resident = min(resident, ceil(blocks / device.units))
    busiest, waves = busiest_unit(device, blocks, resident)

    seen = Geometry(geometry.expression, geometry.stage, (*staged, *others), 0, 0, geometry.output_bytes)
    nest, block = GpuNest(seen), columns([tile], len(tile))
    moved = sectors(nest, nest.boxes(block), rates.sector)
    far = float(far_traffic(nest, device, block, np.array([device.units * resident]), moved)[0])
    last = geometry.vector_axis
    run = (tile[last] if last is not None else 1) * geometry.output_bytes
    waste = ceil(run / rates.sector) * rates.sector / run
    store_bytes = outputs * geometry.output_bytes * waste
    fetched = sum(op.elements(tile) for op in staged)
    arithmetic = geometry.stage.flops_per_point + geometry.epilogue_flops
    arithmetic += sum(op.arithmetic for op in geometry.operands)
    warps = ceil(threads / device.vector_width)
    slots = fetched / threads * (2 + FETCH_OVERHEAD) + items * (2 + FETCH_OVERHEAD + arithmetic)
    slots += items * len(others) * (1 + LOAD_OVERHEAD)
    issue = slots * warps / rates.issue
    turned = sum(
        turn_cycles(geometry, device, op, tile, padding, threads)
        for op, padding in zip(staged, shape.padding, strict=True)
    )
    bank_time = (fetched + elements * turned) * geometry.output_bytes / rates.shared
    near = float(moved.sum())
    dram = (far + store_bytes) / blocks / rates.dram
    l2 = (near + store_bytes / blocks) / rates.l2
    alone = rates.dram_latency * max(1.0, items / IN_FLIGHT) + 2 * rates.shared_latency + max(dram, l2)
    alone += issue * rates.issue / min(warps, rates.issue)
    terms = {"issue": issue, device.far.name: dram, "l2": l2, "shared": bank_time}
    seconds, bound = in_waves(device, rates, terms, alone, resident, busiest, blocks)
    scale = blocks / device.units * rates.cycle
    levels = (
        LevelTime(device.far.name, far + store_bytes, dram * scale),
        *([LevelTime("l2", near * blocks + store_bytes, l2 * scale)] if device.has("l2") else []),
        LevelTime("shared", (fetched + elements) * geometry.output_bytes * blocks, bank_time * scale),
    )
    return ProgramEstimate(
        float(seconds), 0.0, levels, str(bound), int(arithmetic * outputs), blocks,
        waves, resident, limit, threads, registers, shared, blocks / (busiest * device.units),
    )  # fmt: skip