"""Initial values of sums: set before the loop instead of behind a check in its first trip.

TVM separates a reduction from its initial value only if it knows the count of each loop. It does not for lanes with
different numbers of terms, for instance; the loop then checks in every trip, lane by lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...te.numbering import SERIAL, dtype_of_node
from ..dialect import Dialect
from ..flat import (
    LETS,
    Memory,
    Sum,
    access_of,
    in_order,
    is_load,
    kind_of,
    loads_of,
    names_of,
    number_of,
    parts_of,
    statements,
    sum_of,
    with_body,
)


def with_initial_values_first(body: Any, dialect: Dialect) -> Any | None:
    """Return a flattened statement that sets initial values before its loops; None if no loop sets one.

    ``for k: for n: if k == 0: C[n] = 0; C[n] += A[k, n]`` becomes ``for n: C[n] = 0; for k: for n: C[n] += A[k, n]``.
    So do several loops over n in it, of an unrolled loop, if each keeps away from the values that a later one sets.
    It binds the names in the loop twice: run TVM's ``ConvertSSA`` before anything that goes by names.
    """
    named, memory, tir = names_of(body), Memory.of_body(body), dialect.tir
    taken = []

    def apart(loop: Any) -> Any | None:
        trips = number_of(loop.extent)
        if int(loop.kind) != SERIAL or number_of(loop.min) != 0 or trips is None or trips < 2:
            return None
        found = _Apart(loop.loop_var, named, memory, dialect).of(loop.body, {})
        if found is None or _depends_on_itself(loop.body, memory):
            return None
        taken.append(loop)
        first = dialect.substituted(found.first, loop.loop_var, tir.const(0, dtype_of_node(loop.loop_var)))
        return tir.SeqStmt([first, with_body(loop, found.rest, tir)])

    made = dialect.with_loops(body, apart)
    return made if taken else None


def _depends_on_itself(body: Any, memory: Memory) -> bool:
    """Return whether a store's place, its condition or a name depends on memory that the body stores to."""
    every = list(statements(body))
    written = {memory.of(node.buffer) for node in every if kind_of(node) == "BufferStore"}

    def decides(node: Any) -> list[Any]:
        kind = kind_of(node)
        if kind == "BufferStore":
            return list(node.indices)
        if kind == "For":
            return [node.min, node.extent]
        return [node.value] if kind in LETS else [node.condition] if kind == "IfThenElse" else []

    loads = (part for node in every for value in decides(node) for part in parts_of(value) if is_load(part))
    return any(memory.of(access_of(load)[0]) in written for load in loads)


@dataclass(frozen=True)
class _Parts:
    """Initial stores, the body of every trip, and the loops (variables by hash) whose first trip made the stores."""

    first: Any
    rest: Any
    counters: frozenset[int]


