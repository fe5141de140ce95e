"""Construction of layout changes on a GPU: output and input run along different axes in memory.

A block fetches a tile along the input's rows and stores it along the output's. In between the tile is in shared memory,
with padded rows, so that walking down a column meets every bank (rule 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ..expr import TensorExpression
from ..model.estimate import ProgramEstimate
from ..model.geometry import Geometry, Operand, operand_of
from ..model.gpu_transpose import TurnedShape, transpose_estimate, turned_shared_bytes
from .align import aligned_extents, bank_padding, capacity, execution_unit
from .partition import NestShape
from .program import RProgram
from .search import Search

#: Most elements of a tile along one axis (breadth of the search): whole transactions both ways, and some more.
TILE_MOST = 128
#: Share of a tile that may stand over the edge: a guard there costs a comparison, and nothing is computed.
STANDS_OVER = 0.25


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
    geometry = Geometry.of(expression, nest.anchor, nest.inlined, nest.output)
    return not geometry.reduce and nest.anchor == nest.output and bool(reading(geometry, nest.inlined).staged)


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


def construct_transpose(search: Search, top: int) -> list[tuple[RProgram, ProgramEstimate]]:
    """Return ranked candidates of recipe gpu.transpose: tiles of both axes, threads."""
    g, device, nest = search.geometry, search.device, search.nest
    if nest.anchor != nest.output or any(a.fused_of for a in g.stage.axes):
        return []
    read = reading(g, nest.inlined)
    if not read.staged or g.vector_axis is None or not device.has("shared"):
        return []
    staged, others, banks = read.staged, read.others, device.level("shared")
    largest = max(staged, key=lambda op: op.source_bytes)
    there, here = input_run(g, largest), [i for i in reversed(g.spatial) if g.extents[i] > 1]
    most_shared = device.limits.shared_per_block_bytes or banks.capacity_bytes
    found: list[tuple[RProgram, ProgramEstimate]] = []
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
            search.considered += 1
            shape, label = TurnedShape(tile, threads, padding), f"tile {tile} {threads} threads"
            threads_now, threads = threads, 2 * threads
            if search.reject(execution_unit(threads_now, device.vector_width), label):
                continue
            shared = turned_shared_bytes(staged, shape)
            if search.reject(capacity("shared memory of a block", shared, most_shared), label):
                break
            estimate = transpose_estimate(g, device, staged, others, shape)
            if estimate is None:
                continue
            names = {op.name: p for op, p in zip(staged, padding, strict=True)}
            tiles = (search.rtile("shared", tile, {n: p for n, p in names.items() if p}),
                     search.rtile("register", tuple(1 for _ in tile)))
            choices = (("threads", threads_now), ("blocks", estimate.blocks))
            found.append((search.program("gpu.transpose", tiles, choices, tuple(names)), estimate))
    return sorted(found, key=lambda c: c[1].seconds)[: 2 * top]
