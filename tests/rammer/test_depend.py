"""Dependences between rTasks against the elements that are really read."""

from __future__ import annotations

import itertools
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller_tvm.device import load_device
from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression
from roller_tvm.ir.operators import conv2d_nchw, dense, max_pool2d_nchw, softmax
from roller_tvm.rammer import DataFlowGraph, Dependences, Edge, Tiling, roperator
from roller_tvm.rammer.dependences import needed
from roller_tvm.rammer.rtask import reshaped

from ..sampling import examples

V100 = load_device("v100")


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_tiles_of_a_region(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    if data.draw(st.booleans()):
        tiling = Tiling(shape, tuple(data.draw(st.integers(1, e)) for e in shape))
    else:
        tiling = Tiling(shape, run=data.draw(st.integers(1, 12)))
    box = tuple(tuple(sorted(data.draw(st.tuples(st.integers(0, e - 1), st.integers(0, e - 1))))) for e in shape)
    inside = list(itertools.product(*(range(lo, hi + 1) for lo, hi in box)))

    def written_by(point: tuple[int, ...]) -> int:
        if tiling.run:
            flat = 0
            for p, e in zip(point, shape, strict=True):
                flat = flat * e + p
            return flat // tiling.run
        place = 0
        for p, t, g in zip(point, tiling.tile, tiling.grid, strict=True):
            place = place * g + p // t
        return place

    exact = {written_by(p) for p in inside}
    found = list(tiling.tasks_of(box))
    assert exact <= set(found) and len(set(found)) == len(found) and max(found) < tiling.tasks
    if not tiling.run or prod(hi - lo + 1 for lo, hi in box[:-1]) <= tiling.tasks:
        assert exact == set(found)
    for task in exact:
        own = tiling.box(task)
        points = [p for p in itertools.product(*map(range, shape)) if written_by(p) == task]
        assert all(lo <= p[d] <= hi for p in points for d, (lo, hi) in enumerate(own))


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_reshaped_regions(data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))

    def grouped() -> tuple[int, ...]:
        cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(factors) - 1)))) , len(factors)] \
            if len(factors) > 1 else [0, 1]
        return tuple(prod(factors[a:b]) for a, b in itertools.pairwise(cuts))

    shape, other = grouped(), grouped()
    box = tuple(tuple(sorted(data.draw(st.tuples(st.integers(0, e - 1), st.integers(0, e - 1))))) for e in shape)
    result = reshaped(box, shape, other)
    for point in itertools.product(*(range(lo, hi + 1) for lo, hi in box)):
        flat = 0
        for p, e in zip(point, shape, strict=True):
            flat = flat * e + p
        for (lo, hi), extent in zip(reversed(result), reversed(other), strict=True):
            flat, place = divmod(flat, extent)
            assert lo <= place <= hi


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_dimensions_of_one_element_keep_a_region_exact(data: st.DataObject) -> None:
    box = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4))
    dims = [((low, low + more), low + more + 1 + (more == 0 == low)) for low, more in box]  # of two elements at least

    def with_ones() -> list[tuple[tuple[int, int], int]]:
        return [d for dim in dims for d in ([((0, 0), 1)] * data.draw(st.integers(0, 2)) + [dim])]

    one, other = with_ones(), with_ones()
    result = reshaped(tuple(b for b, _ in one), [e for _, e in one], [e for _, e in other])
    assert result == tuple(b for b, _ in other)


