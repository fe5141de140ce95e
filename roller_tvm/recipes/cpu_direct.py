"""Construction of recipe cpu.direct: vectorised rows with outer rows in parallel, or one loop shared by threads.

Micro-performance model of recipe cpu.direct: rows of vectors, memory traffic once.

Recipe cpu.direct: an rProgram as schedule steps.

Shape of the loops::

    cpu.direct   outer.. -> parallel   rest   v -> vector                      output; anchor inside
                 last -> parallel                                              if no vector divides the only loop
                 outer.. -> parallel   rest   run   v -> vector                lanes that lie rows apart

In the last one, a transpose, the loop around the vectors goes along the run of neighbours that each lane is in. The
line of a lane then serves all of them, one after the other; in the order of the result it is loaded anew for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import ceil, gcd, log2, prod

import numpy as np

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.cpu import (
    calls_of,
    epilogue_slots,
    instructions,
    launch_seconds,
    left_over,
    prologue_slots,
)
from ..micro_perf.cpu_caches import may_scatter, stored_bytes, stream_cycles, touched_bytes
from ..micro_perf.cpu_constants import (
    CALL,
    EXPOSED,
    GATHERED_SLOTS,
    GUARDED_LOADS,
    HALVED,
    MERGED_LANES,
    RUN_START,
    STAGE_OVERHEAD,
)
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.estimate import LevelColumn, Times
from ..micro_perf.geometry import Geometry, Operand, Tile, in_memory
from ..micro_perf.neighbours import TURNED_BYTES, turned_slots, vector_slots
from ..micro_perf.other_cores import left_alone, torn
from ..roller.alignment import Rejection
from ..roller.candidates import Column
from ..roller.loops import fuse, open_parts, vector_last, vector_name
from ..roller.rprogram import RProgram
from ..roller.steps import ComputeAt, Inline, Parallel, Reorder, Split, Step, Vectorize
from .cpu_tiles import filled, registers_of, single_vectors
from .kinds import Kind
from .recipe import Candidate, Context, CpuRecipe, Fit, Pair


def construct_direct(ctx: Context, top: int) -> list[Candidate]:
    """Return ranked candidates of recipe cpu.direct: how many outer axes run in parallel, how long the vectors are."""
    if not ctx.geometry.reduce:
        ctx = ctx.over(in_memory(ctx.geometry, ctx.nest.inlined))
    g, device = ctx.geometry, ctx.device
    rates = ctx.rates
    last = g.vector_axis
    vectors, alone = [0], ctx.nest.output == ctx.nest.anchor
    uneven = last is not None and g.axes[last] in g.stage.uneven
    if last is not None and not uneven and not ctx.reject(vectorisable(ctx, last)):
        # Shorter ones too: TVM takes vectors apart that straddle blocks of a layout.
        vectors = single_vectors(g.extents[last], rates.lanes, registers_of(g.stage))
        # Unless it is alone, a region is computed inside a vector's loop.
        vectors = [v for v in vectors if alone or g.stage.axes[last].is_box(v)] or [0]
    only = last is not None and not uneven and all(g.extents[i] == 1 for i in g.spatial if i != last)
    run = run_axis(g) if alone and not uneven else None
    kinds: list[tuple[int, int | None]] = [(vector, None) for vector in vectors]
    if last is not None and run is not None:
        over = rates.edge_vectors and max(vectors) < rates.lanes < g.extents[last]
        kinds += [(vector, run) for vector in (*([rates.lanes] if over else []), *vectors) if vector > 1]
    cycles = {
        (vector, along, inside): stage_cycles(g, rates, vector, along, inside)
        for vector, along in kinds for inside in {False, along is not None}
    }  # fmt: skip
    rows: list[tuple[Tile, int, int, int | None]] = []
    for outer in range(len(g.spatial) + 1):
        for vector, along in kinds:
            chunk = chunk_of(g, outer, vector, device.units if only and not vector else 0, along)
            if chunk is not None:
                rows.append((chunk, outer, vector, along))
    if not rows:
        return []
    ctx.considered += len(rows)
    outputs = prod(g.extents[i] for i in g.spatial)
    moved = sum(touched_bytes(g, op, rates.line) for op in g.operands) + stored_bytes(g)
    starts = {vector: run_starts(g, vector, rates) for vector, _ in kinds}
    flops = g.stage.flops + g.epilogue_flops * outputs
    chunks = g.covering(np.array([chunk for chunk, *_ in rows]).T) * np.ones(len(rows), np.int64)
    stage = Cycles.listed([
        cycles[vector, along, along is not None and chunk[along] == g.extents[along]]
        for chunk, _, vector, along in rows
    ])  # fmt: skip
    begun = np.array([starts[vector] for _, _, vector, _ in rows])
    computed = sum(touched_bytes(g, op, rates.line) for op in g.operands if not op.constant)
    waits = np.array([
        torn(g, device, rates, chunk, [*(i for i in g.spatial if i != along), *([] if along is None else [along])])
        for chunk, _, _, along in rows
    ])  # fmt: skip
    times = streamed(
        device, rates, [stage], moved, chunks, flops, starts=begun, written=outputs * g.output_bytes, computed=computed,
        weights=sum(touched_bytes(g, op, rates.line) for op in g.operands if op.constant), waits=waits,
    )  # fmt: skip

    def make(n: int) -> Pair:
        chunk, outer, vector, along = rows[n]
        tile = tuple(e if i in g.reduce else (vector or 1) if i == last else 1 for i, e in enumerate(g.extents))
        tiles = (ctx.rtile("l2", chunk), ctx.rtile("register", tile))
        choices: tuple[tuple[str, int], ...] = (("parallel", outer), ("vector", vector))
        choices += () if along is None else ((f"run:{g.axes[along]}", 1),)
        return ctx.program("cpu.direct", tiles, choices), times.row(n)

    # At equal times, the fewest axes in parallel.
    best = np.argsort(times.seconds, kind="stable")[: 2 * top].tolist()
    lengths = [1 if last is None else rows[n][2] or 1 for n in best]
    return [
        Candidate(float(times.seconds[n]), ("cpu.direct", length), partial(make, n))
        for n, length in zip(best, lengths, strict=True)
    ]


def run_axis(g: Geometry) -> int | None:
    """Return the axis along which neighbours lie whose vectors are gathered from rows; None if there is none.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> g = Geometry.of(operator("transpose", shape=(64, 48), perm=(1, 0)), "transpose")
    >>> g.axes[run_axis(g)], g.axes[g.vector_axis]
    ('i0', 'i1')
    """
    last = g.vector_axis
    if last is None or g.reduce:
        return None
    runs = [i for op in g.operands if last in op.axes and op.stride_of(last) > 1
            for i in g.spatial if i != last and op.stride_of(i) == 1 and g.extents[i] > 1]  # fmt: skip
    return runs[0] if runs else None


def chunk_of(g: Geometry, outer: int, vector: int, units: int, along: int | None = None) -> Tile | None:
    """Return the extents of one task if `outer` loops run in parallel; None if there are not so many.

    Parameters
    ----------
    units : int
        Number of tasks that share the last axis, if it is the only loop and has no vectors; else 0.
    along : int, optional
        Axis of the loop around the vectors.
    """
    last = g.vector_axis
    if units and outer == len(g.spatial):
        return tuple(ceil(e / units) if i == last else e for i, e in enumerate(g.extents))
    # The loops that run in parallel, in order; the vectors of the last axis are one of them.
    leading = [i for i in g.spatial if i not in (last, along) or i == last and 1 < vector < g.extents[last]]
    leading = [*leading, *([] if along is None else [along])][:outer]
    if len(leading) < outer or (outer and g.extents[leading[-1]] == 1):
        return None
    return tuple((vector if i == last else 1) if i in leading else e for i, e in enumerate(g.extents))


def vectorisable(ctx: Context, last: int) -> Rejection | None:
    """Return rule 1's rejection on a CPU if the axis's longest vector leaves over half of the lanes idle, else None."""
    g = ctx.geometry
    lanes = ctx.rates.lanes
    longest = single_vectors(g.extents[last], lanes, registers_of(g.stage))[0]
    if 1 < longest == g.extents[last] or 2 * filled(longest, lanes) >= 1:
        return None
    return Rejection(
        "execution unit",
        f"vectors of {lanes // 2} elements of '{g.axes[last]}'",
        str(longest),
        "pad the axis to a length with a larger divisor",
    )


def block(extent: int) -> int:
    """Return the longest vectors that stay inside the blocks of another layout: the power of two in an extent.

    Examples
    --------
    >>> block(12), block(16), block(80)
    (4, 16, 16)
    """
    return extent & -extent


def block_of(operand: Operand, extent: int) -> int:
    """Return the longest vectors along an axis that stay inside the blocks of an operand with indices that divide it.

    Blocks end with the last dimensions where others lie between them and the first (12 blocks of 16 of 784 x 192 on a
    Granite Rapids, to rows of 192: 8 us in vectors of 16, 41 of 32 and 64).
    """
    last = next((n for n, opaque in enumerate(reversed(operand.opaque)) if not opaque), len(operand.opaque))
    apart = 0 < last < sum(operand.opaque)
    return block(gcd(extent, prod(operand.shape[-last:])) if apart else extent)


@dataclass(frozen=True)
class Cycles:
    """Cycles of one core that overlap: of instructions, of calls, of sums that wait for one another.

    Each is a number, or a column of several candidates.

    Parameters
    ----------
    chain : column of float
        Cycles of the sums if each starts when the one before it ends.
    chains, issued : column of float
        Number of sums, and of instructions.
    """

    instructions: Column
    calls: Column = 0.0
    chain: Column = 0.0
    chains: Column = 0.0
    issued: Column = 0.0

    @classmethod
    def of(cls, stages: Sequence[Cycles]) -> Cycles:
        """Return the sum over stages of many rows: while one stage waits, others (also of another row) use the time."""
        columns = zip(*((s.instructions, s.calls, s.chain, s.issued) for s in stages), strict=True)
        instructions, calls, chain, issued = (sum(column) for column in columns)
        return cls(instructions, calls, chain, reduce(np.maximum, (s.chains for s in stages)), issued)

    @classmethod
    def listed(cls, several: Sequence[Cycles]) -> Cycles:
        """Return the cycles of several candidates as columns."""
        rows = [(c.instructions, c.calls, c.chain, c.chains, c.issued) for c in several]
        return cls(*np.array(rows).T)

    def total(self, window: int) -> Column:
        """Return the cycles of all; a core starts up to `window` instructions, also of later sums, before one ends."""
        ahead = 1 + window * np.divide(self.chains, np.where(np.equal(self.issued, 0), np.inf, self.issued))
        waiting = self.chain / np.maximum(1.0, np.minimum(ahead, self.chains))
        return np.maximum(np.maximum(self.instructions, self.calls), waiting)


def stage_cycles(
    geometry: Geometry, rates: CpuRates, vector: int, along: int | None = None, inside: bool = False
) -> Cycles:
    """Return the cycles of a whole nest in vectors of its last axis, with operands in the nearest cache.

    Parameters
    ----------
    vector : int
        Neighbours along the vector axis that are computed at a time. Up to 1: one by one, unless LLVM itself makes
        vectors of them.
    along : int, optional
        Axis of the loop around the vectors; by default they are in the order of the result.
    inside : bool
        Whether a chunk has that loop as a whole.
    """
    g = geometry
    outputs = prod(g.extents[i] for i in g.spatial)
    last = g.vector_axis
    inner = [  # others: once a row
        op for op in g.operands if last in op.axes or any(op.opaque) or op.axes.intersection(g.reduce)
    ]
    per_point = instructions(g.stage.ops) + sum(prologue_slots(op) for op in inner)
    points = g.stage.points
    contiguous = [
        last is not None
        and op.stride_of(last) in (0, 1)
        and not (any(op.opaque) and vector > block_of(op, g.extents[last]))
        for op in g.operands
    ]
    vectorised = max(1.0, min(vector, rates.lanes)) if last is not None else 1.0
    if g.reduce and not all(contiguous):
        vectorised = 1.0
    if last is not None and vector <= 1 and not g.reduce and all(contiguous) and not any(
        op.guarded or any(op.opaque) for op in inner
    ):
        alone = left_over(g.extents[last], rates.lanes)  # LLVM's own vectors
        vectorised = g.extents[last] / ((g.extents[last] - alone) / rates.lanes + alone)
    # A vector that fills no register is loaded, and stored, in pieces.
    short = 1 < vector < rates.lanes and vectorised > 1
    slots = vector_slots(1, vector) / vectorised if short else 1 / vectorised
    gathered = GATHERED_SLOTS if vectorised > 1 else 1
    turned: float = gathered
    if inside and along is not None and vector > 1:  # several neighbours along the rows at a time
        turned = turned_slots(vector, -(-vector // rates.lanes), g.extents[along]) / vector
    shares = [share_read(op, g.extents) for op in g.operands]
    row = 1 if last is None else g.extents[last]
    loads = sum(
        points * share * (slots if c else turned if is_turned(op, along) else gathered) if op in inner else points / row
        for op, c, share in zip(g.operands, contiguous, shares, strict=True)
    )
    guards = sum(  # one check a vector, or one an element that is loaded alone
        points * share * (1 if last is not None and cuts(op, last, vector) else GUARDED_LOADS / vectorised)
        for op, share in zip(g.operands, shares, strict=True) if op.guarded
    )  # fmt: skip
    calls = points * calls_of(g.stage.ops, *(op.functions for op in inner))
    calls += outputs * calls_of(g.epilogue_functions)
    arithmetic, waits = points / vectorised * per_point, points / vectorised if g.reduce else 0.0
    if merges_lanes(g, vector):
        lanes = points // outputs
        arithmetic = waits = HALVED * outputs * log2(lanes)
        loads = outputs * max(1, lanes / rates.lanes)
    after = outputs * ((vector.bit_count() if short else 1) + epilogue_slots(g)) / vectorised
    return Cycles(
        guards + arithmetic / rates.fma + loads / rates.loads + after + (reloads(g, rates) if along is None else 0.0),
        calls * CALL,
        waits * rates.latency,  # one accumulator at a time
        outputs / vectorised if g.reduce else 0.0,
        arithmetic + loads + after + calls * CALL * rates.fma,
    )


def is_turned(operand: Operand, along: int | None) -> bool:
    """Return whether lanes of an operand, rows apart, are read for several neighbours at a time (`turned_tiles`)."""
    return along is not None and operand.stride_of(along) == 1 and operand.element_bytes == TURNED_BYTES


def merges_lanes(geometry: Geometry, vector: int) -> bool:
    """Return whether each result merges lanes that lie side by side, which are added in halves (`codegen.rewrites`)."""
    g, terms = geometry, [i for i in geometry.reduce if geometry.extents[i] > 1]
    if vector > 1 or len(terms) != 1 or len(g.operands) != 1 or g.stage.dtype != "float32":
        return False
    lanes = g.extents[terms[0]]
    return lanes.bit_count() == 1 and lanes <= MERGED_LANES and g.operands[0].stride_of(terms[0]) == 1


def cuts(operand: Operand, axis: int, vector: int) -> bool:
    """Return whether an operand's bounds check may tell elements of one vector apart.

    It does not where the operand begins and ends at whole vectors, as parts of a concatenation may (32 of 512 channels
    of 28 x 28 pixels each, on a Zen 5: 49 to 58 us in vectors of 16 and 32, 171 of 64).
    """
    if axis not in operand.guard_axes or vector <= 1:
        return axis in operand.guard_axes
    along = [d for d, dim in enumerate(operand.dims) if any(a == axis for a, _ in dim)]
    return any(operand.access.indices[d].const % vector or operand.shape[d] % vector for d in along)


def share_read(operand: Operand, extents: Sequence[int]) -> float:
    """Return the share of a nest's points at which an operand is read: of a part of a concatenation, its own."""
    dims = zip(operand.shape, operand.dims, strict=True)
    parts = (extent / extents[dim[0][0]] if len(dim) == 1 else 1.0 for extent, dim in dims)
    return prod(min(1.0, part) for part in parts) if operand.guarded else 1.0


