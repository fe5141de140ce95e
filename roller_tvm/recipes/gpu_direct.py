"""Construction of recipes gpu.direct and gpu.reduce: no reuse worth staging, so only the outermost level is tiled.

Micro-performance models of the GPU recipes that stage nothing: gpu.direct and gpu.reduce.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

from ..device import DeviceSpec
from ..ir import TensorExpression, dtype_bytes
from ..ir.affine import Index
from ..micro_perf.estimate import LevelTime, ProgramEstimate
from ..micro_perf.geometry import Geometry, Operand, Tile, in_memory
from ..micro_perf.gpu import (
    BLOCK_CYCLES,
    IN_FLIGHT,
    GpuRates,
    busiest_unit,
    far_traffic,
    in_waves,
    instructions,
    overlapped,
    sectors,
    started,
)
from ..micro_perf.occupancy import occupancy
from ..micro_perf.registers import register_cap
from ..roller.alignment import Rejection, capacity, execution_unit
from ..roller.rprogram import RProgram
from .search import Search

#: Dtypes whose vectors in CUDA, or TVM's conversions to them, have at most four elements.
NO_LONG_VECTORS = frozenset({"float64", "int64", "uint64", "bool"})
NO_LOOP = Rejection("execution unit", "an output axis to give to threads", "none", "keep a dimension of one element")


def linear_tile(geometry: Geometry, length: int, axes: Sequence[int] | None = None) -> Tile:
    """Return the box of axes that `length` consecutive outputs cover (innermost first); reductions whole.

    ``axes`` are those to cover, all spatial ones by default.
    """
    tile = list(geometry.extents)
    for i in reversed(geometry.spatial if axes is None else axes):
        tile[i] = max(1, min(geometry.extents[i], length))
        length = ceil(length / geometry.extents[i])
    return tuple(tile)


def _vector_widths(geometry: Geometry, device: DeviceSpec) -> list[int]:
    """Return vector widths at which every operand and the output move whole aligned vectors.

    CUDA has no vectors of more than four 64-bit or boolean values, converted or not.
    """
    widths = [1]
    g = geometry
    types = {g.stage.dtype, *(g.expression.tensors[a.tensor].dtype for op in g.operands for a in op.sources)}
    most = device.vector_bytes // max(g.output_bytes, *(op.element_bytes for op in g.operands), 1)
    if types & NO_LONG_VECTORS:
        most = min(most, 4)
    total = prod(geometry.extents[i] for i in geometry.spatial)
    if geometry.reduce or not geometry.spatial:
        return widths
    last = geometry.spatial[-1]
    for width in (2, 4, 8):
        if width > most or total % width:
            break
        same = all(
            not op.guarded
            and (op.stride_of(last) == 0 or (op.stride_of(last) == 1 and op.dims[-1] == ((last, 1),)))
            and _starts_aligned(geometry, op, width)
            for op in geometry.operands
        )
        linear = all(op.shape == geometry.stage.shape and op.stride_of(last) == 1 for op in geometry.operands)
        if same and (linear or geometry.extents[last] % width == 0):
            widths.append(width)
    return widths


def _starts_aligned(geometry: Geometry, operand: Operand, width: int) -> bool:
    """Return whether vectors of an operand start at multiples of their width: no offset, rows of whole vectors."""
    if operand.stride_of(geometry.spatial[-1]) == 0:
        return True
    for access in operand.sources:
        shape = geometry.expression.tensors[access.tensor].shape
        rows = shape != geometry.stage.shape and prod(shape[:-1]) > 1
        if access.indices and (access.indices[-1].const % width or (rows and shape[-1] % width)):
            return False
    return True


def _own_stage(search: Search) -> Rejection | None:
    """Return a rejection if a thread's sums would need a stage of their own beside the stored one, else None."""
    stage = search.geometry.stage
    if not stage.reduce or stage.results == 1 or search.nest.output != search.nest.anchor:
        return None
    limit = f"none for {stage.results} results that are stored themselves"
    return Rejection("execution unit", "a stage of its own for a thread's sums", limit, "share them among threads")