@pytest.mark.parametrize("expression", [
    conv2d_nchw(n=1, c=2, h=6, w=7, f=3, kh=3, kw=3, stride=2, padding=1),
    max_pool2d_nchw(n=1, c=2, h=7, w=6, kh=3, kw=3, stride=2, padding=1),
    softmax(shape=(3, 5)),
    TensorExpression("backwards", (Tensor("x", (12, 9)),), (Stage(
        "y", (Axis("i", 6), Axis("j", 9), Axis("k", 3, kind="reduce")),
        (Access("x", (Index.of({"i": -1, "k": 2}, 6), Index.of({"j": -1}, 8))),), combiner="sum"),), "y"),
])  # fmt: skip
def test_what_a_region_needs(expression: TensorExpression) -> None:
    """Against every point of every stage, followed one by one."""
    sources = [t.name for t in expression.inputs]
    shape = expression.output.shape
    region = tuple((e // 3, max(e // 3, e // 2)) for e in shape)
    found = needed(expression, expression.output.name, region, sources)
    touched: dict[str, set[tuple[int, ...]]] = {s.name: set() for s in expression.stages} | {s: set() for s in sources}
    touched[expression.output.name] = set(itertools.product(*(range(lo, hi + 1) for lo, hi in region)))
    for stage in reversed(expression.stages):
        for values in itertools.product(*(range(a.extent) for a in stage.axes)):
            point = dict(zip((a.name for a in stage.axes), values, strict=True))
            if tuple(i.value(point) for i in stage.write().indices) not in touched[stage.name]:
                continue
            for access in stage.reads:
                at = tuple(i.value(point) for i in access.indices)
                if all(0 <= i < e for i, e in zip(at, expression.tensors[access.tensor].shape, strict=True)):
                    touched[access.tensor].add(at)
    for name in sources:
        box = tuple((min(c), max(c)) for c in zip(*touched[name], strict=True))
        assert found[name] == box


def test_a_grouped_convolution_needs_the_channels_of_its_groups() -> None:
    expression = conv2d_nchw(n=1, c=8, h=4, w=4, f=12, kh=1, kw=1, groups=4)
    found = needed(expression, expression.output.name, ((0, 0), (4, 6), (0, 3), (1, 2)), ["data"])
    assert found["data"] == ((0, 0), (2, 5), (0, 3), (1, 2))


def test_as_many_rows_as_runs_are_told_one_by_one() -> None:
    assert list(Tiling((2, 4, 32), run=64).tasks_of(((0, 1), (0, 1), (0, 3)))) == [0, 2]


def test_of_more_rows_than_runs_all_from_the_first_to_the_last_are_told() -> None:
    """Sixteen rows in runs of 64 and of 16 elements."""
    assert list(Tiling((8, 4, 4), run=64).tasks_of(((4, 7), (0, 3), (0, 1)))) == [1]
    assert list(Tiling((8, 4, 4), run=16).tasks_of(((2, 5), (0, 3), (1, 2)))) == [2, 3, 4, 5]


def test_a_convolution_after_another_waits_for_its_rows_only() -> None:
    first = conv2d_nchw(n=1, c=16, h=56, w=56, f=32, kh=3, kw=3, padding=1)
    second = max_pool2d_nchw(n=1, c=32, h=56, w=56, kh=2, kw=2, stride=2)
    a = roperator("conv", first, V100, top=3)
    tensor = second.inputs[0].name
    b = roperator("pool", second, V100, [Edge(tensor, "conv", first.output.name)], top=3)
    needs = Dependences(DataFlowGraph((a, b))).of("pool", 0, {"conv": a.fastest, "pool": b.fastest})
    (need,) = [n for n in needs if n.producer == "conv"]
    writers = a.fastest.phases[need.phase].tasks
    assert need.tasks is not None and len(need.tasks) == b.fastest.phases[0].tasks
    assert max(map(len, need.tasks)) <= writers // 4
    assert set().union(*need.tasks) == set(range(writers))


def test_a_dense_layer_waits_for_all_of_its_input() -> None:
    first = dense(m=1, n=512, k=512)
    a = roperator("a", first, V100, top=1)
    b = roperator("b", first, V100, [Edge(first.inputs[0].name, "a")], top=1)
    needs = Dependences(DataFlowGraph((a, b))).of("b", 0, {"a": a.fastest, "b": b.fastest})
    assert all(n.tasks is None for n in needs if n.producer == "a")
