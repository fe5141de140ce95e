"""The search over Roller's space, with times that are made up: no TVM, and nothing is measured."""

import math
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("xgboost")

from roller_bench.learned import plan_features, rank_plans, train
from roller_bench.learned_tuner import chosen
from roller_bench.search import Annealing, Online, RTileSpace, Tried
from roller_tvm.errors import UnsupportedOperator, UsageError
from roller_tvm.ir.operators import operator
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.tuning.session import Limits

from ..plan.devices import device
from ..sampling import sampled

CPU = device("avx512")
QUICK = Annealing(chains=8, steps=8)


def space(name="matmul", **params):
    return RTileSpace(operator(name, **(params or {"m": 64, "n": 64, "k": 64})), CPU)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("matmul", {"m": 60, "n": 48, "k": 32}),
        ("conv2d_nhwc", {"n": 1, "c": 8, "h": 14, "w": 14, "f": 16, "k": 3, "padding": 1, "bias": 1, "relu": 1}),
        ("softmax", {"shape": "16x40"}),
        ("depthwise_conv2d_nhwc", {"n": 1, "c": 16, "h": 14, "w": 14, "k": 3, "padding": 1}),
    ],
)
def test_every_configuration_is_a_plan_that_lowers(name, params):
    found = space(name, **params)
    random = Random(1)
    points = list(found.points(30, random))
    points += [found.beside(p, random) for p in points]
    for point in points:
        ranked = found.plan(point)
        assert lower(ranked.plan) and ranked.seconds > 0
        assert np.isfinite(plan_features(ranked, CPU)).all()


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("softmax", {"shape": "12x128x128"}),
        ("max_pool2d_nchw", {"n": 1, "c": 64, "h": 112, "w": 112, "k": 3, "stride": 2, "padding": 1}),
    ],
)
def test_configurations_that_differ_have_features_that_do(name, params):
    """Those of the nest that is searched: where another computes more, all rows were one and the same."""
    found = space(name, **params)
    rows: dict = {}
    for point in found.points(60, Random(2)):
        form = rows.setdefault(point.form, {})
        program = found.plan(point).plan.programs[found.searched(point)]
        form[program] = tuple(Online(found).row(point))
    assert any(len(form) > 1 for form in rows.values())
    for form in rows.values():
        assert len(set(form.values())) > len(form) / 2, f"{len(set(form.values()))} rows of {len(form)} configurations"


def test_what_is_constructed_lies_in_the_space():
    """The only difference is who chooses."""
    expression = operator("matmul", m=64, n=64, k=64)
    found = RTileSpace(expression, CPU)
    drawn = found.points(4 * found.size(), Random(0))  # rare ones too
    every = {found.plan(p).plan.programs for p in drawn}
    for ranked in construct(expression, CPU, 10).plans:
        assert ranked.plan.programs in every


@pytest.mark.parametrize("objective", sampled(["rank", "regression"], always=["rank"]))
def test_it_finds_what_a_random_search_of_as_many_does_not(objective):
    """The time asked for is the distance of the tiles from some that are best: the model learns where that is."""
    found = space("matmul", m=720, n=960, k=64)

    def seconds(ranked):
        program = ranked.plan.programs[0]
        if program.recipe != "cpu.tiled":
            return 1e-3
        tile, chunk = program.tile("register"), program.tile("l2")
        wanted = [(tile["m"], 4), (tile["n"], 32), (chunk["m"], 60), (chunk["n"], 192)]
        return 1e-6 * (1 + sum(abs(math.log2(a / b)) for a, b in wanted))

    searches = [Online(found, batch=12, objective=objective, seed=seed, annealing=QUICK) for seed in range(3)]
    tried = [list(search.run(60, lambda plans: [seconds(p) for p in plans])) for search in searches]
    random = np.median([min(seconds(found.plan(p)) for p in found.points(60, Random(seed))) for seed in range(9)])
    assert {len(one) for one in tried} == {60}
    assert np.median([search.best.seconds for search in searches]) < random, "by luck alone, one of them may not"
    first, later = ([t.seconds for one in tried for t in one[part]] for part in (slice(12), slice(36, None)))
    assert np.median(later) < np.median(first)


def test_nothing_is_measured_twice_and_all_there_is_ends_it():
    search = Online(space("softmax", shape="4x16"), batch=8, annealing=QUICK)
    tried = list(search.run(10_000, lambda plans: [p.seconds for p in plans]))
    assert len(tried) < 10_000
    assert len({(t.point.form, t.plan.plan.programs) for t in tried}) == len(tried)


def test_what_fails_is_no_winner():
    search = Online(space(), batch=8, annealing=QUICK)
    list(search.run(16, lambda plans: [math.inf] * len(plans)))
    assert search.best is None
    assert train([math.inf, 1e-6], np.zeros((2, 3))) is None  # one that works teaches no order


def test_plans_ranked_by_a_model():
    plans = list(construct(operator("matmul", m=64, n=64, k=64), CPU, 10).plans)
    rows = np.array([plan_features(p, CPU) for p in plans])
    backwards = [1e-6 * (len(plans) - n) for n in range(len(plans))]
    ranked = rank_plans(plans, CPU, train(backwards * 4, np.concatenate([rows] * 4), "regression"))
    assert ranked[0] in plans[-3:] and set(map(id, ranked)) == set(map(id, plans))


def test_noise_does_not_choose():
    """Of the best three, which stood out by luck, the one that is fastest when they are measured in turns."""
    found = space()
    plans = [found.plan(p) for p in found.points(5, Random(0))]
    tried = [Tried(None, plan, s) for plan, s in zip(plans, (1.0, 1.2, 1.1, math.inf, 1.3), strict=True)]
    again = {id(plans[0]): 1.4, id(plans[1]): 1.25, id(plans[2]): 1.15}
    measure = SimpleNamespace(limits=Limits(), in_turns=lambda finalists: [again[id(p)] for p in finalists])
    assert [(t.plan, t.seconds) for t in chosen(tried, measure)] == [
        (plans[2], 1.15), (plans[1], 1.25), (plans[0], 1.4), (plans[4], 1.3),
    ]  # fmt: skip
    assert chosen(tried[3:4], measure) == []
    again[id(plans[2])] = math.inf  # the second time it crashed
    assert [t.plan for t in chosen(tried, measure)] == [plans[1], plans[0], plans[4]]


def test_what_cannot_be_searched():
    with pytest.raises(UnsupportedOperator, match="CPUs"):
        RTileSpace(operator("matmul", m=64, n=64, k=64), device("a100"))
    with pytest.raises(UsageError, match="objective"):
        Online(space(), objective="hope")
