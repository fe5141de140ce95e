"""Peeled loops: trips at the start and the end, the only ones that choose padding, become copies of their own.

A choice between vectors is a branch, and LLVM carries vectors that fill no register over a branch element by element.
A register tile over the edge of its rows has branches too: LLVM 22 keeps them in the innermost loop, of every tile, and
moves the other rows' sums from register to register around them (197 rows in tiles of 9 take twice the time).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

#: Most choices in all copies of a loop's body; with more LLVM takes long.
CHOICES = 1500


def with_peeled_loops(body: Any, dialect: Dialect) -> Any | None:
    """Return a flattened statement with fewer choices between vectors in its loops; None if none can be saved.

    The body of such a loop occurs up to three times: run TVM's ``ConvertSSA`` afterwards.
    """
    named, found = names_of(body), []

    def one(loop: Any) -> Any | None:
        kinds = _kinds(loop, named)
        if kinds is None:
            return None
        found.append(loop)
        return in_parts(loop, kinds, lambda trip: _chosen(loop, trip, named, dialect), dialect)

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


def runs(of_trip: list[Any]) -> list[tuple[int, int]]:
    """Return runs of equal neighbours: the first trip of each run, and one after the last.

    Examples
    --------
    >>> runs([1, 2, 2, 2, 3])
    [(0, 1), (1, 4), (4, 5)]
    """
    begins = [n for n, known in enumerate(of_trip) if not n or known != of_trip[n - 1]]
    return list(zip(begins, [*begins[1:], len(of_trip)], strict=True))


def _kinds(loop: Any, named: Mapping[int, Any]) -> list[tuple[int, int]] | None:
    """Return runs of trips that choose the same; None if splitting the loop gains nothing."""
    trips = number_of(loop.extent)
    if int(loop.kind) != SERIAL or number_of(loop.min) != 0 or not trips:
        return None
    conditions = [node.args[0] for node in gathered(loop.body, "choices", _choices)]
    # One check of a row before all inner loops costs little: rows are peeled for checks inside of those.
    if gathered(loop.body, "rows in loops", _rows_in_loops):
        conditions += [node.condition for node in gathered(loop.body, "rows", _row)]
    checks = [check for condition in conditions for check in conjuncts(condition)]
    known = [found for check in checks if (found := _number(check, loop, named)) is not None]
    kinds = runs([[number + step * trip < 0 for number, step in known] for trip in range(trips)])
    return kinds if known and len(kinds) <= 3 and len(conditions) * len(kinds) <= CHOICES else None


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


def _chosen(loop: Any, trip: int, named: Mapping[int, Any], dialect: Dialect) -> Any:
    """Return the body of a loop with its choices made as in one trip."""

    def left(condition: Any) -> list[Any] | None:
        """Return the checks of a condition that are not known in this trip; None if one of them fails."""
        checks = []
        for check in conjuncts(condition):
            if (found := _number(check, loop, named)) is None:
                checks.append(check)
            elif found[0] + found[1] * trip >= 0:
                return None
        return checks

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
