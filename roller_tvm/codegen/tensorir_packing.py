"""Packed constant operands: marked as TVM's ``SplitLayoutRewritePreproc`` expects, which splits the packing off.

The packing is then a function of constants alone, which ``FoldConstant`` (or ``LiftTransformParams``) evaluates when
the module is built. In a function that is built without these passes, the packing runs first, at each call.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..roller.steps import Pack
from ..tir.nodes import PACKING

#: Attribute of a PrimFunc: positions of the parameters that are known when the module is built.
CONSTANTS = "layout_free_buffers"


def constant_parameters(func: Any) -> tuple[int, ...]:
    """Return the positions of parameters whose values are known at build time (see ``AttachAttrLayoutFreeBuffers``)."""
    found = func.attrs[CONSTANTS] if func.attrs and CONSTANTS in func.attrs else ()
    return tuple(int(position) for position in found)


def index_map(step: Pack) -> Callable[..., list[Any]]:
    """Return the function from old indices to new ones, for ``transform_layout``.

    Examples
    --------
    >>> index_map(Pack("w", "C", (0, 1, 0), (4, 8, 16)))(37, 5)
    [2, 5, 5]
    """
    sizes: dict[int, int] = {}
    for dim, _, length in step.digits():
        sizes[dim] = sizes.get(dim, 1) * length

    def digits(*index: Any) -> list[Any]:
        found: list[Any] = []
        for dim, below, length in step.digits():
            value = index[dim] // below if below > 1 else index[dim]
            found.append(value % length if below * length < sizes[dim] else value)
        return found

    return digits


def zero_behind(step: Pack, buffer: Any) -> Any | None:
    """Return the zero behind a packed tensor's edge; None if digits make up no more than it has."""
    from tvm import tirx

    digits = list(zip(step.dims, step.lengths, strict=True))
    sizes = [prod(length for of, length in digits if of == dim) for dim in range(len(buffer.shape))]
    over = any(size > int(extent) for size, extent in zip(sizes, buffer.shape, strict=True))
    return tirx.const(0, str(buffer.dtype)) if over else None


def mark_packed(schedule: Any, block: Any) -> None:
    """Mark a block as the packing of a constant, so that it can be split off and folded."""
    schedule.annotate(block, PACKING, 1)  # True becomes 1 in a database's files
