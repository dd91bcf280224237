"""The paper's tables and figures, at a chosen scale, beside what the paper prints."""

from sparsepgd.reproduce.parts import Cost, Number, Outcome, Plan, cost
from sparsepgd.reproduce.recipe import Recipe
from sparsepgd.reproduce.recipes import RECIPES, recipe
from sparsepgd.reproduce.scales import SCALES, Scale, scale
from sparsepgd.reproduce.subjects import Job

__all__ = [
    "RECIPES",
    "SCALES",
    "Cost",
    "Job",
    "Number",
    "Outcome",
    "Plan",
    "Recipe",
    "Scale",
    "cost",
    "recipe",
    "scale",
]
