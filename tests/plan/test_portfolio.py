"""The K that are handed on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller_tvm.ir.operators import operator
from roller_tvm.planner import construct
from roller_tvm.planner.portfolio import WITHIN, portfolio
from roller_tvm.recipes import RECIPES

from .devices import device

RANKED = st.lists(st.tuples(st.floats(1, 2), st.sampled_from("abcd")), min_size=1, max_size=40).map(sorted)


def chosen(ranked, top):
    return portfolio(ranked, top, lambda c: c[0], lambda c: c[1])


@given(RANKED, st.integers(1, 12))
def test_it_keeps_the_best_and_the_order_and_never_more_than_asked(ranked, top):
    found = chosen(ranked, top)
    assert len(found) == min(top, len(ranked)) and found == sorted(found) and found[0] == ranked[0]


@given(RANKED, st.integers(1, 12))
def test_no_kind_is_lost_to_make_room(ranked, top):
    found = {kind for _, kind in chosen(ranked, top)}
    assert found >= {kind for _, kind in ranked[:top]}


def test_another_kind_takes_the_place_of_the_last_of_many():
    ranked = [(1.0 + n / 100, "a") for n in range(9)] + [(1.1, "b"), (WITHIN + 0.01, "c")]
    assert [kind for _, kind in chosen(ranked, 6)] == ["a"] * 5 + ["b"]


@pytest.mark.parametrize(("top", "others"), [(2, 0), (3, 1), (6, 2), (12, 4), (14, 4)])
def test_a_third_of_the_places_is_for_other_kinds_the_fastest_first(top, others):
    ranked = [(1.0 + n / 1000, "a") for n in range(top)] + [(1.2 + n / 1000, kind) for n, kind in enumerate("bcdefg")]
    assert [kind for _, kind in chosen(ranked, top)] == ["a"] * (top - others) + list("bcdefg")[:others]
    exact = [*ranked[:top], (WITHIN, "b"), (WITHIN + 1e-6, "c")]
    assert [kind for _, kind in chosen(exact, top)][top - min(others, 1) :] == ["b"] * min(others, 1)


def test_convolutions_are_measured_with_more_than_one_register_row():
    conv = operator("conv2d_nhwc", n=1, c=3, h=224, w=224, f=64, kh=7, kw=7, stride=2, padding=3)
    plans = construct(conv, device("avx512"), top=10).plans
    last = [(p.plan.expression, p.plan.programs[-1]) for p in plans]
    kinds = {RECIPES[program.recipe].kernel(expression, program) for expression, program in last}
    assert len(kinds) > 1
