"""Recipe cpu.tiled: an rProgram as schedule steps.

Shapes of the loops (``p`` parallel chunks, ``m`` register tiles of a chunk, ``i`` inside a register tile)::

    cpu.tiled    p.. -> parallel   m.. in the plan's order   i.. vectors        output
                   S0 S1 R0 S2 R1 S3: unrolled, last axis vectors              anchor, at the last m
                 copy: vectors                                                 staged operands, at p or their last m

The anchor's loops have Ansor's multi-level shape (every spatial axis split once into four, every reduction once
into two), because TVM's layout rewrite of constant operands, which packs them, reads that shape.

Packed operands: laid out in the order in which the register tiles read them, so that loads run forward.

Constants are packed when the module is built. Copies of other operands are packed while a parallel task writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..ir import Access, Stage, TensorExpression
from ..roller.loops import open_parts
from ..roller.rprogram import RProgram
from ..roller.steps import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    Pack,
    Parallel,
    Reorder,
    Split,
    Step,
    Unroll,
    Vectorize,
)


def lower_cpu_tiled(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.tiled."""
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    steps: list[Step] = [Inline(name) for name in program.inlined]
    inner = anchor.name
    if anchor is output:
        inner = f"{anchor.name}.local"
        steps.append(CacheWrite(anchor.name, "local", inner))
    chunk, tile = program.tile("l2"), program.tile("register")
    out = output.name
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    last = vector_name(anchor)
    vector = program.choice("vector", tile[last])
    row = ""  # the loop over the vectors of a register tile's row
    for axis, loop in zip(anchor.spatial, loops, strict=True):
        lengths: tuple[int, ...] = (chunk[axis.name] // tile[axis.name], tile[axis.name])
        names = "pmi"
        if axis.name == last and vector < tile[last]:
            lengths, names, row = (lengths[0], tile[last] // vector, vector), "pmni", f"{loop}.n"
        steps.append(Split(out, loop, lengths, tuple(f"{loop}.{c}" for c in names)))
    order = program.choices_of("order")
    ranked = sorted(
        enumerate(loops), key=lambda pair: order.get(anchor.spatial[pair[0]].name, -1)
    )  # loops with a single trip go outermost
    middle = tuple(f"{loop}.m" for _, loop in ranked)
    parallel = tuple(f"{loop}.p" for loop in loops)
    inside = vector_last([f"{loop}.i" for loop in loops], anchor)
    if row:
        inside.insert(-1, row)
    steps.append(Reorder(out, (*parallel, *middle, *inside)))
    whole = parallel[0]
    if len(parallel) > 1:
        whole = "parallel"
        steps.append(Fuse(out, parallel, whole))
    steps.append(Parallel(out, whole))
    # Stored by unrolled loops, a register tile needs no memory of its own; functions would be written out as often.
    if not any(s.functions for s in expression.stages if s.name in (*program.inlined, out)):
        long = {f"{loop}.i" for axis, loop in zip(anchor.spatial, loops, strict=True) if tile[axis.name] > 1}
        steps += [Unroll(out, loop) for loop in inside[:-1] if loop in long]
    if row:
        steps.append(Unroll(out, row))
    if tile[last] > 1:
        steps.append(Vectorize(out, inside[-1]))
    steps.append(ComputeAt(inner, out, middle[-1]))
    steps += _micro_kernel(inner, anchor, program, expression, [at for at, _ in ranked])
    trips = _trips(expression, anchor, program, [at for at, _ in ranked])
    steps += pack_constants(expression, anchor, inner, trips)
    for name in program.staged:
        packed, dimension = f"{name}.packed", _vector_dimension(anchor, name)
        at = panel_loop(anchor, program, name, [(anchor.spatial[at].name, f"{loop}.m") for at, loop in ranked]) or whole
        steps += [CacheRead(name, "global", (inner,), packed), ComputeAt(packed, out, at)]
        steps += _copy(packed, dimension, len(expression.tensors[name].shape), vector)
        steps += pack_copy(expression, anchor, name, packed, inner, trips)
    return steps


def _vector_dimension(anchor: Stage, operand: str) -> int:
    """Return the dimension of a staged operand along which its vectors lie."""
    indices = next(access.indices for access in anchor.reads if access.tensor == operand)
    return max(d for d, index in enumerate(indices) if vector_name(anchor) in index.axes)


def panel_loop(anchor: Stage, program: RProgram, operand: str, middle: list[tuple[str, str]]) -> str:
    """Return the loop over register tiles inside of which a staged operand's panel stays the same, or ''.

    The operand is copied inside that loop, a panel at a time. `middle` are the axes and loops, outermost first.
    """
    chunk, tile = program.tile("l2"), program.tile("register")
    axes = {axis for access in anchor.reads if access.tensor == operand for axis in access.axes}
    looped = [(axis in axes, loop) for axis, loop in middle if chunk[axis] > tile[axis]]
    own = [loop for mine, loop in looped if mine]
    return own[-1] if own and all(mine for mine, _ in looped[: len(own)]) else ""


def _copy(packed: str, dimension: int, rank: int, vector: int) -> list[Step]:
    """Return the steps that copy an operand in vectors along one dimension, moved innermost if it is not the last."""
    steps: list[Step] = [Split(packed, f"d{dimension}", (vector,), ("piece", "vector"))]
    if dimension < rank - 1:
        around = [f"d{d}" for d in range(rank)]
        around[dimension] = "piece"
        steps.append(Reorder(packed, (*around, "vector")))
    return [*steps, Vectorize(packed, "vector")]


def _micro_kernel(
    inner: str, anchor: Stage, program: RProgram, expression: TensorExpression, order: list[int]
) -> list[Step]:
    """Return the steps of the anchor inside one register tile: S0 S1 R0 S2 R1 S3.

    S0 and S1 have one trip each. They stand in the order of the output's p and m loops (`order`: positions of the
    axes), because TVM's layout rewrite takes them for those.
    """
    tile, last = program.tile("register"), vector_name(anchor)
    vector = program.choice("vector", tile[last])
    opened, spatial = open_parts(inner, anchor.spatial)
    steps: list[Step] = list(opened)
    opened, reduce = open_parts(inner, anchor.reduce)
    steps += opened
    unrolled = {a.name: program.choice(f"unroll:{a.name}", 1) for a in anchor.reduce}
    # The vectors of a row stand innermost: what is broadcast to them is then used up at once, and needs one register.
    # If a window is unrolled, a check of bounds serves a whole row of it, and the rows stand inside.
    together = all(n == 1 for n in unrolled.values())
    for axis, loop in zip(anchor.spatial, spatial, strict=True):
        rows = (1, tile[axis.name], 1) if together else (1, 1, tile[axis.name])
        lengths = (1, tile[last] // vector, vector) if axis.name == last else rows
        steps.append(Split(inner, loop, lengths, tuple(f"{loop}.{n}" for n in range(4))))
    for axis, loop in zip(anchor.reduce, reduce, strict=True):
        steps.append(Split(inner, loop, (unrolled[axis.name],), (f"{loop}.0", f"{loop}.1")))
    s = [[f"{loop}.{n}" for loop in spatial] for n in range(4)]
    rows_first = _rows_first(anchor)
    s[2:] = [[names[at] for at in rows_first] for names in s[2:]]
    r = [tuple(f"{loop}.{n}" for loop in _streamed(expression, anchor, reduce)) for n in range(2)]
    s[1] = [s[1][at] for at in order]
    steps.append(Reorder(inner, (*s[0], *s[1], *r[0], *s[2], *r[1], *s[3])))
    steps += [Unroll(inner, f"{loop}.1") for a, loop in zip(anchor.reduce, reduce, strict=True) if unrolled[a.name] > 1]
    if together:
        steps += [Unroll(inner, loop) for loop in s[2][:-1]]
    if vector < tile[last]:
        steps.append(Unroll(inner, s[2][-1]))
    if not together:
        steps += [Unroll(inner, loop) for loop in s[3][:-1]]
    if tile[last] > 1:
        steps.append(Vectorize(inner, s[3][-1]))
    return steps


def _trips(expression: TensorExpression, anchor: Stage, program: RProgram, order: list[int]) -> list[tuple[str, int]]:
    """Return axis and trips of every loop around the anchor, outermost first: parallel, then as in `_micro_kernel`."""
    chunk, tile, last = program.tile("l2"), program.tile("register"), vector_name(anchor)
    vector = program.choice("vector", tile[last])
    spatial = [a.name for a in anchor.spatial]
    reduce = _streamed(expression, anchor, [a.name for a in anchor.reduce])
    unrolled = {name: program.choice(f"unroll:{name}", 1) for name in reduce}
    found = [(a.name, a.extent // chunk[a.name]) for a in anchor.spatial]
    found += [(spatial[at], chunk[spatial[at]] // tile[spatial[at]]) for at in order]
    found += [(name, anchor.extents[name] // unrolled[name]) for name in reduce]
    rows = [(spatial[at], tile[spatial[at]]) for at in _rows_first(anchor)[:-1]]
    wide = (last, tile[last] // vector)
    if all(n == 1 for n in unrolled.values()):
        return [*found, *rows, wide, (last, vector)]
    return [*found, wide, *((name, unrolled[name]) for name in reduce), *rows, (last, vector)]


def _rows_first(anchor: Stage) -> list[int]:
    """Return the positions of the spatial axes: of broadcast operands, of vector operands only, the vector axis."""
    last = vector_name(anchor)
    broadcast = {axis for access in anchor.reads if last not in access.axes for axis in access.axes}
    return sorted(range(len(anchor.spatial)), key=lambda at: _rank(anchor.spatial[at].name, last, broadcast))


def _rank(axis: str, last: str, broadcast: set[str]) -> int:
    return 2 if axis == last else 0 if axis in broadcast else 1


def _streamed(expression: TensorExpression, anchor: Stage, loops: list[str]) -> list[str]:
    """Return the reduction loops in the memory order of the operand that is read in vectors.

    A register tile uses none of its elements twice: it streams through, and prefetchers follow it only if it is read
    from front to back. A constant is packed in any order: then the other operand's order counts.
    """
    vector = vector_name(anchor)
    names = [a.name for a in anchor.reduce]
    read = [access for access in anchor.reads if vector in access.axes]
    if read and all(expression.tensors[access.tensor].constant for access in read):
        read = [access for access in anchor.reads if vector not in access.axes] or read
    if not read:
        return loops
    access = max(read, key=lambda a: len(a.axes.intersection(names)))
    shape = expression.tensors[access.tensor].shape
    strides = {
        name: sum(index.coefficient(name) * prod(shape[d + 1 :]) for d, index in enumerate(access.indices))
        for name in names
    }
    return [loop for _, loop in sorted(zip(names, loops, strict=True), key=lambda pair: -strides[pair[0]])]


def vector_name(anchor: Stage) -> str:
    """Return the axis to vectorise: the last one with more than one iteration."""
    return next((a.name for a in reversed(anchor.spatial) if a.extent > 1), anchor.spatial[-1].name)


def vector_last(loops: list[str], anchor: Stage) -> list[str]:
    """Return the loops of the spatial axes in order, with that of the vector axis last."""
    at = next(n for n, a in enumerate(anchor.spatial) if a.name == vector_name(anchor))
    return [*loops[:at], *loops[at + 1 :], loops[at]]


def pack_constants(
    expression: TensorExpression, anchor: Stage, reader: str, loops: Sequence[tuple[str, int]]
) -> list[Pack]:
    """Return a step for each constant operand that the anchor reads element by element.

    Parameters
    ----------
    expression : TensorExpression
    anchor : Stage
    reader : str
        Name of the stage that reads, once it is a copy of the anchor.
    loops : sequence of (axis, trips)
        The reader's loops, outermost first; a split axis occurs once per part.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from roller_tvm.ir.operators import operator
    >>> product = operator("matmul", m=8, n=32, k=4)
    >>> product = replace(product, inputs=tuple(replace(t, constant=t.name == "B") for t in product.inputs))
    >>> loops = (("m", 1), ("n", 2), ("k", 4), ("m", 8), ("n", 16))
    >>> print(*pack_constants(product, product.stages[-1], "C.local", loops))
    pack(B, C.local, [1, 0, 1], [2, 4, 16])
    """
    steps = []
    for access in anchor.reads:
        tensor = expression.tensors[access.tensor]
        if not tensor.constant or access.guarded or sum(a.tensor == access.tensor for a in anchor.reads) > 1:
            continue
        if sum(a.tensor == access.tensor for stage in expression.stages for a in stage.reads) > 1:
            continue
        steps += _packed(access, tensor.shape, access.tensor, reader, loops)
    return steps


def pack_copy(
    expression: TensorExpression, anchor: Stage, operand: str, copy: str, reader: str, loops: Sequence[tuple[str, int]]
) -> list[Pack]:
    """Return the step for a copy of an operand; none unless the anchor reads it element by element and once."""
    reads = [access for access in anchor.reads if access.tensor == operand]
    if len(reads) != 1 or reads[0].guarded:
        return []
    return _packed(reads[0], expression.tensors[operand].shape, copy, reader, loops)


def _packed(
    access: Access, shape: tuple[int, ...], stage: str, reader: str, loops: Sequence[tuple[str, int]]
) -> list[Pack]:
    found = [digit for digit in _digits(access, shape, loops) or () if digit[1] > 1]
    return [Pack(stage, reader, tuple(d for d, _ in found), tuple(n for _, n in found))] if found else []


def _digits(access: Access, shape: tuple[int, ...], loops: Sequence[tuple[str, int]]) -> list[tuple[int, int]] | None:
    """Return dimension and trips of each loop that moves the access; None if they are no digits of its indices."""
    dimension: dict[str, int] = {}
    for d, index in enumerate(access.indices):
        if not index.is_affine or index.const:
            return None
        for axis in index.axes:
            if axis in dimension:
                return None
            dimension[axis] = d
    found = [(axis, trips) for axis, trips in loops if axis in dimension]
    for d, index in enumerate(access.indices):
        # Read back to front, each loop must walk what those inside of it make up, and all of them the dimension.
        size: dict[str, int] = {}
        below = 1
        for axis, trips in reversed(found):
            if dimension[axis] != d:
                continue
            if trips > 1 and index.coefficient(axis) * size.get(axis, 1) != below:
                return None
            size[axis] = size.get(axis, 1) * trips
            below *= trips
        if below != shape[d]:
            return None
    return [(dimension[axis], trips) for axis, trips in found]