def construct_direct(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe gpu.direct: threads per block, outputs per thread, vector width."""
    g, device = search.geometry, search.device
    outputs = prod(g.extents[i] for i in g.spatial)
    most = device.limits.max_threads_per_block or 1024
    seen = g if g.reduce else in_memory(g, search.nest.inlined)
    found: list[tuple[RProgram, ProgramEstimate]] = []
    if search.reject(None if g.spatial else NO_LOOP) or search.reject(_own_stage(search)):
        return found
    for vector in _vector_widths(g, device):
        for items in (1, 2, 4):
            threads = device.vector_width
            while threads <= most:
                search.considered += 1
                length = threads * items * vector
                label = f"{threads} threads x {items} x {vector}"
                threads_now, threads = threads, 2 * threads
                if threads_now > device.vector_width and search.reject(
                    capacity("outputs", length, outputs * 2, "use fewer threads"), label
                ):
                    continue
                if search.reject(execution_unit(threads_now, device.vector_width), label):
                    continue
                thread = linear_tile(g, vector)
                estimate = direct_estimate(seen, device, linear_tile(g, length), thread, threads_now, items, vector)
                if estimate is None:
                    continue
                blocks = ceil(outputs / length)
                tiles = (
                    search.rtile("block", linear_tile(g, length)),
                    search.rtile("register", thread),
                )
                choices = (("threads", threads_now), ("items", items), ("vector", vector), ("blocks", blocks))
                found.append((search.program("gpu.direct", tiles, choices), estimate))
    return sorted(found, key=lambda c: c[1].seconds)[: 2 * top]


def streams(geometry: Geometry) -> bool:
    """Return whether each element of some operand is used once, as in a matrix-vector product: bound by memory.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> [streams(Geometry.of(matmul(m=m, n=1000, k=2048), "matmul")) for m in (1, 64)]
    [True, False]
    """
    every = {i for i, e in enumerate(geometry.extents) if e > 1}
    return any(every <= op.axes for op in geometry.operands)


def _unguarded(search: Search, outputs: int, rows: int, whole: bool) -> Rejection | None:
    """Return a rejection if the last block's threads would store rows beyond the output, else None.

    TVM does not guard the store of a reduction over threads unless another stage follows. If the sums are not read
    `whole`, it computes and allocates only the part that is.
    """
    if rows > 1 and not whole:
        return Rejection("tensor shape", f"{rows} rows", "1 if sums are read in part", "read all of them")
    if outputs % rows == 0 or search.nest.output != search.nest.anchor:
        return None
    required = f"a guard for {rows} rows of {outputs}"
    return Rejection("tensor shape", required, "none for sums stored as they are", "let the rows divide the outputs")


def _read_whole(expression: TensorExpression, name: str) -> bool:
    """Return whether every stage that reads a tensor, directly or through others, reads all of it."""
    tensors, reached = expression.tensors, {name}
    for stage in expression.stages:
        extents = {axis.name: axis.extent for axis in stage.axes}
        for access in stage.reads:
            if access.tensor not in reached:
                continue
            reached.add(stage.name)
            dimensions = zip(access.indices, tensors[access.tensor].shape, strict=True)
            if not all(_spans(index, extents, dimension) for index, dimension in dimensions):
                return False
    return True


def _spans(index: Index, extents: Mapping[str, int], dimension: int) -> bool:
    """Return whether an index goes from a dimension's first element to its last; assumed if it is opaque or clamped."""
    if index.opaque or index.clamped:
        return True
    ends = [(extents[axis] - 1) * coefficient for axis, coefficient in index.terms]
    least = (index.const + sum(e for e in ends if e < 0)) // index.divisor
    most = (index.const + sum(e for e in ends if e > 0)) // index.divisor
    return least <= 0 and most >= dimension - 1


def shuffled(dtype: str) -> Rejection | None:
    """Return a rejection if shuffles cannot move a dtype that lanes reduce together, else None.

    Other dtypes go through shared memory. TVM then relies on the lanes of a warp to run in step, or has barriers
    that only half of the warp reaches.

    Examples
    --------
    >>> print(shuffled("int8"))
    execution unit: needs shuffles of int8, limit float16, and types of 4 and 8 bytes (give each sum a thread)
    """
    if dtype == "float16" or dtype_bytes(dtype) in (4, 8):
        return None
    limit = "float16, and types of 4 and 8 bytes"
    return Rejection("execution unit", f"shuffles of {dtype}", limit, "give each sum a thread")


def _moved(geometry: Geometry) -> list[str]:
    """Return the dtypes exchanged by warp shuffles: the stage's own, and its inputs' if it has several results."""
    stage, tensors = geometry.stage, geometry.expression.tensors
    read = [tensors[access.tensor].dtype for access in stage.reads] if stage.results > 1 else []
    return list(dict.fromkeys([stage.dtype, *read]))


def construct_reduce(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe gpu.reduce: lanes that share a reduction, rows of them in a block."""
    g, device = search.geometry, search.device
    if not g.reduce or g.stage.indivisible or (g.stage.combiner == "other" and g.stage.results == 1):
        return []
    if any(search.reject(shuffled(dtype)) for dtype in _moved(g)):
        return []
    # Stages after the reduction would have no loop either, and be left to the host.
    if search.reject(None if g.spatial or search.nest.output == search.nest.anchor else NO_LOOP, search.nest.output):
        return []
    length = prod(g.extents[i] for i in g.reduce)
    outputs = prod(g.extents[i] for i in g.spatial)
    whole = _read_whole(g.expression, search.nest.anchor)
    most = device.limits.max_threads_per_block or 1024
    found: list[tuple[RProgram, ProgramEstimate]] = []
    lanes = device.vector_width
    # If gpu.direct does not apply, even a reduction shorter than a warp is shared.
    longest = 2 * length if g.spatial and g.stage.results == 1 else max(2 * length, lanes + 1)
    while lanes <= most and lanes < longest:
        rows = 1
        while rows * lanes <= most and rows < 2 * outputs:
            search.considered += 1
            estimate = reduce_estimate(g, device, rows, lanes)
            if search.reject(_unguarded(search, outputs, rows, whole), f"{lanes} lanes x {rows} rows"):
                estimate = None
            if estimate is not None:
                block = tuple(e if i in g.reduce else 1 for i, e in enumerate(g.extents))
                block = linear_tile(g, rows) if rows > 1 else block
                thread = tuple(1 for _ in g.extents)
                tiles = (
                    search.rtile("block", block),
                    search.rtile("register", thread),
                )
                choices = (("threads", rows * lanes), ("lanes", lanes), ("rows", rows))
                found.append((search.program("gpu.reduce", tiles, choices), estimate))
            rows *= 2
        lanes *= 2
    return sorted(found, key=lambda c: c[1].seconds)[: 2 * top]


# Issue slots of an output's own address, and of one load's; a padding guard's share of comparisons per load once
# the window is unrolled.
OUTPUT_OVERHEAD = 20
LOAD_OVERHEAD = 1
GUARD_OVERHEAD = 5
#: Iterations of a reduction that gpu.direct unrolls.
UNROLL_MOST = 64
# Registers of a thread (compiled for sm_75 to sm_90): without a reduction; with one that is unrolled, loading all of
# it ahead, guards and all; with a loop.
POINTWISE, UNROLLED, LOOP = 10, 14, 26
PER_GUARD = 1.8
# Registers of a special function (exp, erf) beside its argument, one element at a time (compiled likewise).
SPECIAL = 8
# Registers of a reduction shared by threads: the compiler unrolls a thread's rounds and loads ahead.
STREAMS, PER_ROUND = 20, 1.7
# Threads that share a reduction meet in a tree of shuffles; a step is a shuffle and an operation.
TREE_SLOTS = 2


def direct_estimate(geometry: Geometry, device: DeviceSpec, block: Tile, thread: Tile, threads: int,
                    items: int, vector: int) -> ProgramEstimate | None:
    """Return the predicted time of recipe gpu.direct, or None if not even one block fits on a unit.

    Every thread computes its outputs from global memory.

    Parameters
    ----------
    block, thread : Tile
        Boxes around the outputs of a block, and around those of one item of a thread.
    threads, items, vector : int
        A block computes ``threads * items * vector`` consecutive outputs.
    """
    rates = GpuRates.of(device, geometry.stage.dtype)
    extents, spatial = geometry.extents, geometry.spatial
    warps = ceil(threads / device.vector_width)
    reduction = prod(extents[i] for i in geometry.reduce)
    arithmetic = instructions(geometry)
    registers = direct_registers(geometry, thread, items, vector)
    registers = min(registers, register_cap(device, threads) or registers)
    resident, limit = occupancy(device, threads, registers, 0)
    if resident == 0:
        return None
    outputs = prod(extents[i] for i in spatial)
    blocks = ceil(outputs / (threads * items * vector))
    resident = min(resident, ceil(blocks / device.units))
    busiest, waves = busiest_unit(device, blocks, resident)
    whole = tuple(extents[i] if i in geometry.reduce else block[i] for i in range(len(extents)))
    # Consecutive outputs go on in the next row: there are fewer blocks than boxes of their length that cover each row.
    share = min(1.0, blocks / geometry.tiles(block, spatial))
    per_box = [
        int(sectors(op, op.box(whole), rates.sector) * _rows_read(op, whole) * share) for op in geometry.operands
    ]
    far = far_traffic(geometry, device, whole, device.units * resident, per_box)
    again = [_fetched_again(geometry, op, device, rates, threads * resident) for op in geometry.operands]
    near = sum(n * times for n, times in zip(per_box, again, strict=True)) * geometry.tiles(block, spatial) / blocks

    # One item of a thread: `vector` outputs.
    own = tuple(extents[i] if i in geometry.reduce else thread[i] for i in range(len(extents)))
    loads = slots = wavefronts = 0.0
    for op in geometry.operands:
        count = prod(op.box(own))
        wide = vector if vector > 1 and _contiguous(geometry, op) else 1
        loads += count / wide
        slots += count / wide * (1 + LOAD_OVERHEAD) + count * (GUARD_OVERHEAD * op.guarded + op.arithmetic)
        wavefronts += count / wide * _wavefronts(geometry, op, thread, wide, rates, threads / device.vector_width)
    slots += vector * (reduction * arithmetic + geometry.epilogue_flops) + OUTPUT_OVERHEAD
    compute = items * vector * reduction * arithmetic * threads / rates.lanes
    issue = items * slots * warps / rates.issue
    l1 = items * (wavefronts + vector) * warps * rates.line / rates.shared
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    dram = (far + store_bytes) / blocks / rates.dram
    l2 = (near + store_bytes / blocks) / rates.l2
    rounds = max(1.0, items * loads / min(max(1.0, items * loads), float(IN_FLIGHT)))
    chain = rates.dram_latency * rounds + issue * rates.issue / min(warps, rates.issue)
    terms = {"compute": compute, "issue": issue, "dram": dram, "l2": l2, "shared": l1}
    seconds, bound = in_waves(device, rates, terms, chain, resident, busiest, blocks)
    scale = blocks / device.units * rates.cycle
    levels = (
        LevelTime(device.far.name, far + store_bytes, dram * scale),
        *([LevelTime("l2", near * blocks + store_bytes, l2 * scale)] if device.has("l2") else []),
    )
    return ProgramEstimate(
        seconds, compute * scale, levels, bound, geometry.stage.flops + geometry.epilogue_flops * outputs, blocks,
        waves, resident, limit, threads, registers, 0, blocks / max(1, busiest * device.units),
    )  # fmt: skip


def direct_registers(geometry: Geometry, thread: Tile, items: int, vector: int) -> int:
    """Return the registers of a thread of recipe gpu.direct (see ``direct_estimate``)."""
    if not geometry.reduce:
        ahead = vector * items * sum(1.0 + PER_GUARD * op.guarded for op in geometry.operands)
        inside = any(op.functions for op in geometry.operands)
        special = inside or geometry.stage.functions or geometry.epilogue_functions
        return POINTWISE + vector + ceil(ahead) + (SPECIAL if special else 0)
    if prod(geometry.extents[i] for i in geometry.reduce) > UNROLL_MOST:
        return LOOP + vector * (1 + len(geometry.operands))
    own = tuple(e if i in geometry.reduce else thread[i] for i, e in enumerate(geometry.extents))
    loads = [op.elements(own) * (1 + PER_GUARD * op.guarded) for op in geometry.operands]
    return max(LOOP, UNROLLED + vector + ceil(sum(loads)))


def _rows_read(operand: Operand, tile: Tile) -> float:
    """Return the share of a box's rows that are read: strides wider than the window skip some."""
    share = 1.0
    for dim, extent in list(zip(operand.dims, operand.box(tile), strict=True))[:-1]:
        if dim:
            share *= min(1.0, prod(tile[a] for a, _ in dim) / extent)
    return share


def _contiguous(geometry: Geometry, operand: Operand) -> bool:
    """Return whether neighbouring outputs read neighbouring elements."""
    return bool(geometry.spatial) and operand.stride_of(geometry.spatial[-1]) == 1 and not operand.guarded


def _fetched_again(geometry: Geometry, operand: Operand, device: DeviceSpec, rates: GpuRates, threads: int) -> float:
    """Return how often a sector is loaded from L2 if one thread reads it, element by element, during its reduction.

    Once, while the unit's cache has room for the lines of all its threads; once per element, if the lines take twice
    that room.
    """
    along = geometry.reduce[-1] if geometry.reduce else None
    if along is None or not geometry.spatial or operand.stride_of(along) != 1:
        return 1.0
    if operand.stride_of(geometry.spatial[-1]) * operand.element_bytes < rates.sector:
        return 1.0
    cache = device.limits.global_cache_bytes
    lost = min(1.0, max(0.0, threads * rates.line / cache - 1)) if cache else 0.0
    elements = min(rates.sector // operand.element_bytes, prod(geometry.extents[i] for i in geometry.reduce))
    return 1 + (elements - 1) * lost


def _wavefronts(
    geometry: Geometry, operand: Operand, thread: Tile, wide: int, rates: GpuRates, warp_share: float
) -> float:  # fmt: skip
    """Return the cycles of one load instruction of a warp at L1: lines touched, or one if all lanes read the same.

    ``warp_share`` is the number of threads in a block, in warps.
    """
    if not geometry.spatial:
        return 1.0
    step = operand.stride_of(geometry.spatial[-1])
    if step == 0:
        return float(wide)
    lines = min(float(rates.line // rates.sector * 4), wide * step * max(1, thread[geometry.spatial[-1]] // wide)
                * operand.element_bytes / 4) * min(1.0, warp_share)
    windowed = any(len(dim) > 1 for dim in operand.dims)  # starts anywhere in a line
    return max(1.0, lines) + (0.5 if windowed else 0.0)


def reduce_shared_bytes(geometry: Geometry, device: DeviceSpec, rows: int, lanes: int) -> int:
    """Return the shared bytes of a reduction over threads: 0 within a warp, else a partial per warp and a result.

    Follows the allocation of TVM's cross-thread reduction; checked against compiled kernels for 11 (lanes, rows).
    """
    warp = device.vector_width
    return 0 if lanes <= warp else geometry.accumulator_bytes * rows * (1 + lanes // warp)


def reduce_estimate(geometry: Geometry, device: DeviceSpec, rows: int, lanes: int) -> ProgramEstimate | None:
    """Return the predicted time of recipe gpu.reduce: `lanes` threads a row, `rows` rows a block; None if none fits."""
    rates = GpuRates.of(device, geometry.stage.dtype)
    threads = rows * lanes
    length = prod(geometry.extents[i] for i in geometry.reduce)
    rounds = ceil(length / lanes)
    registers = ceil(STREAMS + PER_ROUND * min(rounds, UNROLL_MOST))
    registers = min(registers, register_cap(device, threads) or registers)
    shared_bytes = reduce_shared_bytes(geometry, device, rows, lanes)
    resident, limit = occupancy(device, threads, registers, shared_bytes)
    if resident == 0:
        return None
    outputs = prod(geometry.extents[i] for i in geometry.spatial)
    blocks = ceil(outputs / rows)
    resident = min(resident, ceil(blocks / device.units))
    busiest, waves = busiest_unit(device, blocks, resident)
    warps = ceil(threads / device.vector_width)
    store_bytes = outputs * geometry.output_bytes + geometry.epilogue_bytes
    waste = _reduce_waste(geometry, lanes, rates.sector)
    far = sum(op.source_bytes for op in geometry.operands) * waste + store_bytes
    # Operands that do not depend on the row are read by all of a block's rows from the nearest cache.
    near = waste * length * sum(
        op.element_bytes * (outputs if op.axes & geometry.spatial_set else blocks) for op in geometry.operands
    )
    dram, l2 = far / blocks / rates.dram, near / blocks / rates.l2
    doublings = lanes.bit_length() - 1
    loads = len(geometry.operands) * (1 + LOAD_OVERHEAD)
    issue = (rounds * (instructions(geometry) + loads) + TREE_SLOTS * doublings) * warps / rates.issue
    chain = rates.dram_latency * max(1.0, rounds / IN_FLIGHT) + doublings * rates.shared_latency
    per_block = max(overlapped([issue, dram, l2]), chain / resident) + BLOCK_CYCLES
    busy, starts = (busiest * per_block + rates.dram_latency) * rates.cycle, started(device, blocks)
    seconds = max(busy, starts) + device.launch_overhead_us * 1e-6
    terms = {"issue": issue, device.far.name: dram, "l2": l2, "latency": chain / resident}
    bound = max(terms, key=lambda k: terms[k]) if busy > starts else "blocks"
    scale = blocks / device.units * rates.cycle
    return ProgramEstimate(
        seconds, rounds * threads * instructions(geometry) / rates.lanes * scale,
        (LevelTime(device.far.name, far, dram * scale),), bound,
        geometry.stage.flops + geometry.epilogue_flops * outputs, blocks, waves, resident, limit, threads,
        registers, shared_bytes, blocks / max(1, busiest * device.units),
    )  # fmt: skip


def _reduce_waste(geometry: Geometry, lanes: int, sector: int) -> float:
    """Return the bytes moved per byte used if `lanes` neighbours walk along the innermost reduction axis."""
    last, worst = geometry.reduce[-1], 1.0
    for op in geometry.operands:
        step = op.stride_of(last)
        if step > 1:
            worst = max(worst, min(sector, step * op.element_bytes) / op.element_bytes)
        elif step == 1:
            run = min(lanes, geometry.extents[last]) * op.element_bytes
            worst = max(worst, ceil(run / sector) * sector / run)
    return worst
