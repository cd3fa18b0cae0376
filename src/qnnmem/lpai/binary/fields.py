"""Typed reading of the values in a binary's description, each refused with the path to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from qnnmem.errors import Damaged
from qnnmem.text import quote

MAX_TEXT = 1 << 16  # characters of a name or a note

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
Read = Callable[[Any], T]


class Record:
    """A JSON object that has exactly the keys it should have."""

    def __init__(self, value: Any, keys: frozenset[str]) -> None:
        if type(value) is not dict:
            raise Damaged(f"is {_shown(value)} where an object belongs")
        if value.keys() != keys:
            missing, extra = sorted(keys - value.keys()), sorted(value.keys() - keys)
            fault = f"lacks {quote(missing[0])}" if missing else f"has unknown {quote(extra[0])}"
            raise Damaged(fault)
        self._values: Mapping[str, Any] = value

    def get(self, key: str, read: Read[T]) -> T:
        """The value of a key, as `read` understands it."""
        try:
            return read(self._values[key])
        except Damaged as exc:
            raise exc.inside(f".{key}") from None


def text(value: Any) -> str:
    """A string of bounded length."""
    if type(value) is not str:
        raise Damaged(f"is {_shown(value)} where a text belongs")
    if len(value) > MAX_TEXT:
        raise Damaged(f"has {len(value):,} characters, more than {MAX_TEXT:,}")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise Damaged(f"is {_shown(value)} where true or false belongs")
    return value


def integer(low: int, high: int) -> Read[int]:
    """Reads whole numbers `low <= n <= high`."""

    def read(value: Any) -> int:
        if type(value) is not int:
            raise Damaged(f"is {_shown(value)} where a whole number belongs")
        if not low <= value <= high:
            raise Damaged(f"is {quote(value)}, not between {low:,} and {high:,}")
        return value

    return read


def word(kind: type[E]) -> Read[E]:
    """Reads the words of a closed set."""
    words = {member.value: member for member in kind}

    def read(value: Any) -> E:
        found = words.get(value) if type(value) is str else None
        if found is None:
            raise Damaged(f"is {_shown(value)}, none of {', '.join(words)}")
        return found

    return read


def listing(read: Read[T], most: int | None = None) -> Read[tuple[T, ...]]:
    """Reads lists whose elements `read` understands."""

    def read_all(value: Any) -> tuple[T, ...]:
        if type(value) is not list:
            raise Damaged(f"is {_shown(value)} where a list belongs")
        if most is not None and len(value) > most:
            raise Damaged(f"has {len(value):,} entries, more than {most:,}")
        found: list[T] = []
        try:
            for element in value:
                found.append(read(element))
        except Damaged as exc:
            raise exc.inside(f"[{len(found)}]") from None
        return tuple(found)

    return read_all


def pair(read: Read[T]) -> Read[tuple[T, T]]:
    """Reads lists of exactly two."""

    def read_two(value: Any) -> tuple[T, T]:
        found = listing(read, 2)(value)
        if len(found) != 2:
            raise Damaged("does not have two entries")
        return found[0], found[1]

    return read_two


def optional(read: Read[T]) -> Read[T | None]:
    """Reads what may be null."""
    return lambda value: None if value is None else read(value)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) if isinstance(value, float) else quote(value)