def reloads(g: Geometry, rates: CpuRates) -> float:
    """Return the cycles of loading the lines of gathered vectors anew for each neighbour in them.

    Between two neighbours of a line all axes inside of theirs are walked. Lines whose distance divides the bytes of one
    way of the nearest cache share a set.
    """
    run, last, cycles = run_axis(g), g.vector_axis, 0.0
    if run is None or last is None:
        return cycles
    for op in g.operands:
        apart = op.stride_of(last) * op.element_bytes
        if op.stride_of(run) != 1 or apart < rates.line:
            continue
        lines = prod(g.extents[i] for i in g.spatial if i > run and i in op.axes)
        if lines > rates.ways * max(1, rates.way_bytes // gcd(apart, rates.way_bytes)):
            held = [rate for _, capacity, rate in rates.caches[1:] if lines * rates.line <= capacity]
            cycles += g.stage.points * rates.line / [*held, rates.far][0]
    return cycles


def run_starts(geometry: Geometry, vector: int, rates: CpuRates) -> float:
    """Return the bytes in whose place runs of constants start that do not follow each other.

    Constants are not packed here: a product of one row by a matrix reads a run of each of the matrix' rows (4096x1024
    weights on Zen 4: 285 us, packed ones 124 us).
    """
    stored = {op: replace(op, constant=False) for op in geometry.operands if op.constant}
    apart = [op for op, as_stored in stored.items() if may_scatter(geometry, as_stored, rates)]
    return sum(op.source_bytes / (max(1, vector) * op.element_bytes) * RUN_START for op in apart)


def streamed(
    device: DeviceSpec, rates: CpuRates, stages: Sequence[Cycles], moved: float, chunks: Column, flops: int,
    trips: int = 0, starts: Column = 0.0, written: float = 0.0, exposed: float = EXPOSED, computed: float = 0.0,
    weights: float = 0.0, waits: Column = 0.0,
) -> Times:  # fmt: skip
    """Return the times of stages that run in order in each chunk and move `moved` bytes from the level that holds them.

    Parameters
    ----------
    trips : int
        How often the stages start, if not once per chunk.
    starts : column of float
        Bytes in whose place runs of neighbours start.
    written : float
        Bytes, of those moved, that are written.
    exposed : float
        Share of the shorter of arithmetic and memory that the other does not hide.
    computed, weights : float
        Bytes, of those moved, that other kernels have computed and this one reads, and that memory delivers.
    waits : column of float
        Cycles of a core beyond these (`micro_perf.other_cores`).
    """
    level, streaming = stream_cycles(moved, written, rates, device)
    units = np.minimum(device.units, chunks)
    together = Cycles.of(stages)
    cycles = together.total(rates.window) + (trips or chunks) * len(stages) * STAGE_OVERHEAD
    waves = -(-chunks // device.units)
    busiest = waves / chunks
    streaming = streaming * (1 + starts / max(1.0, moved))
    memory, core = streaming * busiest, cycles * busiest
    cycles = np.maximum(memory, core) + exposed * np.minimum(memory, core)
    cycles = cycles + left_alone(device, rates, computed, chunks) + weights / (rates.far * units) + waits
    seconds = cycles * rates.cycle + launch_seconds(device, chunks)
    bound = np.where(memory > core, 0, np.where(2 * together.calls > core / busiest, 1, 2))
    return Times(
        seconds, core * rates.cycle, (LevelColumn(level, moved, streaming / units * rates.cycle),),
        (level, "call", "compute"), bound, flops, chunks, waves, 0, 0, 1 / (busiest * device.units),
    )  # fmt: skip


def lower_cpu_direct(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.direct."""
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    steps: list[Step] = [Inline(name) for name in program.inlined]
    out, vector, outer = output.name, program.choice("vector"), program.choice("parallel")
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    if not loops:
        return steps
    at = next(n for n, a in enumerate(anchor.spatial) if a.name == vector_name(anchor))
    rest, last = [*loops[:at], *loops[at + 1 :]], loops[at]
    # The loop just outside the vectors; reductions are computed there.
    if vector > 1 and vector < anchor.spatial[at].extent:
        steps.append(Split(out, last, (vector,), (f"{last}.o", f"{last}.v")))
        rest, last = [*rest[:at], f"{last}.o", *rest[at:]], f"{last}.v"
    runs = [loop for axis, loop in zip(anchor.spatial, loops, strict=True) if axis.name in program.choices_of("run")]
    rest = [*(loop for loop in rest if loop not in runs), *runs]
    reduce: list[str] = []
    if anchor is output:
        opened, reduce = open_parts(out, anchor.reduce)
        steps += opened
    steps.append(Reorder(out, (*rest, *reduce, last) if vector > 1 else (*rest, last, *reduce)))
    inside = rest[-1] if rest else ""
    if outer > 0:
        shared = (*rest, last)[:outer]  # the last one if it is the only loop
        whole = fuse(steps, out, shared, "outer")
        inside = whole if outer >= len(rest) else inside
        steps.append(Parallel(out, whole))
    if vector > 1:
        steps.append(Vectorize(out, last))
    if anchor is not output and inside:
        steps.append(ComputeAt(anchor.name, out, inside))
        if anchor.reduce and vector > 1:
            opened, own = open_parts(anchor.name, anchor.spatial)
            opened_reduce, reduce = open_parts(anchor.name, anchor.reduce)
            own = vector_last(own, anchor)
            steps += [*opened, *opened_reduce, Reorder(anchor.name, (*own[:-1], *reduce, own[-1]))]
            steps.append(Vectorize(anchor.name, own[-1]))
    return steps


class CpuDirect(CpuRecipe):
    """Vectorised rows."""

    name = "cpu.direct"
    says = "vectorised rows, outer rows in parallel"
    suits = dict.fromkeys((Kind.UNEVEN, Kind.MOVE, Kind.SLIDES, Kind.PRODUCT), Fit.YES)

    def construct(self, ctx: Context, top: int) -> list[Candidate]:
        return construct_direct(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_cpu_direct(expression, program)
