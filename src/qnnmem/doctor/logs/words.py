"""The vocabulary for reading lines: rules and texts from `kb/words.toml`.

A rule is a list of expressions, few of which match a given line. Therefore each expression is
stored with texts of which every match contains at least one. The expression is compiled and tried
only if a line contains one of these texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from qnnmem.wire import ready

FILE = Path(__file__).parents[1] / "kb" / "words.toml"
_FORMAT = 1
_OF_FORM = Path(__file__).parents[1] / "kb" / "required.py"


class Expression(msgspec.Struct, frozen=True):
    """Expression without alternatives, and texts of which every match contains at least one."""

    pattern: str
    texts: tuple[str, ...]  # empty: unknown, so every line is tried


class WordRule(msgspec.Struct, frozen=True, dict=True):
    """Rule with examples: a lower-case line matches if any of the expressions occurs in it."""

    name: str
    any: tuple[Expression, ...]
    match: tuple[str, ...]
    nomatch: tuple[str, ...]

    def search(self, low: bytes) -> bool:
        """Return True if any expression of the rule occurs in a lower-case line."""
        for pattern in self._possible(low):  # noqa: SIM110 - `any` takes twice as long
            if _compiled(pattern).search(low):
                return True
        return False

    def spans(self, low: bytes) -> list[tuple[int, int]]:
        """Return the start and end of each of the rule's matches in a lower-case line, in order."""
        return sorted(
            hit.span()
            for pattern in self._possible(low)
            for hit in _compiled(pattern).finditer(low)
        )

    def removed(self, low: bytes) -> bytes:
        """Return a lower-case line without the rule's matches."""
        here = tuple([one for one in self._possible(low) if _compiled(one).search(low)])
        return _joined(here).sub(b" ", low) if here else low

    def _possible(self, low: bytes) -> Iterator[bytes]:
        """Yield the expressions that a line could match, judged by their required texts."""
        for texts, pattern in self._encoded:
            for text in texts:
                if text in low:
                    yield pattern
                    break

    @cached_property
    def _encoded(self) -> tuple[tuple[tuple[bytes, ...], bytes], ...]:
        return tuple(
            (tuple(text.encode() for text in one.texts), one.pattern.encode()) for one in self.any
        )


class _Words(msgspec.Struct, frozen=True):
    texts: dict[str, tuple[str, ...]]
    rule: tuple[WordRule, ...]


@cache
def _words() -> _Words:
    """Return the vocabulary, from a cache if possible, because that loads faster than TOML."""
    from qnnmem.doctor import cache

    states = [(path.name, *_state(path)) for path in (FILE, _OF_FORM)]
    name = cache.name_of("words", [repr((_FORMAT, states)).encode()], ".json")
    kept = cache.load(name)
    if kept is not None:
        try:
            return msgspec.json.decode(kept, type=ready(_Words))
        except msgspec.DecodeError:
            pass  # another format: read the file again
    made = _read()
    cache.keep(name, msgspec.json.encode(made))
    return made


def _state(path: Path) -> tuple[int, ...]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def _read() -> _Words:
    import tomllib

    from qnnmem.doctor.kb.required import alternatives, required

    data: dict[str, Any] = tomllib.loads(FILE.read_text("utf-8"))
    for rule in data["rule"]:
        rule["any"] = [
            Expression(one, tuple(sorted(required(one) or ("",))))
            for pattern in rule["any"]
            for one in alternatives(pattern)
        ]
    return msgspec.convert(data, _Words)


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern)


@lru_cache(maxsize=256)
def _joined(patterns: tuple[bytes, ...]) -> re.Pattern[bytes]:
    return _compiled(patterns[0]) if len(patterns) == 1 else re.compile(b"|".join(patterns))


def texts(name: str) -> tuple[bytes, ...]:
    """Return the fixed texts that engines search for."""
    return tuple(text.encode() for text in _words().texts[name])


@cache
def rules(start: str) -> tuple[WordRule, ...]:
    """Return the rules whose names have this prefix, in the order of the file."""
    return tuple(one for one in _words().rule if one.name.startswith(start))


@cache
def rule(name: str) -> WordRule:
    """Return the rule with this name."""
    return next(one for one in _words().rule if one.name == name)
