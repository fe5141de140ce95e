"""Construction of row operators on a GPU (softmax, norms): a block keeps rows until every stage is done with them.

Micro-performance model of recipe gpu.rows: the lanes of a block walk rows together, stage after stage.

Recipe gpu.rows as schedule steps::

    block -> blockIdx  row -> threadIdx.y   serial  lane -> threadIdx.x  v -> vector     output
                            serial  lane -> threadIdx.x                                  every kept stage, at row
             row -> threadIdx.y   serial  lane -> threadIdx.x  v -> vector               kept inputs, at block, shared

A reduction ends in a tree over the lanes, which gives its result to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Protocol

from ..device import DeviceSpec
from ..ir import Access, Axis, Index, Stage, TensorExpression
from ..micro_perf.estimate import LevelTime, ProgramEstimate
from ..micro_perf.geometry import Geometry
from ..micro_perf.gpu import GpuRates, busiest_unit, in_waves, instructions
from ..micro_perf.gpu_constants import IN_FLIGHT, LOAD_OVERHEAD, OPERATION_SLOTS, PER_ELEMENT, ROW_REGISTERS, TREE_SLOTS
from ..micro_perf.occupancy import occupancy
from ..micro_perf.registers import register_cap
from ..micro_perf.storage import VECTOR_ALIGNMENT
from ..roller.alignment import capacity
from ..roller.loops import fuse
from ..roller.rprogram import RProgram
from ..roller.steps import Bind, CacheRead, ComputeAt, Inline, Split, Step, Vectorize
from .gpu_nests import linear_tile
from .gpu_reduce import shuffled
from .recipe import Context, Fit, Ranked, Recipe
from .row_nests import RowNest


class GpuRows(Recipe):
    """Rows that go through every stage."""

    name = "gpu.rows"
    says = "the threads of a block walk rows together, every stage while the row is in fast memory"
    staged = "kept for a row"

    def applies(self, ctx: Context) -> Fit:
        return Fit.YES if ctx.device.kind != "cpu" and isinstance(ctx.nest, RowNest) else Fit.NO

    def construct(self, ctx: Context, top: int) -> Ranked:
        """Return ranked candidates: lanes per row, rows per block, vectors, inputs in shared memory."""
        nest, g, device = ctx.nest, ctx.geometry, ctx.device
        assert isinstance(nest, RowNest)
        expression = g.expression
        if not one_value_a_row(expression, nest):
            return []
        stages = [expression.stage(name) for name in nest.kept]
        if any(ctx.reject(shuffled(stage.dtype)) for stage in stages if stage.reduce):
            return []
        output = expression.stage(nest.output)
        count = prod(a.extent for a in output.spatial[: nest.rows])
        length = prod(a.extent for a in output.spatial[nest.rows :])
        most = device.limits.most_threads
        found: Ranked = []
        for form, read in forms(expression, nest):
            lanes = device.vector_width
            while lanes <= most and (lanes == device.vector_width or lanes <= length):
                rows = 1
                while rows * lanes <= most and rows < 2 * count:
                    shape = RowShape(rows, lanes, 1, ceil(length / lanes), count, length)
                    for vector in widths(expression, form, read, shape, device):
                        if vector > 1 and lanes * vector > length:
                            continue
                        ctx.considered += 1
                        candidate = _candidate(ctx, form, read, replace(shape, vector=vector))
                        found += [candidate] if candidate else []
                    rows *= 2
                lanes *= 2
        return sorted(found, key=lambda c: c[1].seconds)[: 2 * top]

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        """Return the steps of recipe gpu.rows."""
        steps: list[Step] = [Inline(name) for name in program.inlined]
        output, shared = expression.stage(program.output), program.choice("row_axes")
        out, lanes, vector = output.name, program.choice("lanes"), program.choice("vector")

        def walk(stage: str, loops: Sequence[str], width: int) -> None:
            """Append steps that deal a row out to the lanes."""
            whole = fuse(steps, stage, loops, "columns")
            if width > 1:
                steps.append(Split(stage, whole, (lanes, width), ("serial", "lane", "element")))
                steps.append(Vectorize(stage, "element"))
            else:
                steps.append(Split(stage, whole, (lanes,), ("serial", "lane")))
            steps.append(Bind(stage, "lane", "threadIdx.x"))

        columns = long_loops(output.spatial[shared:])
        if shared:
            row = fuse(steps, out, long_loops(output.spatial[:shared]), "rows")
            steps.append(Split(out, row, (program.choice("rows"),), ("block", "row")))
        else:  # all of it is one row, and needs a loop to be computed in
            length = prod(a.extent for a in output.spatial)
            whole = fuse(steps, out, columns, "columns")
            steps.append(Split(out, whole, (1, length), ("block", "row", "only")))
            columns = ["only"]
        steps += [Bind(out, "block", "blockIdx.x"), Bind(out, "row", "threadIdx.y")]
        walk(out, columns, vector)
        for name in reversed(program.staged):
            stage = expression.stage(name)
            steps.append(ComputeAt(name, out, "row"))
            walk(name, long_loops(stage.reduce or stage.spatial[shared:]), 1)
        for name in program.choices_of("keep"):
            tensor = expression.tensors[name]
            extents = tensor.fused_of or tuple((extent,) for extent in tensor.shape)
            dims = [Axis(f"d{n}", extent) for n, extent in enumerate(sum(extents, ()))]
            ahead = sum(map(len, extents[:shared]))
            kept = f"{name}.shared"
            readers = tuple(s.name for s in expression.consumers(name))
            steps += [CacheRead(name, "shared", readers, kept), ComputeAt(kept, out, "block")]
            if shared:
                ours = fuse(steps, kept, long_loops(dims[:ahead]), "rows")
                steps.append(Split(kept, ours, (program.choice("rows"),), ("round", "row")))  # a bound loop starts at 0
                steps.append(Bind(kept, "row", "threadIdx.y"))
            walk(kept, long_loops(dims[ahead:]), vector)
        return steps


def _candidate(
    ctx: Context, nest: RowNest, read: tuple[str, ...], shape: RowShape
) -> tuple[RProgram, ProgramEstimate] | None:
    g, device = ctx.geometry, ctx.device
    if read and not _found_by_tvm(g.expression.stage(nest.output).spatial[: nest.rows], shape.rows):
        return None
    label = f"{shape.lanes} lanes x {shape.rows} rows x {shape.vector}"
    if ctx.reject(capacity("elements of a row for a lane", shape.own, WALK, "use more lanes"), label):
        return None
    shared = rows_shared_bytes(g.expression, nest.kept, read, device, shape)
    most = device.limits.shared_per_block_bytes or device.level("shared").capacity_bytes
    if ctx.reject(capacity("shared memory of a block", shared, most, "use fewer rows"), label):
        return None
    estimate = rows_estimate(g.expression, device, nest, read, shape)
    if estimate is None:
        return None
    thread, rest = list(linear_tile(g, 1)), shape.own
    for i in reversed(g.reduce):  # a thread's part of the row, along the innermost axes
        thread[i] = min(g.extents[i], rest)
        rest = ceil(rest / g.extents[i])
    choices = (("rows", shape.rows), ("lanes", shape.lanes), ("vector", shape.vector), ("row_axes", nest.rows),
               ("threads", shape.threads), *((f"keep:{name}", 1) for name in read))
    tiles = (ctx.rtile("shared" if read else "block", linear_tile(g, shape.rows)),
             ctx.rtile("register", tuple(thread)))
    return RProgram("gpu.rows", nest.anchor, nest.output, tiles, nest.inlined, nest.kept, choices), estimate


def _found_by_tvm(axes: Sequence[Axis], rows: int) -> bool:
    """Return whether TVM finds the region of `rows` neighbouring rows with fused loops (see ``Axis.is_box``)."""
    loops = tuple(loop for a in axes for loop in (a.fused_of or ((a.name, a.extent),)))
    return not loops or Axis("rows", prod(e for _, e in loops), fused_of=loops).is_box(rows)


def one_value_a_row(expression: TensorExpression, nest: RowNest) -> bool:
    """Return whether every reduction in the nest makes one value of a whole row, which its lanes then share."""
    output = expression.stage(nest.output)
    if output.reduce or len(output.spatial) == nest.rows:
        return False
    length = prod(a.extent for a in output.spatial[nest.rows :])
    for name in nest.kept:
        stage = expression.stage(name)
        if any(a.part_of for a in stage.axes):
            return False
        own = prod(a.extent for a in (stage.reduce or stage.spatial[nest.rows :]))
        if own != length or (stage.reduce and prod(a.extent for a in stage.spatial[nest.rows :]) > 1):
            return False
    return not any(a.part_of for a in output.axes)


def forms(expression: TensorExpression, nest: RowNest) -> Iterator[tuple[RowNest, tuple[str, ...]]]:
    """Yield (nest, inputs kept in shared memory): first with rows that several stages read, then without any.

    Values between the stages are computed again in each: a State's stages cannot share one lane's registers.
    """
    pointwise = [name for name in nest.kept if not expression.stage(name).reduce]
    again = tuple(name for name in nest.kept if expression.stage(name).reduce)
    inlined = tuple(s.name for s in expression.stages if s.name in (*nest.inlined, *pointwise))
    plain = replace(nest, kept=again, inlined=inlined)
    stages = [expression.stage(name) for name in (*again, nest.output)]
    size = expression.stage(nest.output).output_elements
    whole = tuple(
        t.name for t in expression.inputs
        if t.elements == size and len(readers(expression, plain, t.name)) > 1
        and _walked(expression, plain, stages, t.name)
    )  # fmt: skip
    if whole:
        yield plain, whole
    yield plain, ()


def readers(expression: TensorExpression, nest: RowNest, name: str) -> tuple[str, ...]:
    """Return the stages of the nest that read a tensor, directly or through stages computed in place."""
    stages = [expression.stage(n) for n in (*nest.kept, nest.output)]
    return tuple(s.name for s in stages if any(a.tensor == name for a in expression.resolve(s, nest.inlined)))


def _walked(expression: TensorExpression, nest: RowNest, stages: list[Stage], name: str) -> bool:
    """Return whether every read of a tensor walks its rows in their order in memory."""
    reads = [(s, a) for s in stages for a in expression.resolve(s, nest.inlined) if a.tensor == name]
    return all(_walks(stage, access, nest.rows) for stage, access in reads)


def _walks(stage: Stage, access: Access, rows: int) -> bool:
    axes = (*stage.spatial[:rows], *stage.reduce) if stage.reduce else stage.spatial
    if access.guarded or len(axes) != len(access.indices):
        return False
    return all(
        index == Index.axis(axis.name) or (axis.extent == 1 and not index.opaque and index == Index())
        for axis, index in zip(axes, access.indices, strict=True)
    )


def widths(expression: TensorExpression, nest: RowNest, read: tuple[str, ...], shape: RowShape, device: DeviceSpec
) -> list[int]:  # fmt: skip
    """Return the widths, in elements, that a lane can fetch and store at a time.

    Vectors need every shared array to be made of whole vectors, also those of the reductions over threads.
    """
    if not read:
        return [1]
    tensors = [expression.tensors[name] for name in (*read, nest.output)]
    size = max(t.bytes // t.elements for t in tensors)
    trees = rows_shared_bytes(expression, nest.kept[:1], (), device, shape)
    own = shape.rows * shape.length * size
    if trees % VECTOR_ALIGNMENT or own % VECTOR_ALIGNMENT:
        return [1]
    return [1] + [w for w in (2, 4, 8) if w * size <= device.vector_bytes and shape.length % w == 0]


#: Most elements of a row that a lane walks.
WALK = 96


class Rows(Protocol):
    """Attributes of a nest over rows that the model needs."""

    @property
    def kept(self) -> tuple[str, ...]: ...
    @property
    def output(self) -> str: ...
    @property
    def inlined(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class RowShape:
    """A candidate of recipe gpu.rows."""

    rows: int  # of a block
    lanes: int  # threads that share a row
    vector: int  # elements that a lane moves at a time
    own: int  # elements of a row that a lane computes
    count: int  # rows of the operator
    length: int  # elements of a row

    @property
    def threads(self) -> int:
        return self.rows * self.lanes


def rows_shared_bytes(
    expression: TensorExpression, kept: Sequence[str], read: Sequence[str], device: DeviceSpec, shape: RowShape
) -> int:  # fmt: skip
    """Return a block's shared memory, bytes: rows of inputs, and each reduction's share (``reduce_shared_bytes``).

    Parameters
    ----------
    kept : sequence of str
        Stages of the nest before the output.
    read : sequence of str
        Inputs whose rows are kept.
    """
    def element(name: str) -> int:
        tensor = expression.tensors[name]
        return tensor.bytes // tensor.elements

    warp = device.vector_width
    total = sum(element(name) * shape.rows * shape.length for name in read)
    for name in kept:
        if expression.stage(name).reduce and shape.lanes > warp:
            total += element(name) * shape.rows * (1 + shape.lanes // warp)
    return total


def rows_estimate(
    expression: TensorExpression, device: DeviceSpec, nest: Rows, read: Sequence[str], shape: RowShape
) -> ProgramEstimate | None:
    """Return the predicted time of recipe gpu.rows, or None if not even one block fits on a unit.

    Parameters
    ----------
    nest : RowNest
    read : sequence of str
        Inputs whose rows are kept in shared memory and so loaded once.
    """
    rates = GpuRates.of(device, expression.tensors[nest.output].dtype)
    nests = [Geometry.of(expression, name, nest.inlined) for name in (*nest.kept, nest.output)]
    registers = ceil(ROW_REGISTERS + PER_ELEMENT * shape.own) + shape.vector
    registers = min(registers, register_cap(device, shape.threads) or registers)
    shared = rows_shared_bytes(expression, nest.kept, read, device, shape)
    resident, limit = occupancy(device, shape.threads, registers, shared)
    if resident == 0:
        return None
    blocks = ceil(shape.count / shape.rows)
    resident = min(resident, ceil(blocks / device.units))
    busiest, waves = busiest_unit(device, blocks, resident)

    mine = set(nest.kept) | {nest.output}
    slots = loaded = staged = 0.0
    for g in nests:
        slots += instructions(g) * shape.own
        for op in g.operands:
            functions = sum(n * OPERATION_SLOTS[kind] for kind, n in op.functions)
            slots += (op.arithmetic + functions) * shape.own
            if op.elements_whole < shape.length:
                continue
            loaded += shape.own * any(a.tensor not in mine and a.tensor not in read for a in op.sources)
            staged += shape.own * any(a.tensor in read for a in op.sources)
    fetched = len(read) * shape.own
    slots += loaded * (1 + LOAD_OVERHEAD) + staged + (2 * fetched + shape.own) / shape.vector
    reductions = [g for g in nests if g.stage.reduce]
    doublings = shape.lanes.bit_length() - 1
    slots += TREE_SLOTS * doublings * len(reductions)

    warps = ceil(shape.threads / device.vector_width)
    output = expression.tensors[nest.output]
    outside_bytes = {a.tensor: expression.tensors[a.tensor].bytes
                     for g in nests for op in g.operands for a in op.sources if a.tensor not in mine}
    element = output.bytes // output.elements
    far = float(sum(outside_bytes.values()) + output.bytes)
    near = (loaded + fetched) * element * shape.threads + output.bytes / blocks
    wavefronts = (staged + fetched) * element * shape.threads / rates.shared
    issue = slots * warps / rates.issue
    dram, l2 = far / blocks / rates.dram, near / rates.l2
    rounds = max(1.0, shape.own / shape.vector / IN_FLIGHT)
    if not read:  # every stage waits for the row again
        rounds *= len(nests)
    trees = len(reductions) * (doublings + 2 * (shape.lanes > device.vector_width)) * rates.shared_latency
    # A block alone does one after the other: the row comes, is walked, and goes.
    chain = rates.dram_latency * rounds + max(dram, l2) + trees + issue * rates.issue / min(warps, rates.issue)
    terms = {"issue": issue, device.far.name: dram, "l2": l2, "shared": wavefronts}
    seconds, bound = in_waves(device, rates, terms, chain, resident, busiest, blocks)
    scale = blocks / device.units * rates.cycle
    levels = (
        LevelTime(device.far.name, far, dram * scale),
        *([LevelTime("l2", near * blocks, l2 * scale)] if device.has("l2") else []),
    )
    flops = sum(g.stage.flops for g in nests)
    compute = flops / 2 / (rates.lanes * device.units) * rates.cycle
    return ProgramEstimate(
        float(seconds), compute, levels, str(bound), flops, blocks, waves, resident,
        limit, shape.threads, registers, shared, blocks / (busiest * device.units),
    )  # fmt: skip


def long_loops(axes: Sequence[Axis]) -> list[str]:
    """Return the source's loops of these axes, without loops of one iteration at either end.

    TVM finds regions through fused loops less well if one of them has a single iteration.

    Examples
    --------
    >>> long_loops([Axis("n*c*h", 24, fused_of=(("n", 1), ("c", 12), ("h", 2))), Axis("w", 1)])
    ['c', 'h']
    """
    loops = [loop for a in axes for loop in (a.fused_of or ((a.name, a.extent),))]
    long = [n for n, (_, extent) in enumerate(loops) if extent > 1] or [0]
    return [name for name, _ in loops[long[0] : long[-1] + 1]]