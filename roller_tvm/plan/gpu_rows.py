"""Construction of row operators on a GPU (softmax, norms): a block keeps rows until every stage is done with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, prod

from ..device import DeviceSpec
from ..expr import Access, Axis, Index, Stage, TensorExpression
from ..model.estimate import ProgramEstimate
from ..model.gpu_rows import WALK, RowShape, rows_estimate, rows_shared_bytes
from ..model.storage import VECTOR_ALIGNMENT
from .align import capacity
from .gpu_direct import linear_tile, shuffled
from .program import RProgram
from .rows import RowNest
from .search import Search


def construct_rows(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe gpu.rows: lanes per row, rows per block, vectors, inputs in shared memory."""
    nest, g, device = search.nest, search.geometry, search.device
    assert isinstance(nest, RowNest)
    expression = g.expression
    if not one_value_a_row(expression, nest):
        return []
    stages = [expression.stage(name) for name in nest.kept]
    if any(search.reject(shuffled(stage.dtype)) for stage in stages if stage.reduce):
        return []
    output = expression.stage(nest.output)
    count = prod(a.extent for a in output.spatial[: nest.rows])
    length = prod(a.extent for a in output.spatial[nest.rows :])
    most = device.limits.max_threads_per_block or 1024
    found: list[tuple[RProgram, ProgramEstimate]] = []
    for form, read in forms(expression, nest):
        lanes = device.vector_width
        while lanes <= most and (lanes == device.vector_width or lanes <= length):
            rows = 1
            while rows * lanes <= most and rows < 2 * count:
                shape = RowShape(rows, lanes, 1, ceil(length / lanes), count, length)
                for vector in widths(expression, form, read, shape, device):
                    if vector > 1 and lanes * vector > length:
                        continue
                    search.considered += 1
                    candidate = _candidate(search, form, read, replace(shape, vector=vector))
                    found += [candidate] if candidate else []
                rows *= 2
            lanes *= 2
    return sorted(found, key=lambda c: c[1].seconds)[: 2 * top]


def _candidate(
    search: Search, nest: RowNest, read: tuple[str, ...], shape: RowShape
) -> tuple[RProgram, ProgramEstimate] | None:
    g, device = search.geometry, search.device
    if read and not _found_by_tvm(g.expression.stage(nest.output).spatial[: nest.rows], shape.rows):
        return None
    label = f"{shape.lanes} lanes x {shape.rows} rows x {shape.vector}"
    if search.reject(capacity("elements of a row for a lane", shape.own, WALK, "use more lanes"), label):
        return None
    shared = rows_shared_bytes(g.expression, nest.kept, read, device, shape)
    most = device.limits.shared_per_block_bytes or device.level("shared").capacity_bytes
    if search.reject(capacity("shared memory of a block", shared, most, "use fewer rows"), label):
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
    tiles = (search.rtile("shared" if read else "block", linear_tile(g, shape.rows)),
             search.rtile("register", tuple(thread)))
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
