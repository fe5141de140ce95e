"""Construction of recipes gpu.direct and gpu.reduce: no reuse worth staging, so only the outermost level is tiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

from ..device import DeviceSpec
from ..expr import TensorExpression, dtype_bytes
from ..expr.affine import Index
from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry, Operand, Tile, in_memory
from ..model.gpu_direct import direct_estimate, reduce_estimate
from .align import Rejection, capacity, execution_unit
from .program import RProgram
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
    >>> from roller_tvm.expr.operators import matmul
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
