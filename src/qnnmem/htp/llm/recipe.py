"""Precision recipes: the bits of each part of a decoder."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from msgspec.structs import replace

from qnnmem.errors import Setting, UsageError
from qnnmem.results.llm import LlmModel, LlmRecipe
from qnnmem.text import nearest, quote

_PARTS = {  # parts that a caller may set, with their allowed values
    "layers": ("bits", (4, 8, 16)),
    "embedding": ("embedding", (4, 8, 16)),
    "head": ("head", (4, 8, 16)),
    "kv": ("kv", (8, 16)),
    "block": ("block", (0, 16, 32, 64, 128)),
}
_CHANGED = ", changed"
_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("recipes.toml").read_text("utf-8"))


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes."""
    return tuple(_table())


def find_recipe(name: str, model: LlmModel, parts: Iterable[tuple[str, int]] = ()) -> LlmRecipe:
    """Return a recipe adapted to a model, with parts set by the caller."""
    if name not in _table():
        meant = nearest(name, _table())
        hint = f"did you mean {meant}?" if meant else f"there are {', '.join(_table())}"
        raise UsageError(f"{quote(name)} is not a known recipe", cure=hint)
    fields = {**_table()[name]}
    models, stated = fields.pop("models", {}), fields.pop("stated", ())
    own = models.get(model.preset, {})
    fields |= {
        key: tuple(value) if isinstance(value, list) else value for key, value in own.items()
    }
    recipe = LlmRecipe(name=name, is_stated=bool(own) or model.preset in stated, **fields)
    return with_parts(recipe, parts)


def with_parts(recipe: LlmRecipe, parts: Iterable[tuple[str, int]]) -> LlmRecipe:
    """Return the recipe with other bits for some parts."""
    for part, bits in parts:
        recipe = _with_part(recipe, part, bits)
    return recipe


def _with_part(recipe: LlmRecipe, part: str, bits: int) -> LlmRecipe:
    """Return the recipe with other bits for one part."""
    name = f"{recipe.name.removesuffix(_CHANGED)}{_CHANGED}"
    recipe = replace(recipe, name=name, is_stated=False)
    part = part.removesuffix("_proj")
    if part in _MATRICES:
        if bits not in (recipe.bits, 8):
            what = f"{part} can have the {recipe.bits} bits of its layer or 8, not {bits}"
            raise UsageError(what, cure=("change all with ", Setting("bits", "layers=8")))
        others = tuple(one for one in recipe.wide if one != part)
        return replace(recipe, wide=(*others, part) if bits == 8 else others, wide_layers=None)
    if part not in _PARTS:
        known = ", ".join((*_PARTS, *_MATRICES))
        raise UsageError(f"{quote(part)} is not a part of a recipe; there are {known}")
    field, allowed = _PARTS[part]
    if bits not in allowed:
        listed = ", ".join(map(str, allowed))
        raise UsageError(f"{part} cannot be {quote(bits)}; possible are {listed}")
    return replace(recipe, **{field: bits})


def usual_range(recipe: LlmRecipe) -> tuple[LlmRecipe, LlmRecipe] | None:
    """Return the smallest and largest usual recipe around a guessed one."""
    if recipe.is_stated or recipe.bits != 4:
        return None
    small = replace(recipe, block=0, wide=(), head=min(recipe.head, 4))
    large = replace(recipe, block=16, wide=("down",), wide_layers=None, head=max(recipe.head, 8))
    return small, large
