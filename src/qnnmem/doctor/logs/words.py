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
    """One rule: expressions of which a line in small letters holds one, and its examples."""

    name: str
    any: tuple[str, ...]
    match: tuple[str, ...]
    nomatch: tuple[str, ...]

    def search(self, low: bytes) -> re.Match[bytes] | None:
        """Where the rule holds in a line of small letters."""
        return _compiled(self.any).search(low)

    def removed(self, low: bytes) -> bytes:
        """The line without what the rule matches."""
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
    """Fixed texts that engines look for."""
    return tuple(text.encode() for text in _words().texts[name])


@cache
def rules(start: str) -> tuple[WordRule, ...]:
    """Rules whose name begins so, in the order of the file; all of them for an empty text."""
    return tuple(one for one in _words().rule if one.name.startswith(start))


@cache
def rule(name: str) -> WordRule:
    """The rule of this name."""
    return next(one for one in _words().rule if one.name == name)
