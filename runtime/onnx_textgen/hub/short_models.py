"""Makes the model of a short name by the recipe that comes with this package, from the file of its makers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..package.short_names import short_names
from ..recipes.building import build
from .model_cache import find_cached, place_of
from .python_index import source_of

RECIPES = Path(__file__).parents[1] / "recipes" / "shipped"


def recipe_of(name: object) -> Path | None:
    """The recipe of a short name; None for a name that has none."""
    path = RECIPES / f"{name}.recipe"
    return path if isinstance(name, str) and name in short_names() and path.is_file() else None


def rebuild(name: str, recipe: Path, report: Callable[[str], None] = lambda progress: None) -> Path:
    """Fetch the file of a short name and make the model's package in the cache; returns its folder. Raises `PackageError`."""
    with source_of(short_names()[name], report) as source:
        report(f"building {name} ...")
        return build(recipe, Path(source), place_of(name), force=True)


def build_at_first_use(name: object, say: Callable[[str], None], report: Callable[[str], None] = lambda progress: None) -> None:
    """Make the model of a short name that has a recipe, unless there is a folder or a model of that name here.

    `say` is told what is fetched, and its licence; `report` how far it is, and at the end an empty text. Raises `PackageError`.
    """
    recipe = recipe_of(name)
    if recipe is None or not isinstance(name, str) or Path(name).exists() or find_cached(name) is not None:
        return
    say(short_names()[name].in_words)
    rebuild(name, recipe, report)
    report("")
