"""Recipes: functions that return the complete config of a run, often derived from another recipe with ``replace``.

``deberta recipes`` prints the docstring of each recipe.
"""

import difflib
from collections.abc import Callable
from pathlib import Path

from debertakit.pretraining import settings
from debertakit.pretraining.recipes.ablations import ABLATIONS
from debertakit.pretraining.recipes.deberta import DEBERTA_RECIPES
from debertakit.pretraining.recipes.family import FAMILY
from debertakit.pretraining.recipes.generative import GENERATIVE
from debertakit.pretraining.recipes.rtd import REPLACED_TOKEN_DETECTION
from debertakit.pretraining.settings import PretrainConfig

RECIPES: dict[str, Callable[[], PretrainConfig]] = {
    **DEBERTA_RECIPES,
    **ABLATIONS,
    **GENERATIVE,
    **FAMILY,
    **REPLACED_TOKEN_DETECTION,
}


def recipes() -> dict[str, str]:
    """Return the name of each recipe with one line about it."""
    return {name: (function.__doc__ or "").strip() for name, function in RECIPES.items()}


def recipe(name: str) -> PretrainConfig:
    """Look up a recipe by name, or load the run.json of an earlier run."""
    if name.endswith(".json"):
        if not Path(name).is_file():
            raise ValueError(f"no run.json at {name}")
        return settings.load(Path(name))
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(RECIPES)}, or pass a run.json"
        raise ValueError(f"unknown recipe {name!r}; {hint}")
    return RECIPES[name]()
