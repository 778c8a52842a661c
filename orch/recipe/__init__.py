"""Recipes: from a YAML file and overrides to one checked, frozen value with the origin of every part of it."""

from orch.recipe.check import Recipe, load
from orch.recipe.origin import Origin
from orch.recipe.stacks import Stack

__all__ = ["Origin", "Recipe", "Stack", "load"]
