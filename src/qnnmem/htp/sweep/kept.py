"""A result of a sweep as it is kept on disk, and back; nothing that is read is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from qnnmem.errors import Setting, Words
from qnnmem.htp.sweep.value import Result


def to_kept(result: Result) -> dict[str, Any]:
    """A result as values for JSON."""
    return asdict(result)


def from_kept(values: Mapping[str, Any] | None) -> Result | None:
    """A kept result; None when a file holds something else."""
    if values is None or set(values) != {field.name for field in fields(Result)}:
        return None
    rest = dict(values)
    state, reason = rest.pop("state"), _words(rest.pop("reason"))
    if not isinstance(state, str) or reason is None:
        return None
    if not all(isinstance(value, int | float | None) for value in rest.values()):
        return None
    return Result(state, reason, **rest)


def _words(value: object) -> Words | None:
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