@dataclass(frozen=True)
class _Apart:
    """Separates the body of a loop into the initial stores of its first trip and the work of every trip."""

    counter: Any  # the loop's variable
    named: Mapping[int, Any]  # values of the names
    memory: Memory
    dialect: Dialect

    def of(self, statement: Any, inside: dict[int, int]) -> _Parts | None:
        """Return both parts, in the same loops and behind the same checks; None if they cannot be separated.

        Parameters
        ----------
        statement : Stmt
        inside : dict
            Variables (by hash) of the loops around it, up to the separated one, and their extents.
        """
        kind, tir = kind_of(statement), self.dialect.tir
        if kind == "For":
            trips, variable = number_of(statement.extent), statement.loop_var
            if int(statement.kind) != SERIAL or number_of(statement.min) != 0 or trips is None:
                return None
            made = self.of(statement.body, inside | {hash(variable): trips})
            if made is None:
                return None
            if hash(variable) in made.counters:
                first = self.dialect.substituted(made.first, variable, tir.const(0, dtype_of_node(variable)))
            else:
                first = with_body(statement, made.first, tir)
            return _Parts(first, with_body(statement, made.rest, tir), made.counters)
        if kind == "IfThenElse" and statement.else_case is None:
            made = self.of(statement.then_case, inside)
            if made is None:
                return None
            first, rest = (tir.IfThenElse(statement.condition, part, None) for part in (made.first, made.rest))
            return _Parts(first, rest, made.counters)
        if kind != "SeqStmt":
            return None
        every = list(statement.seq)
        at = next((n for n, part in enumerate(every) if kind_of(part) != "Bind"), None)
        if at is None:
            return None
        names, part, after = every[:at], every[at], every[at + 1 :]
        if all(kind_of(one) == "Bind" for one in after):
            made = self.of(part, inside)
            if made is None:
                return None
            first, rest = in_order([*names, made.first], tir), in_order([*names, made.rest, *after], tir)
            return _Parts(first, rest, made.counters)
        counters = self._sets(part, after, inside)
        if counters is None:
            return self._independent(every, inside)
        return _Parts(in_order([*names, part.then_case], tir), in_order([*names, *after], tir), counters)

    def _independent(self, every: list[Any], inside: dict[int, int]) -> _Parts | None:
        """Return both parts of statements that each set values of their own, as an unrolled loop leaves them."""
        first: list[Any] = []
        rest: list[Any] = []
        made: list[_Parts] = []
        before: list[Any] = []
        outer = {hash(self.counter), *inside}
        for part in every:
            if kind_of(part) == "Bind":
                first.append(part)
                rest.append(part)
                continue
            one = self.of(part, inside)
            reach = None if one is None else self._reach(one.first)
            if one is None or reach is None or any(not self._free_of(reach, work) for work in before):
                return None
            if made and (made[0].counters ^ one.counters) & outer:
                return None
            made.append(one)
            before.append(part)
            first.append(one.first)
            rest.append(one.rest)
        counters: frozenset[int] = frozenset().union(*(one.counters for one in made))
        return _Parts(in_order(first, self.dialect.tir), in_order(rest, self.dialect.tir), counters)

    def _reach(self, part: Any) -> list[tuple[int, Sum, int, int]] | None:
        """Return memory, place, and the first and last element from there, of each access; None if one is not known."""
        trips = {}
        for loop in (node for node in statements(part) if kind_of(node) == "For"):
            extent = number_of(loop.extent)
            if extent is None or number_of(loop.min) != 0:
                return None
            trips[hash(loop.loop_var)] = extent
        accesses = [access_of(load) for load in loads_of(part)]
        stores = (node for node in statements(part) if kind_of(node) == "BufferStore")
        accesses += [(node.buffer, list(node.indices)) for node in stores]
        found = []
        for buffer, indices in accesses:
            place = self._place(indices, {hash(self.counter), *trips})
            if place is None:
                return None
            steps = [place.terms[loop][1] * (n - 1) for loop, n in trips.items() if loop in place.terms]
            low, high = sum(n for n in steps if n < 0), sum(n for n in steps if n > 0)
            base = Sum(0, {at: term for at, term in place.terms.items() if at not in trips})
            found.append((self.memory.of(buffer), base, place.number + low, place.number + high))
        return found

    def _free_of(self, initial: list[tuple[int, Sum, int, int]], part: Any) -> bool:
        """Return whether a statement stays away from what initial stores reach."""
        own = {memory for memory, *_ in initial}
        work = self._reach(part)
        return work is not None and all(
            memory not in own or all(m != memory or (b.same(base) and (end < low or high < start))
                                     for m, b, start, end in initial)
            for memory, base, low, high in work
        )  # fmt: skip

    def _sets(self, check: Any, rest: list[Any], inside: dict[int, int]) -> frozenset[int] | None:
        """Return the loops in whose first trip `check` sets a value that only `rest` reads; None if it does not.

        The separated loop is among them.
        """
        if kind_of(check) != "IfThenElse" or check.else_case is not None or kind_of(check.then_case) != "BufferStore":
            return None
        store, variables = check.then_case, {hash(self.counter), *inside}
        counters = _first_trips(check.condition)
        if counters is None or hash(self.counter) not in counters or not counters <= variables:
            return None
        at = self._place(store.indices, variables)
        if at is None or at.variables() & counters or next(loads_of(store), None) is not None:
            return None
        if not _apart_from_one_another(at, {loop: n for loop, n in inside.items() if loop not in counters}):
            return None
        own = self.memory.of(store.buffer)
        accesses = [access_of(load) for part in rest for load in loads_of(part)]
        stores = [node for part in rest for node in statements(part) if kind_of(node) == "BufferStore"]
        accesses += [(node.buffer, list(node.indices)) for node in stores]
        same = (self._place(indices, variables) for buffer, indices in accesses if self.memory.of(buffer) == own)
        return counters if all(place is not None and place.same(at) for place in same) else None

    def _place(self, indices: list[Any], variables: set[int]) -> Sum | None:
        return sum_of(indices[0], self.named, variables) if len(indices) == 1 else None


def _first_trips(condition: Any) -> frozenset[int] | None:
    """Return the loop variables (by hash) that `condition` compares with 0; None if it checks anything else."""
    if kind_of(condition) == "And":
        both = _first_trips(condition.a), _first_trips(condition.b)
        return None if both[0] is None or both[1] is None else both[0] | both[1]
    if kind_of(condition) != "EQ" or number_of(condition.b) != 0 or kind_of(condition.a) not in ("Var", "SizeVar"):
        return None
    return frozenset({hash(condition.a)})


def _apart_from_one_another(place: Sum, loops: Mapping[int, int]) -> bool:
    """Return whether every trip of these loops (variable by hash -> extent) has a different place.

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
