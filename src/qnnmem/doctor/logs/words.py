"""The vocabulary of reading: rules and texts of `kb/words.toml`, compiled when first needed."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

import msgspec

FILE = "words.toml"


class WordRule(msgspec.Struct, frozen=True):
    """One rule: expressions that match a lower-case line if any of them occurs, with examples."""

    name: str
    any: tuple[str, ...]
    match: tuple[str, ...]
    nomatch: tuple[str, ...]

    def search(self, low: bytes) -> re.Match[bytes] | None:
        """Find the rule's first match in a lower-case line."""
        return _compiled(self.any).search(low)

    def removed(self, low: bytes) -> bytes:
        """Return the line without the matches of the rule."""
        return _compiled(self.any).sub(b" ", low)


class _Words(msgspec.Struct, frozen=True):
    texts: dict[str, tuple[str, ...]]
    rule: tuple[WordRule, ...]


@cache
def _words() -> _Words:
    data: dict[str, Any] = tomllib.loads(
        resources.files("qnnmem.doctor.kb").joinpath(FILE).read_text("utf-8")
    )
    return msgspec.convert(data, _Words)


@cache
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[bytes]:
    return re.compile("|".join(patterns).encode())


def texts(name: str) -> tuple[bytes, ...]:
    """Return the fixed texts that engines search for."""
    return tuple(text.encode() for text in _words().texts[name])


@cache
def rules(start: str) -> tuple[WordRule, ...]:
    """Return the rules whose name has this prefix, in the order of the file."""
    return tuple(one for one in _words().rule if one.name.startswith(start))


@cache
def rule(name: str) -> WordRule:
    """Return the rule with this name."""
    return next(one for one in _words().rule if one.name == name)
