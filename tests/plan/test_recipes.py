"""The registry of recipes."""

import json
import warnings
from pathlib import Path

import pytest

from roller_tvm.internal import InternalError
from roller_tvm.ir import TensorExpression
from roller_tvm.ir.operators import operator
from roller_tvm.planner import construct
from roller_tvm.recipes import RECIPES, registered
from roller_tvm.recipes.dilated_nests import divides
from roller_tvm.roller.rprogram import RECIPE_NAMES

from .devices import device


def test_every_name_of_an_rprogram_has_a_recipe():
    assert sorted(RECIPES) == sorted(RECIPE_NAMES)
    assert all(recipe.name == name and recipe.says for name, recipe in RECIPES.items())


def test_a_name_is_given_once():
    recipe = next(iter(RECIPES.values()))
    with pytest.raises(ValueError, match=f"two recipes are called '{recipe.name}'"):
        registered((recipe, recipe))


def recipes_of(plans):
    return {program.recipe for ranked in plans for program in ranked.plan.programs}


@pytest.mark.parametrize("method", ["applies", "candidates"])
def test_a_bug_of_a_recipe_is_told_with_the_operator_and_costs_its_plans_alone(monkeypatch, method):
    expression = operator("depthwise_conv2d_nchw", n=1, c=32, h=28, w=28, kh=3, kw=3, padding=1)
    plain = recipes_of(construct(expression, device("avx512"), 20).plans)
    assert "cpu.window" in plain and len(plain) > 1
    monkeypatch.setattr(type(RECIPES["cpu.window"]), method, lambda *_: {}["no such axis"])
    with pytest.warns(InternalError, match=f"(?s)recipe cpu.window error: KeyError.*of: .*{expression.name}"):
        assert recipes_of(construct(expression, device("avx512"), 20).plans) == plain - {"cpu.window"}
    with warnings.catch_warnings(), pytest.raises(InternalError, match="recipe cpu.window"):
        warnings.simplefilter("error", InternalError)  # as pyproject.toml has it for every test
        construct(expression, device("avx512"), 20)


@pytest.mark.parametrize(("name", "quotients"), [("transposed_convolution", True), ("winograd_cpu", False)])
def test_a_dilated_operand_is_known_by_the_quotient_in_its_index(name, quotients):
    text = Path(__file__).with_name("read").joinpath(f"{name}.json").read_text()
    assert divides(TensorExpression.from_json(json.loads(text))) == quotients
    assert not divides(operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=8, k=3, stride=2))
