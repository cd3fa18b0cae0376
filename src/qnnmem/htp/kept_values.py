"""Frozen values as JSON, and back by the types of their fields; nothing that is read is trusted.

A new field needs nothing here, and a file of another shape counts as missing.
"""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from qnnmem.errors import QnnMemError, Setting, Words
from qnnmem.targets.socs import Soc, find_soc

_MOST = 1 << 63
T = TypeVar("T")


def to_values(value: Any) -> Any:
    """A value as JSON takes it."""
    if isinstance(value, Soc):
        return value.name
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {item.name: to_values(getattr(value, item.name)) for item in fields(value)}
    return [to_values(item) for item in value] if isinstance(value, tuple) else value


def from_values(wanted: type[T], values: Any) -> T | None:
    """A value of a type; None when a file holds something else."""
    try:
        found = _read(wanted, values)
    except (TypeError, ValueError, KeyError, RecursionError, QnnMemError):
        return None
    return found if isinstance(found, wanted) else None


def read_words(value: object) -> Words | None:
    """A text, or texts and settings, as JSON holds them."""
    try:
        found: Words = _read(str | tuple[str | Setting, ...], value)
    except (TypeError, ValueError, KeyError):
        return None
    return found


def _read(wanted: Any, value: Any) -> Any:
    """A value of a type; ValueError or TypeError for anything else."""
    if get_origin(wanted) in (Union, types.UnionType):
        return _read_one_of(get_args(wanted), value)
    if get_origin(wanted) is tuple:
        if not isinstance(value, list):
            raise TypeError("no list")
        return tuple(_read(get_args(wanted)[0], item) for item in value)
    if wanted is Soc:
        return find_soc(_read(str, value))
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return wanted(value)
    if is_dataclass(wanted):
        return _read_fields(wanted, value)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted or (wanted is int and abs(value) >= _MOST):
        raise TypeError("another type")
    return value


def _read_one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        try:
            return _read(kind, value)
        except (TypeError, ValueError, KeyError):
            continue
    raise TypeError("none of the types")


def _read_fields(wanted: Any, value: Any) -> Any:
    names = {item.name for item in fields(wanted)}
    if not isinstance(value, dict) or set(value) != names:
        raise TypeError("other fields")
    hints = get_type_hints(wanted, localns={"Setting": Setting})  # which `Words` names
    return wanted(**{name: _read(hints[name], item) for name, item in value.items()})
