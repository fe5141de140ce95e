"""Data-tile inference: the elements of a tensor that a tile of iterations touches.

``footprint`` counts distinct elements exactly; ``box`` gives the bounding extents, the size of a staging
buffer. Both follow from the access map alone (Roller, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from .affine import Index

# Above this many candidate positions the exact count of axes coupled across dimensions is given up
# for the bounding box (an upper bound); operators in practice stay far below.
_EXACT_POSITIONS = 1 << 24


def box(indices: Sequence[Index], tile: Mapping[str, int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the bounding extents, per dimension, of the elements touched by a tile.

    Parameters
    ----------
    indices : sequence of Index
        One per dimension of the tensor.
    tile : mapping
        Axis -> number of consecutive iterations.
    shape : sequence of int
        Extents of the tensor; a box never exceeds them.

    Examples
    --------
    >>> box([Index.of({"h": 2, "kh": 1})], {"h": 4, "kh": 3}, [100])
    (9,)
    """
    return tuple(
        extent if index.opaque else min(extent, index.extent(tile))
        for index, extent in zip(indices, shape, strict=True)
    )


def common_box(
    several: Sequence[Sequence[Index]], tile: Mapping[str, int], shape: Sequence[int]
) -> tuple[int, ...]:  # fmt: skip
    """Return the bounding extents of what several reads of a tensor touch together, as `box` does for one.

    Examples
    --------
    >>> common_box([[Index.of({"x": 1})], [Index.of({"x": 1}, 2)]], {"x": 16}, [100])
    (18,)
    """
    extents = []
    for dimension, whole in zip(zip(*several, strict=True), shape, strict=True):
        firsts = [_first(index, tile) for index in dimension]
        lasts = [first + index.extent(tile) for first, index in zip(firsts, dimension, strict=True)]
        gathered = any(index.opaque for index in dimension)
        extents.append(whole if gathered else min(whole, max(lasts) - min(firsts)))
    return tuple(extents)


def _first(index: Index, tile: Mapping[str, int]) -> int:
    """Return the least value of an index over a tile that begins at 0."""
    return (index.const + sum(c * (tile[axis] - 1) for axis, c in index.terms if c < 0)) // index.divisor


def footprint(indices: Sequence[Index], tile: Mapping[str, int], shape: Sequence[int]) -> int:
    """Return the number of distinct elements that an aligned tile touches in the interior of the tensor.

    For quotients: the largest number over the tile's positions.

    Examples
    --------
    >>> footprint([Index.of({"h": 4, "kh": 1})], {"h": 5, "kh": 3}, [100])
    15
    >>> footprint([Index.of({"h": 3}, divisor=2)], {"h": 5}, [100])
    5
    """
    total = 1
    for group in _coupled(tuple(indices)):
        extents = [shape[d] for d in group]
        bounds = box([indices[d] for d in group], tile, extents)
        limit = 1
        for b in bounds:
            limit *= b
        total *= min(limit, _count(indices, group, tile, bounds))
    return total


def _count(
    indices: Sequence[Index], group: tuple[int, ...], tile: Mapping[str, int], bounds: Sequence[int]
) -> int:
    if len(group) == 1:
        index = indices[group[0]]
        if index.opaque:
            return bounds[0]
        sums = tuple((abs(c), tile[n]) for n, c in index.terms)
        return distinct_sums(sums) if index.divisor == 1 else _distinct_quotients(sums, index, tile)
    product = 1
    for b in bounds:
        product *= b
    if any(indices[d].divisor > 1 for d in group):
        return product
    # Several dimensions share an axis: lay the dimensions out in one mixed-radix position, so that
    # distinct elements are distinct positions.
    spans = [1 + sum(abs(c) * (tile[n] - 1) for n, c in indices[d].terms) for d in group]
    radix = 1
    flat: dict[str, int] = {}
    for d, span in zip(group, spans, strict=True):
        for name, c in indices[d].terms:
            flat[name] = flat.get(name, 0) + c * radix
        radix *= 2 * span  # twice the span: coefficients of either sign cannot alias
    if radix > _EXACT_POSITIONS:
        return product
    return distinct_sums(tuple((abs(c), tile[n]) for n, c in flat.items() if c))


@lru_cache(maxsize=4096)
def _coupled(indices: tuple[Index, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the dimensions in groups such that no axis occurs in two groups."""
    groups: list[tuple[set[str], list[int]]] = []
    for d, index in enumerate(indices):
        axes, members = set(index.axes), [d]
        rest = []
        for other_axes, other in groups:
            if axes & other_axes:
                axes |= other_axes
                members = other + members
            else:
                rest.append((other_axes, other))
        groups = [*rest, (axes, members)]
    return tuple(tuple(sorted(members)) for _, members in groups)


@lru_cache(maxsize=65536)
def distinct_sums(steps: tuple[tuple[int, int], ...]) -> int:
    """Return the number of distinct values of ``sum(c_i * t_i)`` with ``0 <= t_i < e_i`` over (c_i, e_i).

    Examples
    --------
    >>> distinct_sums(((2, 4), (1, 3)))
    9
    """
    steps = tuple(sorted((c, e) for c, e in steps if c and e > 1))
    stride, count = 1, 1  # so far the values are {0, stride, ..., (count-1)*stride}
    for position, (c, e) in enumerate(steps):
        if count == 1:
            stride, count = c, e
        elif c % stride == 0 and c // stride <= count:
            count += (e - 1) * (c // stride)
        elif c > stride * (count - 1) and position == len(steps) - 1:
            count *= e  # copies that do not overlap
        else:
            return _distinct_by_bits(steps)
    return count


def _distinct_quotients(sums: tuple[tuple[int, int], ...], index: Index, tile: Mapping[str, int]) -> int:
    """Return the number of distinct values of a floor quotient of sums: the largest over the tile's positions."""
    d, span, whole = index.divisor, 0, True
    for c, e in sorted(sums):
        whole = whole and (e == 1 or c <= span + d)  # no gap is wider than the divisor: every quotient occurs
        span += c * (e - 1)
    if whole:
        return index.extent(tile)
    if span > _EXACT_POSITIONS // d:
        return min(index.extent(tile), distinct_sums(sums))
    bits = _reachable(sums)
    values = [v for v in range(span + 1) if bits >> v & 1]
    return max(len({(v + phase) // d for v in values}) for phase in index.phases(tile))


def _distinct_by_bits(steps: tuple[tuple[int, int], ...]) -> int:
    return _reachable(steps).bit_count()


def _reachable(steps: tuple[tuple[int, int], ...]) -> int:
    """Return the set of reachable sums as the bits of one integer."""
    bits = 1
    for c, e in steps:
        have, copies = 1, bits
        while have < e:  # doubling: after each round `copies` holds `have` shifted copies
            take = min(have, e - have)
            copies |= copies << (c * take)
            have += take
        bits = copies
    return bits
