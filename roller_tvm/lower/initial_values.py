"""Sums that are set to their initial value in a loop's first trip, behind a check: set before the loop instead.

TVM takes a reduction apart from its initial value only where it can tell which loops count what. Where it cannot, of
lanes that do not all have the same number of terms for instance, what is left checks in every trip, lane by lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..te.numbering import dtype_of_node
from .flat_loops import (
    LETS,
    SERIAL,
    Memory,
    Sum,
    access_of,
    kind_of,
    loads_of,
    names_of,
    number_of,
    statements,
    sum_of,
    with_body,
)
from .flat_vectors import Dialect


def with_initial_values_first(body: Any, dialect: Dialect) -> Any | None:
    """A flattened statement whose loops only compute what they can set before; None where there is no such loop.

    ``for k: for n: if k == 0: C[n] = 0; C[n] += A[k, n]`` becomes ``for n: C[n] = 0; for k: for n: C[n] += A[k, n]``.
    Names in the loop are then bound twice, for TVM's ``ConvertSSA``.

    Parameters
    ----------
    body : Stmt
    dialect : Dialect
    """
    named, memory, tir = names_of(body), Memory.of_body(body), dialect.tir
    taken = []

    def apart(loop: Any) -> Any | None:
        trips = number_of(loop.extent)
        if int(loop.kind) != SERIAL or number_of(loop.min) != 0 or trips is None or trips < 2:
            return None
        found = _Apart(loop.loop_var, named, memory, tir).of(loop.body, {})
        if found is None:
            return None
        taken.append(loop)
        first, rest = found
        begin = tir.const(0, dtype_of_node(loop.loop_var))
        return tir.SeqStmt([dialect.substituted(first, loop.loop_var, begin), with_body(loop, rest, tir)])

    made = dialect.with_loops(body, apart)
    return made if taken else None


@dataclass(frozen=True)
class _Apart:
    """The body of a loop, taken apart into what its first trip sets and what every trip computes.

    Parameters
    ----------
    counter : Var
        The loop's variable.
    named : mapping
        What names stand for.
    memory : Memory
    tir : module
    """

    counter: Any
    named: Mapping[int, Any]
    memory: Memory
    tir: Any

    def of(self, statement: Any, inside: dict[int, int]) -> tuple[Any, Any] | None:
        """Both parts, in the same loops and behind the same checks; None where they may not be done one by one.

        Parameters
        ----------
        statement : Stmt
        inside : dict
            Variables (by hash) of the loops around it, up to the one that is taken apart, and their extents.
        """
        kind, tir = kind_of(statement), self.tir
        if kind == "For":
            trips = number_of(statement.extent)
            if int(statement.kind) != SERIAL or number_of(statement.min) != 0 or trips is None:
                return None
            made = self.of(statement.body, inside | {hash(statement.loop_var): trips})
            return None if made is None else (with_body(statement, made[0], tir), with_body(statement, made[1], tir))
        if kind == "IfThenElse" and statement.else_case is None:
            made = self.of(statement.then_case, inside)
            if made is None:
                return None
            first, rest = (tir.IfThenElse(statement.condition, part, None) for part in made)
            return first, rest
        if kind != "SeqStmt":
            return None
        names = [part for part in statement.seq if kind_of(part) in LETS]
        parts = [part for part in statement.seq if kind_of(part) not in LETS]
        if len(parts) == 1:
            made = self.of(parts[0], inside)
        else:
            made = (parts[0].then_case, self._all([], parts[1:])) if self._sets(parts, inside) else None
        return None if made is None else (self._all(names, [made[0]]), self._all(names, [made[1]]))

    def _all(self, names: list[Any], parts: list[Any]) -> Any:
        whole = [*names, *parts]
        return self.tir.SeqStmt(whole) if len(whole) > 1 else whole[0]

    def _sets(self, parts: list[Any], inside: dict[int, int]) -> bool:
        """Whether the first of these statements sets, in the first trip alone, what only the others see."""
        check, *rest = parts
        if kind_of(check) != "IfThenElse" or check.else_case is not None or kind_of(check.condition) != "EQ":
            return False
        store, counted = check.then_case, check.condition
        if {hash(counted.a), number_of(counted.b)} != {hash(self.counter), 0} or kind_of(store) != "BufferStore":
            return False
        variables = {hash(self.counter), *inside}
        at = self._place(store.indices, variables)
        if at is None or next(loads_of(store), None) is not None or not _apart_from_one_another(at, inside):
            return False
        own = self.memory.of(store.buffer)
        accesses = [access_of(load) for part in rest for load in loads_of(part)]
        stores = [node for part in rest for node in statements(part) if kind_of(node) == "BufferStore"]
        accesses += [(node.buffer, list(node.indices)) for node in stores]
        same = (self._place(indices, variables) for buffer, indices in accesses if self.memory.of(buffer) == own)
        return at.of(self.counter) == 0 and all(place is not None and place.same(at) for place in same)

    def _place(self, indices: list[Any], variables: set[int]) -> Sum | None:
        return sum_of(indices[0], self.named, variables) if len(indices) == 1 else None


def _apart_from_one_another(place: Sum, loops: Mapping[int, int]) -> bool:
    """Whether every trip of these loops (variable by hash -> extent) has a place of its own.

    Examples
    --------
    >>> _apart_from_one_another(Sum(0, {1: ("i", 4), 2: ("j", 1)}), {1: 3, 2: 4})
    True
    >>> _apart_from_one_another(Sum(0, {1: ("i", 4), 2: ("j", 1)}), {1: 3, 2: 5})
    False
    """
    steps = sorted((abs(place.terms[loop][1]) if loop in place.terms else 0, trips)
                   for loop, trips in loops.items() if trips > 1)  # fmt: skip
    reach = 0
    for step, trips in steps:
        if step <= reach:
            return False
        reach += step * (trips - 1)
    return True
