"""Parts of random programs: convex, in order, no more of them than there have to be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller_tvm.errors import BadInput
from roller_tvm.rammer import Node, convex_parts
from roller_tvm.rammer.partition import divided

from ..sampling import examples


@st.composite
def programs(draw: st.DrawFn) -> list[Node]:
    kinds = draw(st.lists(st.sampled_from(["", "", "", "extern", "effect"]), max_size=14))
    nodes = []
    for n, before in enumerate(divided(kind == "effect" for kind in kinds)):
        inputs = draw(st.lists(st.integers(0, n - 1), max_size=3, unique=True)) if n else []
        nodes.append(Node(f"n{n}", tuple(f"n{i}" for i in dict.fromkeys((*inputs, *before))), kinds[n]))
    return nodes


def reachable(nodes: list[Node]) -> dict[str, set[str]]:
    """What each node comes after, directly or not."""
    above: dict[str, set[str]] = {}
    for node in nodes:
        above[node.name] = set(node.inputs).union(*(above[i] for i in node.inputs))
    return above


@settings(max_examples=examples(300), deadline=None)
@given(programs(), st.data())
def test_parts_of_a_program(nodes: list[Node], data: st.DataObject) -> None:
    above = reachable(nodes)
    steps = convex_parts(data.draw(st.permutations(nodes)))
    by_name = {n.name: n for n in nodes}
    effects = [n.name for n in nodes if n.outside == "effect"]
    assert [name for step in steps for name in step.operators if name in effects] == effects
    at = {name: (number, place) for number, step in enumerate(steps) for place, name in enumerate(step.operators)}
    assert sum(len(s.operators) for s in steps) == len(at) == len(nodes) and set(at) == set(by_name)
    for step in steps:
        reasons = {by_name[n].outside for n in step.operators}
        assert reasons == {step.outside} and (len(step.operators) == 1 or not step.outside)
    for node in nodes:
        assert all(at[other] < at[node.name] for other in above[node.name])
    for number, step in enumerate(steps):  # convex: nothing between two of a part is elsewhere
        for a, b in itertools.permutations(step.operators, 2):
            between = {n for n in above[b] if a in above[n]}
            assert all(at[n][0] == number for n in between)
    parts = [s for s in steps if not s.outside]
    assert len(parts) == _most_on_a_way(nodes, above)


def _most_on_a_way(nodes: list[Node], above: dict[str, set[str]]) -> int:
    """Parts that a way through the program goes through at least, by trying them all: the fewest possible."""
    by_name = {n.name: n for n in nodes}
    longest: dict[str, int] = {}  # parts on a way that ends with this node, its own part counted
    for node in nodes:
        planned = not node.outside
        best = 1 if planned else 0
        for other in above[node.name]:
            best = max(best, longest[other] + (planned and bool(by_name[other].outside)))
        longest[node.name] = best
    return max(longest.values(), default=0)


def test_a_branch_outside_keeps_the_rest_together() -> None:
    steps = convex_parts([Node("a"), Node("print", ("a",), "an extern call"), Node("b", ("a",)), Node("c", ("b",)),
                          Node("log", ("c",), "an extern call")])
    assert [str(s) for s in steps] == ["a, b, c", "print: outside, an extern call", "log: outside, an extern call"]


def test_refused_programs() -> None:
    with pytest.raises(BadInput, match="operator 'a'.*depends on itself"):
        convex_parts([Node("a", ("b",)), Node("b", ("a",))])
    with pytest.raises(BadInput, match="operator 'a'.*reads from 'x'"):
        convex_parts([Node("a", ("x",))])
    with pytest.raises(BadInput, match="operator 'a'.*two operators"):
        convex_parts([Node("b"), Node("a"), Node("a")])


def test_a_program_that_begins_with_a_dividing_operator() -> None:
    assert divided([True, False, True, True, False]) == ((), (0,), (0, 1), (2,), (3,))
    assert divided([False, True, False]) == ((), (0,), (1,)) and divided([False] * 3) == ((), (), ())
