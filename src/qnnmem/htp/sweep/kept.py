"""A result of a sweep as it is kept on disk, and back; nothing that is read is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from qnnmem.errors import Setting, Words
from qnnmem.htp.sweep.value import Result

_STATES = ("fits", "over", "refused")  # what failed is not kept
_MAX_NUMBER = 1 << 63
_MAX_SECONDS = 1e9


def to_kept(result: Result) -> dict[str, Any]:
    """A result as values for JSON."""
    values = asdict(result)
    del values["timed_out"]  # such a result is not kept
    return values


def from_kept(values: Mapping[str, Any] | None) -> Result | None:
    """A kept result; None when a file holds something else."""
    if values is None or set(values) != {field.name for field in fields(Result)} - {"timed_out"}:
        return None
    rest = dict(values)
    state, reason = rest.pop("state"), read_words(rest.pop("reason"))
    seconds = rest.pop("seconds")
    if state not in _STATES or reason is None or not _is_time(seconds):
        return None
    if not all(value is None or _is_number(value) for value in rest.values()):
        return None
    return Result(state, reason, **rest, seconds=seconds)


def _is_number(value: object) -> bool:
    return type(value) is int and abs(value) < _MAX_NUMBER


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < _MAX_SECONDS  # type: ignore[operator]


def read_words(value: object) -> Words | None:
    """A text, or texts and settings, as JSON holds them."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    parts = [_part(part) for part in value]
    return None if None in parts else tuple(part for part in parts if part is not None)


def _part(part: object) -> str | Setting | None:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and set(part) == {"name", "value"}:
        name, value = part["name"], part["value"]
        if isinstance(name, str) and isinstance(value, str):
            return Setting(name, value)
    return None
