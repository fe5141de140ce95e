"""Peeled loops: trips at the start and the end, the only ones that choose padding, become copies of their own.

A choice between vectors is a branch, and LLVM carries vectors that fill no register over a branch element by element.
A register tile over the edge of its rows has branches too: LLVM 22 keeps them in the innermost loop, of every tile, and
moves the other rows' sums from register to register around them (197 rows in tiles of 9 take twice the time).

Where cores share the rows, a tile's place in all of them decides, not its trip: one check a tile chooses the copy.
Where padding ends within the second or a later tile, there are more kinds of tiles than copies: those within have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...te.numbering import SERIAL, dtype_of_node
from ..dialect import Dialect
from ..flat import (
    CHOICE,
    called,
    gathered,
    in_order,
    is_vector,
    kind_of,
    names_of,
    number_of,
    parts_of,
    statements,
    values_of,
    with_body,
)
from ..flat_conditions import below_zero, conjuncts
from .hoisted_choices import between_tensors
from .tile_places import TilePlaces, few_runs, within

#: Most choices in all copies of a loop's body; with more LLVM takes long.
CHOICES = 2000
#: Most copies of a loop's body.
COPIES_OF_BODY = 3


def with_peeled_loops(body: Any, dialect: Dialect) -> Any | None:
    """Return a flattened statement with fewer choices between vectors in its loops; None if none can be saved.

    The body of such a loop occurs up to `COPIES_OF_BODY` times, and so in each of them if TVM tells its place in
    another way too: run TVM's ``ConvertSSA`` afterwards.
    """
    named, found = names_of(body), []
    loops = {hash(node.loop_var): node for node in statements(body) if kind_of(node) == "For"}

    def one(loop: Any) -> Any | None:
        choices, rows = gathered(loop.body, "choices", _choices), _rows(loop)
        conditions = [*(choice.args[0] for choice in choices), *rows]
        most = min(COPIES_OF_BODY, CHOICES // max(1, len(conditions)))
        if (kinds := _kinds(loop, _checks(conditions, named), named, most)) is not None:
            found.append(loop)
            return of_kinds(loop, kinds)
        placed = by_place(loop)
        found.extend([] if placed is None else [loop])
        return placed

    def of_kinds(loop: Any, kinds: list[tuple[int, int]]) -> Any:
        """Return a loop in parts; if the kinds do not have all trips, the choice between two bodies in each trip."""

        def of_trip(trip: int) -> Any:
            return _chosen(loop, partial(_in_trip, loop, trip, named), named, dialect)

        if kinds[0][0] == 0 and kinds[-1][1] == number_of(loop.extent):
            return in_parts(loop, kinds, of_trip, dialect)
        ((first, end),), tir = kinds, dialect.tir
        alike = within(loop.loop_var, first, end - 1, False, tir)
        return with_body(loop, tir.IfThenElse(alike, of_trip(first), loop.body), tir)

    def by_place(loop: Any) -> Any | None:
        """Return a loop whose tiles' places choose its body; None if none do."""
        choices, rows = gathered(loop.body, "choices", _choices), _rows(loop)
        most = min(COPIES_OF_BODY, CHOICES // max(1, len(choices) + len(rows)))
        # Choices between tensors are `hoisted_choices`'.
        padding = [choice.args[0] for choice in choices if not between_tensors(choice)]
        places = TilePlaces.of(loop, _checks([*padding, *rows], named), named, loops, most, dialect)
        if places is None:
            return None

        def of(outcome: Callable[[Any], bool | None]) -> Any:
            body = _chosen(loop, outcome, named, dialect)
            further = by_place(with_body(loop, body, dialect.tir))  # TVM says some checks of an axis in another way
            return body if further is None else further.body

        return places.choosing(of, dialect)

    made = dialect.with_loops(body, one)
    return made if found else None


def in_parts(loop: Any, kinds: list[tuple[int, int]], of_trip: Callable[[int], Any], dialect: Dialect) -> Any:
    """Return a loop split into one part per kind of its trips, in order.

    Parameters
    ----------
    loop : For
        A loop that starts at 0.
    kinds : list of (int, int)
        First trip of each part, and one after its last.
    of_trip : function of int -> Stmt
        First trip of a part -> the body in that part.
    dialect : Dialect
    """
    tir, dtype = dialect.tir, dtype_of_node(loop.loop_var)
    parts: list[Any] = []
    for first, end in kinds:
        begin, made = tir.const(first, dtype), of_trip(first)
        if end == first + 1:
            parts.append(dialect.substituted(made, loop.loop_var, begin))
        else:
            made = dialect.substituted(made, loop.loop_var, loop.loop_var + begin) if first else made
            parts.append(with_body(loop, made, tir, tir.const(end - first, dtype)))
    return in_order(parts, tir)


def _checks(conditions: list[Any], named: Mapping[int, Any]) -> list[Any]:
    """Return the checks of conditions, each once."""
    return list({hash(check): check for condition in conditions for check in conjuncts(condition, named)}.values())


def _rows(loop: Any) -> list[Any]:
    """Return the conditions behind which a loop stores rows of vectors, where copies of its body pay.

    One check of a row before all inner loops costs little: rows are peeled for checks inside of those.
    """
    inside = gathered(loop.body, "rows in loops", _rows_in_loops)
    return [node.condition for node in gathered(loop.body, "rows", _row)] if inside else []


def _kinds(loop: Any, checks: list[Any], named: Mapping[int, Any], most: int) -> list[tuple[int, int]] | None:
    """Return runs of trips that choose the same, at most `most`, or the longest; None if that gains nothing."""
    trips = number_of(loop.extent)
    if int(loop.kind) != SERIAL or number_of(loop.min) != 0 or not trips:
        return None
    known = [found for check in checks if (found := _number(check, loop, named)) is not None]
    outcomes = [[number + step * trip < 0 for number, step in known] for trip in range(trips)]
    return few_runs(outcomes, most) or None if known else None


def _choices(node: Any) -> list[Any]:
    """Return the choices between vectors in the values that a statement itself computes and keeps."""
    if kind_of(node) == "Evaluate":  # a prefetch, of which kernels have hundreds
        return []
    return [part for value in values_of(node) for part in parts_of(value) if _chooses(part)]


def _row(node: Any) -> list[Any]:
    """Return a condition behind which vectors are stored, and nothing otherwise."""
    if kind_of(node) == "IfThenElse" and node.else_case is None:
        inside = statements(node.then_case)
        if any(kind_of(store) == "BufferStore" and is_vector(store.value) for store in inside):
            return [node]
    return []


def _rows_in_loops(node: Any) -> list[Any]:
    """Return the conditions of rows in a loop, if it is one."""
    return gathered(node.body, "rows", _row) if kind_of(node) == "For" else []


def _chooses(node: Any) -> bool:
    return called(node) == CHOICE and is_vector(node)


def _number(check: Any, loop: Any, named: Mapping[int, Any]) -> tuple[int, int] | None:
    """Return (offset, step) such that the condition is `offset + step * trip < 0`, or None."""
    below = below_zero(check, named, loop.loop_var)
    if below is None or not below.of(loop.loop_var) or not below.without(loop.loop_var).is_number:
        return None
    return below.number, below.of(loop.loop_var)


def _in_trip(loop: Any, trip: int, named: Mapping[int, Any], check: Any) -> bool | None:
    """Return a check's outcome in a trip of a loop, None if that is not known."""
    found = _number(check, loop, named)
    return None if found is None else found[0] + found[1] * trip < 0


def _chosen(
    loop: Any, outcome: Callable[[Any], bool | None], named: Mapping[int, Any], dialect: Dialect
) -> Any:
    """Return the body of a loop with its choices made by the outcomes of checks."""

    def left(condition: Any) -> list[Any] | None:
        """Return the checks of a condition whose outcome is not known; None if one of them fails."""
        outcomes = [(check, outcome(check)) for check in conjuncts(condition, named)]
        return None if any(o is False for _, o in outcomes) else [check for check, o in outcomes if o is None]

    def one(node: Any) -> Any | None:
        if not _chooses(node):
            return None
        condition, chosen, other = node.args
        if (checks := left(condition)) is None:
            return other
        if not checks:
            return chosen
        return dialect.call(dtype_of_node(node), node.op, [dialect.tir.all(*checks), chosen, other])

    def row(node: Any) -> Any | None:
        if node.else_case is not None:
            return None
        if (checks := left(node.condition)) is None:
            return dialect.tir.Evaluate(dialect.tir.const(0, "int32"))
        return dialect.tir.IfThenElse(dialect.tir.all(*checks), node.then_case, None) if checks else node.then_case

    return dialect.with_checks(dialect.with_calls(loop.body, one), row)
