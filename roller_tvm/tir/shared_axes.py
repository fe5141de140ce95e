"""Axes that functions called one after the other share: each part of such an axis can be computed by all of them alone.

The scores of attention, their softmax and its product with the values share the heads and the rows: a block of rows
needs nothing of the other rows' scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .nodes import Nest, accesses, key, nests, parameters
from .open_axes import Joined, OpenAxes, OpenAxis, Place, buffers_of, number


@dataclass(frozen=True)
class SharedAxes:
    """Axes that functions share, outermost first.

    Parameters
    ----------
    extents : tuple of int
    functions : tuple of OpenAxes
        For each function where it has these axes; none if no axis is shared.
    """

    extents: tuple[int, ...]
    functions: tuple[OpenAxes, ...]

    def blocks(self, extents: Sequence[int]) -> list[Any]:
        """Return the functions of one block with these extents."""
        return [axes.fixed(extents) for axes in self.functions]


def shared_axes(funcs: Sequence[Any], tensors: Sequence[Sequence[str]]) -> SharedAxes:
    """Return the axes that functions share.

    Every nest of every function has such an axis as one loop, and goes along every tensor that has it element by
    element; no reduction runs along it. Blocks of it are whole rows of the tensors that no other function makes: no
    cache line is cut, and prefetchers follow.

    Parameters
    ----------
    funcs : sequence of PrimFunc
        Not scheduled yet, in the order in which they are called.
    tensors : sequence of sequence of str
        The tensor for each parameter of each function; those that several functions have in common are the same.

    Examples
    --------
    >>> shared_axes([scores, softmax], [("q", "k", "s"), ("s", "p")]).extents
    (12, 197)
    """
    joined = _Classes()
    read, passed = [nests(func) for func in funcs], {names[-1] for names in tensors[:-1]}
    for func, own, names in zip(funcs, read, tensors, strict=True):
        known = {key(buffer): name for buffer, name in zip(parameters(func), names, strict=True)}
        for nest in own:
            _join(joined, nest, known)
        for buffer, name in zip(parameters(func), names, strict=True):
            wide = [d for d, extent in enumerate(buffer.shape) if number(extent) != 1]
            if len(wide) > 1 and name not in passed:
                joined.bad.add(("dim", name, wide[-1]))
    shared: list[tuple[Place, int]] = []  # the class and its extent
    for iv, _ in read[0][0].spatial:
        mine, extent = joined.root(("axis", key(iv.var))), number(iv.dom.extent)
        if extent is None or mine in map(joined.root, joined.bad):
            continue
        if all(_once(joined, nest, mine, extent) for own in read for nest in own):
            shared.append((mine, extent))
    if not shared:
        return SharedAxes((), ())
    functions = []
    for func, own, names in zip(funcs, read, tensors, strict=True):
        known = {key(buffer): name for buffer, name in zip(parameters(func), names, strict=True)}
        functions.append(_places(func, own, known, joined, shared))
    return SharedAxes(tuple(extent for _, extent in shared), tuple(functions))


def _join(joined: _Classes, nest: Nest, known: Mapping[int, str]) -> None:
    """Put the axes of a nest and the dimensions that they go along together."""
    own = {key(iv.var) for iv, _ in (*nest.spatial, *nest.reduce)}
    for iv, _ in nest.reduce:
        joined.bad.add(("axis", key(iv.var)))
    for buffer, indices in accesses(nest.block):
        name: Any = known.get(key(buffer), key(buffer))
        for d, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            if number(extent) == 1 and number(index) == 0:
                continue
            dim = ("dim", name, d)
            if key(index) in own:
                joined.join(dim, ("axis", key(index)))
                continue
            joined.bad.add(dim)
            joined.bad.update(("axis", at) for at in _used(index) if at in own)


def _used(index: Any) -> set[int]:
    from ..te.quotient import nodes_of

    return {key(node) for node in nodes_of(index)}


def _once(joined: _Classes, nest: Nest, mine: Place, extent: int) -> bool:
    """Return whether exactly one loop of a nest is of a class."""
    own = [iv for iv, _ in nest.spatial if joined.root(("axis", key(iv.var))) == mine]
    return len(own) == 1 and number(own[0].dom.extent) == extent


def _places(
    func: Any, own: Sequence[Nest], known: Mapping[int, str], joined: _Classes, shared: Sequence[tuple[Any, int]]
) -> OpenAxes:
    """Return where a function has the shared axes."""
    at = {root: n for n, (root, _) in enumerate(shared)}
    result = OpenAxes(func)
    for nest in own:
        for iv, label in nest.spatial:
            n = at.get(joined.root(("axis", key(iv.var))))
            if n is not None:
                result.places["axis", key(iv.var)] = n
                while len(result.axes) <= n:
                    result.axes.append(OpenAxis(label, iv.dom.extent, True))
    for buffer in buffers_of(func):
        name: Any = known.get(key(buffer), key(buffer))
        for d in range(len(buffer.shape)):
            n = at.get(joined.root(("dim", name, d)))
            if n is not None:
                result.places["dim", key(buffer), d] = n
    return result


class _Classes(Joined):
    """Places, and those that no shared axis may contain."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[Place] = set()
