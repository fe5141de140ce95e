"""A program with operators that must stay outside, cut into parts that can be planned.

Each part is convex: no path leaves it through an operator outside and comes back. So every part can be one call, or a
few kernels, between the calls of the operators outside.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import BadInput


@dataclass(frozen=True)
class Node:
    """An operator of a program, to be planned or not.

    Parameters
    ----------
    inputs : tuple of str
        Operators that must run before: those whose results it reads, and those from `divided`.
    outside : str
        Why it stays outside of every plan (an extern call, an effect, a dynamic shape); '' if it does not.
    """

    name: str
    inputs: tuple[str, ...] = ()
    outside: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))


@dataclass(frozen=True)
class Step:
    """A part that can be planned, or one operator that stays outside.

    Parameters
    ----------
    operators : tuple of str
        Operators in an order in which they may run.
    outside : str
        Why it stays outside; '' for a part to be planned.
    """

    operators: tuple[str, ...]
    outside: str = ""

    def __str__(self) -> str:
        names = ", ".join(self.operators)
        return f"{names}: outside, {self.outside}" if self.outside else names


def convex_parts(nodes: Iterable[Node]) -> tuple[Step, ...]:
    """Return a program as steps, one after the other: convex parts to be planned, and operators outside of them.

    An operator's part is numbered by the most times that any path to it leaves a part for an operator outside. That
    gives the fewest parts possible, as many as the worst path through the program crosses.

    Parameters
    ----------
    nodes : iterable of Node
        Operators in the program's order, or any other.

    Returns
    -------
    tuple of Step
        Every node once, after all that it reads.

    Raises
    ------
    BadInput
        If there is a cycle, two nodes of one name, or an unknown input; names the operator.

    Examples
    --------
    >>> program = (Node("a"), Node("sort", ("a",), "an extern call"), Node("b", ("a",)), Node("c", ("sort", "b")))
    >>> for step in convex_parts(program):
    ...     print(step)
    a, b
    sort: outside, an extern call
    c
    """
    nodes = tuple(nodes)
    by_name = {node.name: node for node in nodes}
    before = _before(nodes, by_name)
    order = _ordered(before, by_name)
    part: dict[str, int] = {}
    for name in order:
        planned = not by_name[name].outside
        # From outside back into a part is into a later one; -1 comes before the first.
        part[name] = max((part[p] + (planned and bool(by_name[p].outside)) for p in before[name]),
                         default=0 if planned else -1)
    inside: dict[int, list[str]] = {}
    others: dict[int, list[str]] = {}
    for name in order:
        (others if by_name[name].outside else inside).setdefault(part[name], []).append(name)
    steps: list[Step] = []
    for number in sorted({*inside, *others}):
        if number in inside:
            steps.append(Step(tuple(inside[number])))
        steps += [Step((name,), by_name[name].outside) for name in others.get(number, ())]
    return tuple(steps)


def divided(fences: Iterable[bool]) -> tuple[tuple[int, ...], ...]:
    """Return, for each operator, the operators that must run before it because some of them divide the program.

    A dividing operator comes after all before it; all later ones come after it.

    Examples
    --------
    >>> divided([False, False, True, False])
    ((), (), (0, 1), (2,))
    """
    found: list[tuple[int, ...]] = []
    last: tuple[int, ...] = ()  # dividing operator
    for number, fence in enumerate(fences):
        found.append(tuple(range(last[0] if last else 0, number)) if fence else last)
        last = (number,) if fence else last
    return tuple(found)


def _before(nodes: Sequence[Node], by_name: Mapping[str, Node]) -> dict[str, tuple[str, ...]]:
    """Return the operators that each node comes after."""
    if len(by_name) < len(nodes):
        names = [node.name for node in nodes]
        twice = next(n for n in names if names.count(n) > 1)
        raise BadInput("two operators of one name", where=f"operator '{twice}'", remedy="name them differently")
    for node in nodes:
        for name in node.inputs:
            if name not in by_name:
                raise BadInput(f"it reads from '{name}', which is not in the program", where=f"operator '{node.name}'",
                               remedy="add that operator, or leave it out of the inputs if it is one of the program")
    return {node.name: tuple(dict.fromkeys(node.inputs)) for node in nodes}


def _ordered(before: Mapping[str, tuple[str, ...]], by_name: Mapping[str, Node]) -> list[str]:
    """Return every node after those before it; in the given order if that is one."""
    every = list(by_name)
    place = {name: n for n, name in enumerate(every)}
    order = topological([{place[other] for other in before[name]} for name in every])
    if len(order) < len(every):
        stuck = every[min(set(range(len(every))) - set(order))]
        raise BadInput("it depends on itself, or on operators that do", where=f"operator '{stuck}'",
                       remedy="remove the cycle from the program")
    return [every[n] for n in order]


def topological(before: Sequence[Collection[int]], rank: Sequence[int] | None = None) -> list[int]:
    """Return numbers in an order in which each comes after those before it; without those that depend on themselves.

    Parameters
    ----------
    before : sequence of collection of int
        For each number the distinct others that it comes after.
    rank : sequence of int, optional
        The lowest rank comes first if there is a choice; by default the lowest number.

    Examples
    --------
    >>> topological([{2}, (), ()]), topological([(), (), {0}], [5, 6, 1]), topological([(), {1}])
    ([1, 2, 0], [0, 2, 1], [0])
    """
    rank = rank if rank is not None else range(len(before))
    after: list[list[int]] = [[] for _ in before]
    for number, others in enumerate(before):
        for other in others:
            after[other].append(number)
    waiting = list(map(len, before))
    ready = [(rank[n], n) for n, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for later in after[number]:
            waiting[later] -= 1
            if not waiting[later]:
                heapq.heappush(ready, (rank[later], later))
    return order
