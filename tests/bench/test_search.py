"""The search over Roller's plans, with times that are made up: no TVM, and nothing is measured."""

import math
from random import Random

import numpy as np
import pytest

pytest.importorskip("xgboost")

from roller_bench.learned import Model, plan_features, rank_plans, train
from roller_bench.search import Online, Tried, every_plan, finalists_again
from roller_tvm.errors import UnsupportedOperator, UsageError
from roller_tvm.ir.operators import operator
from roller_tvm.planner import construct

from ..plan.devices import device

CPU = device("avx512")


def plans_of(name="matmul", **params):
    return every_plan(operator(name, **(params or {"m": 64, "n": 64, "k": 64})), CPU)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("softmax", {"shape": "12x128x128"}),
        ("max_pool2d_nchw", {"n": 1, "c": 64, "h": 112, "w": 112, "k": 3, "stride": 2, "padding": 1}),
        ("matmul", {"m": 60, "n": 48, "k": 32}),
    ],
)
def test_plans_that_differ_have_features_that_do(name, params):
    rows = {tuple(plan_features(ranked, CPU)) for ranked in plans_of(name, **params)}
    assert np.isfinite(list(rows)).all() and len(rows) > len(plans_of(name, **params)) / 2


def test_what_is_constructed_is_among_them():
    """The only difference is who chooses."""
    expression = operator("matmul", m=64, n=64, k=64)
    every = {ranked.plan for ranked in every_plan(expression, CPU)}
    assert {ranked.plan for ranked in construct(expression, CPU, 10).plans} <= every


def test_it_finds_what_a_random_search_of_as_many_does_not():
    """The time asked for is the distance of the tiles from some that are best: the model learns where that is."""
    plans = plans_of("matmul", m=720, n=960, k=64)

    def seconds(ranked):
        program = ranked.plan.programs[0]
        if program.recipe != "cpu.tiled":
            return 1e-3
        tile, chunk = program.tile("register"), program.tile("l2")
        wanted = [(tile["m"], 4), (tile["n"], 32), (chunk["m"], 60), (chunk["n"], 192)]
        return 1e-6 * (1 + sum(abs(math.log2(a / b)) for a, b in wanted))

    searches = [Online(plans, CPU, batch=12, seed=seed) for seed in range(3)]
    tried = [list(search.run(60, lambda plans: [seconds(p) for p in plans])) for search in searches]
    random = np.median([min(seconds(p) for p in Random(seed).sample(plans, 60)) for seed in range(9)])
    assert {len(one) for one in tried} == {60}
    assert np.median([search.best.seconds for search in searches]) < random, "by luck alone, one of them may not"
    first, later = ([t.seconds for one in tried for t in one[part]] for part in (slice(12), slice(36, None)))
    assert np.median(later) < np.median(first)


def test_nothing_is_measured_twice_and_all_there_is_ends_it():
    plans = plans_of("softmax", shape="4x16")
    tried = list(Online(plans, CPU, batch=8).run(10_000, lambda plans: [p.seconds for p in plans]))
    assert sorted(map(id, plans)) == sorted(id(t.plan) for t in tried)


def test_what_fails_is_no_winner():
    search = Online(plans_of(), CPU, batch=8)
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
    plans = plans_of()[:5]
    tried = [Tried(plan, s) for plan, s in zip(plans, (1.0, 1.2, 1.1, math.inf, 1.3), strict=True)]
    again = {id(plans[0]): 1.4, id(plans[1]): 1.25, id(plans[2]): 1.15}

    def chosen(some):
        return finalists_again(some, 3, lambda finalists: [again[id(p)] for p in finalists])

    assert [(t.plan, t.seconds) for t in chosen(tried)] == [
        (plans[2], 1.15), (plans[1], 1.25), (plans[0], 1.4), (plans[4], 1.3),
    ]  # fmt: skip
    assert chosen(tried[3:4]) == []
    again[id(plans[2])] = math.inf  # the second time it crashed
    assert [t.plan for t in chosen(tried)] == [plans[1], plans[0], plans[4]]


def test_what_cannot_be_searched():
    with pytest.raises(UnsupportedOperator, match="CPUs"):
        every_plan(operator("matmul", m=64, n=64, k=64), device("a100"))
    with pytest.raises(UsageError, match="objective"):
        Model.train(np.zeros((2, 3)), np.zeros(2), "hope")
