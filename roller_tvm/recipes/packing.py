"""Packed operands: laid out in the order in which the register tiles read them, so that loads run forward.

Constants are packed when the module is built. Copies of other operands are packed while a parallel task writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Access, Stage, TensorExpression
from ..roller.steps import Pack


def pack_constants(
    expression: TensorExpression, anchor: Stage, reader: str, loops: Sequence[tuple[str, int]], padded: bool = False
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
    padded : bool
        Whether loops may go over the edge of a constant, where zeros are.

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
        steps += _packed(access, tensor.shape, access.tensor, reader, loops, padded)
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
    access: Access, shape: tuple[int, ...], stage: str, reader: str, loops: Sequence[tuple[str, int]],
    padded: bool = False,
) -> list[Pack]:  # fmt: skip
    found = [digit for digit in _digits(access, shape, loops, padded) or () if digit[1] > 1]
    return [Pack(stage, reader, tuple(d for d, _ in found), tuple(n for _, n in found))] if found else []


def _digits(
    access: Access, shape: tuple[int, ...], loops: Sequence[tuple[str, int]], padded: bool
) -> list[tuple[int, int]] | None:
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
        if below < shape[d] or below > shape[d] and not padded:
            return None
    return [(dimension[axis], trips) for axis, trips in found]
