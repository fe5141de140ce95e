"""The registry of recipes."""

import pytest

from roller_tvm.recipes import RECIPES, registered
from roller_tvm.roller.rprogram import RECIPE_NAMES


def test_every_name_of_an_rprogram_has_a_recipe():
    assert sorted(RECIPES) == sorted(RECIPE_NAMES)
    assert all(recipe.name == name and recipe.says for name, recipe in RECIPES.items())


def test_a_name_is_given_once():
    recipe = next(iter(RECIPES.values()))
    with pytest.raises(ValueError, match=f"two recipes are called '{recipe.name}'"):
        registered((recipe, recipe))
