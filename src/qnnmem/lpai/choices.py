"""What this runtime does where public material about LPAI says nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from qnnmem.results.lpai import Choice


@cache
def choices() -> Mapping[str, Choice]:
    """Every choice by its id, in the order of sections."""
    table = tomllib.loads(files(__package__).joinpath("choices.toml").read_text("utf-8"))
    return MappingProxyType({key: Choice(id=key, **row) for key, row in table.items()})
