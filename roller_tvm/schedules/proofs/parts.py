"""Parts of a whole: the axes of the whole for which an instance of a part stands, read off its store.

A schedule cuts a sum ``C[i] += A[i, k]`` into parts ``P[p, i] += A[i, 8*p + q]``. Where the part reads an input at
``8*p + q``, the sum does so at `k`: that is the value of its axis. A tile of an open axis has a block of its own, which
counts from the tile's begin: where it reads or writes at ``begin + i``, the whole does so at `i`. These are hints: what
is proven of a statement does not rely on them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from ...codegen.flat import access_of, called, direct_parts, is_load, kind_of, memory_of, number_of
from .blocks import Block, same
from .digits import summands


def axes_of_parts(block: Block, store: Any, zero: Any, tiles: Tiles) -> list[Any]:
    """Return the values of a sum's axes that the store of a part stands for.

    Parameters
    ----------
    block : Block
        The whole sum.
    store : BufferStore
        Of the block of the parts, before it is lowered.
    zero : IntImm
        The value of an axis that is not found.
    tiles : Tiles
        Where tiles of open axes begin.
    """
    along = dict(_spatial(block.store, store))
    pairs = list(tiles.read_at(block.store.value, store.value, memory_of(block.store.buffer)))
    axes = {hash(axis.var): number_of(axis.dom.extent) for axis in block.axes}
    known = {axis: part for axis, part in along.items() if axes.get(axis) is not None}
    for whole, part in pairs:
        if hash(whole) in axes:
            known.setdefault(hash(whole), part)
    known = along | known
    for whole, part in pairs:  # windows: y + ky, of which y is known
        terms = list(summands(whole) or ())
        new = [(node, factor) for node, factor in terms if hash(node) in axes.keys() - known.keys()]
        if len(new) == 1 and new[0][1] == 1:
            for node, factor in terms:
                part = part if node is new[0][0] else part - known.get(hash(node), node) * factor
            known[hash(new[0][0])] = part
    return [known.get(hash(axis.var), zero) for axis in block.axes]


class Tiles:
    """Begins of the tensors of tiles within those of the whole, as far as the blocks before tell."""

    def __init__(self) -> None:
        self._begins: dict[tuple[int, int], Any] = {}  # memory and its dimension -> begin

    def axes_of(self, block: Block | None, store: Any, own: Sequence[Any]) -> list[Any]:
        """Return the values of a block's axes that the store of a tile stands for: its own axes, and where tiles begin.

        Parameters
        ----------
        block : Block or None
            The whole, None for a copy of an input.
        store : BufferStore
            Of the tile's block, before it is lowered.
        own : sequence of Var
            The axes of the tile's block.
        """
        inner, found = {hash(var) for var in own}, list(own)
        axes: list[Any] = [None for _ in own] if block is None else [axis.var for axis in block.axes]
        pairs: list[tuple[Any, Any]] = []
        if block is not None:
            pairs += zip(block.store.indices, store.indices, strict=False)
            pairs += self.read_at(block.store.value, store.value)
        copied = self._places(store.value) if is_load(store.value) else []
        for n, (axis, var) in enumerate(zip(axes, own, strict=False)):
            for index in (*(part for one, part in pairs if hash(one) == hash(axis)), *copied):
                if (begin := _begin(index, var, inner)) is not None:
                    found[n] = index
                    self._note(store, var, begin)
                    break
        return found

    def _note(self, store: Any, var: Any, begin: Any) -> None:
        for dim, index in enumerate(store.indices):
            if hash(index) == hash(var):
                self._begins[memory_of(store.buffer), dim] = begin

    def read_at(self, whole: Any, part: Any, apart: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield the indices of reads of the whole and of a tile, the latter's as of the whole, but for one's memory."""
        for one, other in _reads(whole, part):
            if memory_of(access_of(one)[0]) == apart:
                continue
            yield from zip(access_of(one)[1], self._places(other), strict=False)

    def _places(self, load: Any) -> list[Any]:
        buffer, indices = access_of(load)
        begins = [self._begins.get((memory_of(buffer), dim)) for dim in range(len(indices))]
        return [at if begin is None else at + begin for at, begin in zip(indices, begins, strict=True)]


def _begin(index: Any, var: Any, inner: set[int]) -> Any:
    """Return what is added to an axis in an index, None unless it depends on loops around the tile alone."""
    terms = {hash(node): (node, factor) for node, factor in summands(index) or ()}
    _, factor = terms.pop(hash(var), (None, 0))
    begins = any(kind_of(node) in ("Var", "SizeVar") for node, _ in terms.values())
    if factor != 1 or not begins or not inner.isdisjoint(terms):
        return None
    return functools.reduce(operator.add, (node * by if by != 1 else node for node, by in terms.values()))


def _spatial(whole: Any, part: Any) -> Iterator[tuple[int, Any]]:
    """Yield axes along the tensor, and their values: the tensor of the parts has one dimension more."""
    shape, parts = list(whole.buffer.shape), list(part.buffer.shape)
    for place in range(len(parts)):
        own = parts[:place] + parts[place + 1 :]
        if len(own) == len(shape) and all(number_of(b) is None or same(a, b) for a, b in zip(own, shape, strict=True)):
            indices = [index for n, index in enumerate(part.indices) if n != place]
            yield from zip(map(hash, whole.indices), indices, strict=True)
            return


def _reads(whole: Any, part: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the reads that stand at the same places of two values."""
    if is_load(whole) and is_load(part):
        yield whole, part
    elif kind_of(whole) == kind_of(part) and called(whole) == called(part):
        for one, other in zip(direct_parts(whole), direct_parts(part), strict=False):
            yield from _reads(one, other)
