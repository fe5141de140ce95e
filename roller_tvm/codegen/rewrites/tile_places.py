"""Places of register tiles along an axis that cores share: ranges of places where the same checks hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any

from ...te.numbering import PARALLEL, SERIAL, dtype_of_node
from ..dialect import Dialect
from ..flat import LETS, Sum, kind_of, statements, with_body
from ..flat_conditions import below_zero

#: Most places that are looked at.
MOST_PLACES = 4096


@dataclass(frozen=True)
class TilePlaces:
    """A loop over tiles inside another one, where a tile's place along an axis decides checks.

    Parameters
    ----------
    loop : For
        The innermost loop on which the place depends.
    place : Sum
    kinds : list of (int, int)
        First and last place of runs of places with the same outcomes: of each run, or of the one that has most places.
    whole : bool
        Whether the runs have all places.
    named : mapping
        Value of each name, by the hash of its variable.
    """

    loop: Any
    place: Sum
    kinds: list[tuple[int, int]]
    whole: bool
    named: Mapping[int, Any]

    @classmethod
    def of(
        cls, loop: Any, checks: list[Any], named: Mapping[int, Any], loops: Mapping[int, Any], most: int,
        dialect: Dialect,
    ) -> TilePlaces | None:  # fmt: skip
        """Return the places of a loop's tiles; None if checking them gains nothing.

        Parameters
        ----------
        loops : mapping
            All loops, by the hash of their variable.
        most : int
            Most kinds of places.
        """
        if int(loop.kind) not in (SERIAL, PARALLEL):
            return None
        inside = {hash(node.loop_var) for node in statements(loop.body) if kind_of(node) == "For"}
        inside |= {hash(node.var) for node in statements(loop.body) if kind_of(node) in LETS}
        found: dict[Any, list[tuple[Sum, int, int]]] = defaultdict(list)
        for placed in (_placed(check, loop, named) for check in checks):
            if placed is not None and (own := placed[0].variables()) <= set(loops) and not own & inside:
                found[tuple(sorted((at, count) for at, (_, count) in placed[0].terms.items()))].append(placed)
        if not found:
            return None
        alike = max(found.values(), key=len)
        place = alike[0][0]
        every = places_of(place, [loops[variable] for variable in place.variables()], dialect)
        if every.stop - every.start > MOST_PLACES * every.step:
            return None
        outcomes = [[offset + step * at < 0 for _, offset, step in alike] for at in every]
        kinds = [(every[first], every[end - 1]) for first, end in few_runs(outcomes, most)]
        whole = bool(kinds) and (kinds[0][0], kinds[-1][1]) == (every[0], every[-1])
        return cls(loop, place, kinds, whole, named) if len(kinds) > whole else None

    def choosing(self, body_of: Callable[[Callable[[Any], bool | None]], Any], dialect: Dialect) -> Any:
        """Return the loop, its body chosen by the place of a tile.

        Parameters
        ----------
        body_of : function
            Function of the outcomes of checks (None: not known) -> the loop's body where they have them.
        """
        tir, place = dialect.tir, self.place.expression(dialect.tir)
        made = None if self.whole else self.loop.body
        for first, last in reversed(self.kinds):
            body = body_of(partial(self.outcome, first))
            made = body if made is None else tir.IfThenElse(within(place, first, last, self.whole, tir), body, made)
        return with_body(self.loop, made, tir)

    def outcome(self, at: int, check: Any) -> bool | None:
        """Return a check's outcome at a place, None if something else decides it."""
        found = _placed(check, self.loop, self.named)
        return found[1] + found[2] * at < 0 if found is not None and found[0].same(self.place) else None


def _placed(check: Any, loop: Any, named: Mapping[int, Any]) -> tuple[Sum, int, int] | None:
    """Return (place, offset, step) such that a condition is `offset + step * place < 0`, or None.

    The place is a sum that grows with the loop's trips, without a number.
    """
    below = below_zero(check, named, loop.loop_var)
    if below is None or not (moved := below.of(loop.loop_var)):
        return None
    counts = [count for _, count in below.terms.values()]
    step = gcd(*counts) if moved > 0 else -gcd(*counts)
    terms = {at: (atom, count // step) for at, (atom, count) in below.terms.items() if count}
    return Sum(0, terms), below.number, step


def places_of(place: Sum, loops: Iterable[Any], dialect: Dialect) -> range:
    """Return the values that a sum over loops may have; none if that is one number."""
    analyzer, expression = dialect.analyzer(), place.expression(dialect.tir)
    for loop in loops:
        analyzer.bind(loop.loop_var, _range(loop))
    bound, steps = analyzer.const_int_bound(expression), analyzer.modular_set(expression)
    least, most, step = int(bound.min_value), int(bound.max_value), int(steps.coeff)
    return range(least + (int(steps.base) - least) % step, most + 1, step) if step else range(0)


def _range(loop: Any) -> Any:
    import tvm

    return tvm.ir.Range.from_min_extent(loop.min, loop.extent)


def within(place: Any, first: int, last: int, begun: bool, tir: Any) -> Any:
    """Return the condition of a place between two others; `begun` if none before the first one gets there."""
    dtype = dtype_of_node(place)
    end = place <= tir.const(last, dtype)
    return end if begun else tir.all(tir.const(first, dtype) <= place, end)


def few_runs(of_trip: list[Any], most: int) -> list[tuple[int, int]]:
    """Return `runs`; for more than `most` the longest alone, if it has half of all trips and two copies are allowed.

    Examples
    --------
    >>> few_runs([1, 2, 2, 2, 3], 3), few_runs([0, 1, 2, 2, 2, 2, 3], 3), few_runs([0, 1, 2, 3], 3)
    ([(0, 1), (1, 4), (4, 5)], [(2, 6)], [])
    """
    found = runs(of_trip)
    if len(found) <= most:
        return found
    longest = max(found, key=lambda run: run[1] - run[0])
    return [longest] if most >= 2 and 2 * (longest[1] - longest[0]) >= len(of_trip) else []


def runs(of_trip: list[Any]) -> list[tuple[int, int]]:
    """Return runs of equal neighbours: the first trip of each run, and one after the last.

    Examples
    --------
    >>> runs([1, 2, 2, 2, 3])
    [(0, 1), (1, 4), (4, 5)]
    """
    begins = [n for n, known in enumerate(of_trip) if not n or known != of_trip[n - 1]]
    return list(zip(begins, [*begins[1:], len(of_trip)], strict=True))
