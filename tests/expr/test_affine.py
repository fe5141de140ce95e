"""Indices: composition of quotients, and the text and JSON of every kind."""

import itertools

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roller_tvm.ir import Index

from ..sampling import examples
from .strategies import AXES, indices


def quotients():
    return st.builds(
        lambda index, divisor: Index.of(dict(index.terms), index.const, divisor), indices(), st.integers(1, 4)
    )


@settings(max_examples=examples(300), deadline=None)
@given(quotients(), st.fixed_dictionaries({a: quotients() for a in AXES}))
def test_composition_has_the_value_of_the_composed_functions(outer, inner):
    composed = outer.substitute(inner)
    assume(not composed.opaque)
    for values in itertools.product(range(-2, 4), repeat=len(AXES)):
        point = dict(zip(AXES, values, strict=True))
        assert composed.value(point) == outer.value({a: i.value(point) for a, i in inner.items()})


@given(quotients(), st.booleans())
def test_json_round_trip(index, clamped):
    index = Index.of(dict(index.terms), index.const, index.divisor, clamped)
    assert Index.from_json(index.to_json()) == index


def test_a_window_over_a_dilated_image():
    dilated = Index.of({"h": 1}, divisor=2)
    assert dilated.substitute({"h": Index.of({"oh": 1, "kh": 1}, -2)}) == Index.of({"oh": 1, "kh": 1}, -2, 2)
    assert Index.of({"h": 2}).substitute({"h": dilated}).opaque  # 2 * (h // 2) is no quotient
    assert Index.of({"h": 2}, divisor=2) == Index.axis("h")


def test_clamping_survives_composition():
    clamped = Index.of({"x": 1}, -1, clamped=True)
    assert Index.of({"h": 1, "kh": 1}).substitute({"h": clamped}).clamped
    assert clamped != Index.of({"x": 1}, -1)
    assert str(Index.of({"x": 3}, 1, 2, True)) == "clamp((3*x + 1)//2)"
