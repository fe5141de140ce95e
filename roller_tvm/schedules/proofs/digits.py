"""Loops whose variables are divided, as digits: ``x // 8`` and ``x % 8`` are two dimensions, and all indices affine.

isl knows quotients, but each costs it a variable of its own in every set. A fused loop, or a thread that copies a tile,
has several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...codegen.flat import direct_parts, kind_of, number_of, parts_of, statements, values_of
from ...te.numbering import dtype_of_node

#: A part of a variable: its hash, and the numbers by which it is divided and to which it is reduced (0: it is not).
Part = tuple[Any, int, int]


def part_of(node: Any) -> Part | None:
    """Return the variable, `low` and `high` of an expression that is ``x % high // low``; None if it is another."""
    kind = kind_of(node)
    if kind in ("Var", "SizeVar"):
        return node, 1, 0
    if kind == "Cast" and dtype_of_node(node.value).startswith(("int", "uint")):
        return part_of(node.value)
    if kind not in ("FloorDiv", "FloorMod", "Div", "Mod"):
        return None
    a, b = direct_parts(node)
    by, inner = number_of(b), part_of(a)
    if by is None or by < 1 or inner is None:
        return None
    var, low, high = inner
    if high and high % (low * by):
        return None
    return (var, low, low * by) if "Mod" in kind else (var, low * by, high)


def cuts_of(body: Any, apart: Callable[[Any], bool] = lambda store: False) -> dict[int, Counter[int]]:
    """Return by how much each variable is divided in a function: hash of the variable -> divisors, and how often.

    Parameters
    ----------
    body : statement
    apart : function of a store
        Whether it has digits of its own (``Folding``).
    """
    found: dict[int, Counter[int]] = {}
    threads: dict[str, list[int]] = {}
    for statement in statements(body):
        if kind_of(statement) == "AttrStmt" and str(statement.attr_key).endswith("thread_extent"):
            threads.setdefault(str(statement.node.thread_tag), []).append(hash(statement.node.var))
        if kind_of(statement) == "BufferStore" and apart(statement):
            continue
        indices = statement.indices if kind_of(statement) == "BufferStore" else ()
        for value in (*values_of(statement), *indices):
            for node in parts_of(value):
                if kind_of(node) in ("FloorDiv", "FloorMod", "Div", "Mod") and (part := part_of(node)) is not None:
                    var, low, high = part
                    found.setdefault(hash(var), Counter()).update(n for n in (low, high) if n > 1)
    for names in threads.values():  # one thread under several names
        together = sum((found.get(name, Counter()) for name in names), Counter())
        found |= dict.fromkeys(names, together)
    return found


def strides_of(extent: int, cuts: Mapping[int, int]) -> tuple[int, ...]:
    """Return the strides of the digits of a loop, the outermost first: each divides the one before and the extent.

    Examples
    --------
    >>> strides_of(518, {7: 4, 259: 2, 37: 1})
    (259, 7, 1)
    """
    chosen = [1]
    for cut in sorted(cuts, key=lambda n: (-cuts[n], n)):
        if cut < extent and not extent % cut and all(not max(cut, c) % min(cut, c) for c in chosen):
            chosen.append(cut)
    return tuple(sorted(set(chosen), reverse=True))


def split_index(
    terms: Mapping[str, int], start: int, extents: Mapping[str, int], steps: Sequence[int]
) -> list[str] | None:  # fmt: skip
    """Return a flat index as one index a dimension; None where a sum may reach into the next dimension.

    Parameters
    ----------
    terms : mapping
        Name -> its factor.
    start : int
        What is added to the terms.
    extents : mapping
        Name -> its number of values, from 0.
    steps : sequence of int
        Elements from one index of a dimension to the next, the last 1.

    Examples
    --------
    >>> split_index({"i": 64, "j": 8, "k": 1}, 3, {"i": 4, "j": 8, "k": 4}, [64, 1])
    ['1*i + 0', '8*j + 1*k + 3']
    >>> split_index({"i": 64, "k": 1}, 0, {"i": 4, "k": 65}, [64, 1]) is None
    True
    """
    if any(factor < 0 for factor in terms.values()):
        return None
    rest, found = dict(terms), []
    for step in steps:
        own = {name: factor // step for name, factor in rest.items() if not factor % step}
        rest = {name: factor for name, factor in rest.items() if name not in own}
        own_start, start = divmod(start, step)
        if start + sum(factor * (extents[name] - 1) for name, factor in rest.items()) >= step:
            return None
        found.append(" + ".join([*(f"{factor}*{name}" for name, factor in own.items()), str(own_start)]))
    return found


def summands(node: Any, factor: int = 1) -> Iterator[tuple[Any, int]] | None:
    """Return the terms of a sum, each with its factor; None where a product is not by a number."""
    kind = kind_of(node)
    if kind in ("Add", "Sub"):
        one, other = direct_parts(node)
        a, b = summands(one, factor), summands(other, factor if kind == "Add" else -factor)
        return None if a is None or b is None else iter([*a, *b])
    if kind == "Mul":
        a, b = direct_parts(node)
        for one, other in ((a, b), (b, a)):
            if (by := number_of(other)) is not None:
                return summands(one, factor * by)
        return None
    return iter([(node, factor)])


@dataclass(frozen=True)
class Term:
    """A factor times a part of an expression: ``base % high // low``, of which nothing is cut off where `high` is 0."""

    factor: int
    base: Any
    low: int = 1
    high: int = 0


def address(indices: Sequence[Any], steps: Sequence[int]) -> list[Term]:
    """Return the terms of a flat index; parts of one expression that follow each other become one.

    Parameters
    ----------
    steps : sequence of int
        Elements from one index of a dimension to the next.
    """
    found: dict[Any, list[Term]] = {}
    for index, step in zip(indices, steps, strict=True):
        for node, factor in summands(index, step) or [(index, step)]:
            number = number_of(node)
            base, low, high = (node, 1, 0) if number is not None else _of_any(node)
            found.setdefault(str(base), []).append(Term(factor, base, low, high))
    return [term for terms in found.values() for term in _joined(terms)]


def fused_from(indices: Sequence[Any]) -> int | None:
    """Return the first dimension whose index is a part of an expression of which another index is one, too.

    The expression is no variable: that of a fused loop over a tile, say. None if there is none.
    """
    first: dict[str, int] = {}
    found: list[int] = []
    for dim, index in enumerate(indices):
        for node, _ in summands(index) or [(index, 1)]:
            if (part := _of_any(node))[1:] != (1, 0) and part_of(node) is None:
                seen = first.setdefault(str(part[0]), dim)
                found += [seen] if seen < dim else []
    return min(found, default=None)


def _of_any(node: Any) -> Part:
    """Return what an expression is a part of, itself if it is none."""
    if kind_of(node) not in ("FloorDiv", "FloorMod"):
        return node, 1, 0
    a, b = direct_parts(node)
    by, (base, low, high) = number_of(b), _of_any(a)
    if by is None or by < 1 or (high and high % (low * by)):
        return node, 1, 0
    return (base, low, low * by) if kind_of(node) == "FloorMod" else (base, low * by, high)


def _joined(terms: list[Term]) -> list[Term]:
    done: list[Term] = []
    for term in sorted(terms, key=lambda t: t.low):
        last = done[-1] if done else None
        if last is not None and last.high == term.low and term.factor * last.low == last.factor * term.low:
            done[-1] = Term(last.factor, last.base, last.low, term.high)
        else:
            done.append(term)
    return done
