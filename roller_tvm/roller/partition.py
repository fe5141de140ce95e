"""Cutting an expression into loop nests: each stage is computed in place or gets a nest of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..ir import Access, Stage, TensorExpression

#: Whether a prologue of an expression is stored.
Store = Callable[[TensorExpression, Stage], bool]


@dataclass(frozen=True)
class NestShape:
    """Stages of one loop nest.

    Parameters
    ----------
    anchor : str
        Stage that the nest computes.
    output : str
        Stage that is stored: the last fused epilogue, or the anchor.
    inlined : tuple of str
        Prologues and inner epilogues, computed in place.
    """

    anchor: str
    output: str
    inlined: tuple[str, ...]


def store_guarded(expression: TensorExpression, stage: Stage) -> bool:
    """Return whether a prologue is guarded and a reduction reads its elements more than once.

    In place, its guard would be in the innermost loop, as no fast memory is filled by hand.
    """
    return any(a.guarded for a in stage.reads) and _reread(expression, stage)


def store_rearranged(expression: TensorExpression, stage: Stage) -> bool:
    """Return the same as ``store_guarded``, but also True for prologues that rearrange their input (packing)."""
    moves = any(a.guarded or a.indices != stage.write().indices for a in stage.reads)
    return moves and _reread(expression, stage)


def store_packed(expression: TensorExpression, stage: Stage) -> bool:
    """Return whether a prologue rearranges its input without a guard behind it (a guard is known in place)."""
    prologues = [s.name for s in expression.stages if not s.reduce]
    guarded = any(a.guarded for a in expression.resolve(stage, prologues))
    return store_rearranged(expression, stage) and not guarded


def _reread(expression: TensorExpression, stage: Stage) -> bool:
    return any(c.reduce and c.points > stage.points for c in expression.consumers(stage.name))


def partition(
    expression: TensorExpression, store: Store | None = None
) -> tuple[NestShape, ...]:
    """Return the loop nests of an expression, in the order in which they run.

    Every reduction is the anchor of a nest. Element-wise stages after it that keep its shape are fused into
    the nest. Stages without a reduction are computed in place by their readers, unless they are an output or
    have several results (TVM computes only one result in place).

    Examples
    --------
    >>> from roller_tvm.ir.operators import softmax
    >>> [n.anchor for n in partition(softmax(shape=(64, 1000)))]
    ['max', 'sum', 'norm']
    """
    outputs = {s.name for s in expression.outputs}
    nests: list[tuple[str, str, set[str]]] = []  # anchor, output, fused epilogues in between
    claimed: set[str] = set()
    for stage in expression.stages:
        if not stage.reduce:
            continue
        chain = fused_epilogue(expression, stage, claimed)
        claimed |= {stage.name, *chain}
        nests.append((stage.name, chain[-1] if chain else stage.name, set(chain[:-1])))
    for stage in expression.stages:
        if stage.name not in claimed and (
            stage.name in outputs or stage.results > 1 or (store is not None and store(expression, stage))
        ):
            claimed.add(stage.name)
            nests.append((stage.name, stage.name, set()))
    order = {s.name: i for i, s in enumerate(expression.stages)}
    nests.sort(key=lambda n: order[n[1]])
    roots = {output for _, output, _ in nests} | {anchor for anchor, _, _ in nests}
    result = []
    for anchor, output, inner in nests:
        inlined = set(inner)
        todo = [anchor, output, *inner]
        while todo:
            for access in expression.stage(todo.pop()).reads:
                name = access.tensor
                if expression.is_stage(name) and name not in roots and name not in inlined:
                    inlined.add(name)
                    todo.append(name)
        result.append(NestShape(anchor, output, tuple(sorted(inlined, key=order.__getitem__))))
    return tuple(result)


def fused_epilogue(expression: TensorExpression, anchor: Stage, claimed: set[str]) -> list[str]:
    """Return the stages after `anchor` that can be computed on its tile, in order; the last is the nest's output."""
    included = [anchor.name]
    tainted: set[str] = set()  # depend on the anchor in another way
    for stage in expression.stages:
        mine = [a for a in stage.reads if a.tensor in included]
        if any(a.tensor in tainted for a in stage.reads):
            tainted.add(stage.name)
        elif mine:
            same = [a.extent for a in stage.spatial] == [a.extent for a in anchor.spatial]
            fits = not stage.reduce and same and stage.results == 1 and stage.name not in claimed
            if fits and all(is_identity(a, stage) for a in mine):
                included.append(stage.name)
            else:
                tainted.add(stage.name)
    while len(included) > 1 and not _single_sink(expression, included):
        included.pop()
    return included[1:]


def is_identity(access: Access, stage: Stage) -> bool:
    """Return whether a stage reads a tensor at exactly the point that it computes."""
    return access.indices == stage.write().indices


def _single_sink(expression: TensorExpression, included: list[str]) -> bool:
    """Return whether only the last stage is visible outside of the nest."""
    outputs = {s.name for s in expression.outputs}
    return all(
        name not in outputs and all(c.name in included for c in expression.consumers(name))
        for name in included[:-1]
    )
