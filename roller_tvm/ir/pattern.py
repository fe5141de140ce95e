"""The kind of operator that an expression is, and the stage that carries it (the anchor)."""

from __future__ import annotations

from collections.abc import Sequence

from .expression import TensorExpression
from .stage import Access, Stage


def _absent(stage: Stage, access: Access) -> frozenset[str]:
    """Return the spatial axes that do not move the access: the same elements are reused along them."""
    if any(index.opaque for index in access.indices):
        return frozenset()
    return frozenset(a.name for a in stage.spatial) - access.axes


def is_product(stage: Stage) -> bool:
    """Return whether the stage is a reduction over two different reads."""
    return bool(stage.reduce) and len(set(stage.reads)) >= 2


def is_contraction(stage: Stage) -> bool:
    """Return whether the stage reduces two operands, each reused along spatial axes that move the other."""
    if not is_product(stage):
        return False
    absent = [_absent(stage, a) for a in dict.fromkeys(stage.reads)]
    return any(a - b and b - a for i, a in enumerate(absent) for b in absent[i + 1 :])


def _is_window(stage: Stage) -> bool:
    """Return whether some index slides: it adds a spatial axis and a reduction axis, both longer than 1."""
    reduce = {a.name for a in stage.reduce if a.extent > 1}
    spatial = {a.name for a in stage.spatial if a.extent > 1}
    return any(reduce & set(i.axes) and spatial & set(i.axes) for a in stage.reads for i in a.indices)


def choose_anchor(stages: Sequence[Stage]) -> str:
    """Return the name of the stage to tile.

    The contraction with the most arithmetic; without one the product, then the reduction with the most
    (of equals the later, which the earlier feeds); without any reduction the last stage.
    """
    if not stages:
        raise ValueError("an expression needs at least one stage")
    reductions = [s for s in stages if s.reduce]
    if not reductions:
        return stages[-1].name
    ranked = [((is_contraction(s), is_product(s), s.flops), i, s.name) for i, s in enumerate(reductions)]
    return max(ranked)[2]


def pattern(expression: TensorExpression) -> str:
    """Return the kind of operator, which decides how it is planned.

    Returns
    -------
    str
        - 'contraction': the anchor reduces a product of two operands, each of which is reused along
          a spatial axis that the other moves with (an axis absent from its access): matmul, conv2d.
        - 'depthwise': it reduces a product, but one operand moves with every spatial axis; that operand is
          reused only through overlapping windows.
        - 'pooling': it reduces windows of one operand.
        - 'softmax': several reductions of one operand, in a chain or side by side.
        - 'reduction': one operand, plain reduction axes.
        - 'injective': nothing is reduced.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> pattern(operator("matmul", m=64, n=64, k=64))
    'contraction'
    """
    anchor = expression.anchor
    if not anchor.reduce:
        return "injective"
    if is_contraction(anchor):
        return "contraction"
    if is_product(anchor) and len(expression.reductions) == 1:
        return "depthwise"
    if len(expression.reductions) > 1:
        return "softmax"
    return "pooling" if _is_window(anchor) else "reduction"
