"""Check the arguments of public calls; a wrong type raises an error with one sentence."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from qnnmem.errors import UsageError
from qnnmem.text import quote

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
_Kinds: TypeAlias = "type | tuple[type, ...]"

# Types that are iterable but count as one value, so that a string is not split into characters.
_ONE_THING = (str, bytes, bytearray, Mapping)


def expect(value: object, kinds: _Kinds, requirement: str) -> None:
    """Raise UsageError unless a value has one of these types; a bool does not pass as a number."""
    if type(value) is bool:
        fine = kinds is bool or (isinstance(kinds, tuple) and bool in kinds)
    else:
        fine = isinstance(value, kinds)
    if not fine:
        raise UsageError(f"{requirement}, not {_shown(value)}")


def expect_items(values: object, kind: _Kinds, requirement: str) -> tuple[Any, ...]:
    """Return an iterable's values as a tuple; raise UsageError unless all have the type `kind`."""
    if type(values) is not tuple:
        if isinstance(values, _ONE_THING) or not isinstance(values, Iterable):
            raise UsageError(f"{requirement}, not {_shown(values)}")
        values = tuple(values)
    for value in values:
        if not isinstance(value, kind):
            raise UsageError(f"{requirement}; one of them is {_shown(value)}")
    return values


def expect_mapping(values: object, requirement: str) -> Mapping[str, Any]:
    """Return a mapping with string keys; None gives an empty mapping."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise UsageError(f"{requirement}, not {_shown(values)}")
    for name in values:
        if not isinstance(name, str):
            raise UsageError(f"{requirement}; one of the names is {_shown(name)}")
    return values


def as_dataclass(options: T | Mapping[str, Any] | None, kind: type[T]) -> T:
    """Return options of the given type; a mapping sets some fields, other fields keep defaults."""
    if isinstance(options, kind):
        return options
    from dataclasses import fields  # the command line starts faster without it

    known = [field.name for field in fields(kind)]
    what = f"options must be {kind.__name__} or a mapping from its field names to values"
    values = expect_mapping(options, what)
    for name in values:
        if name not in known:
            raise UsageError(f"{quote(name)} is not an option; the options are {', '.join(known)}")
    return kind(**values)


def as_whole(value: object, requirement: str) -> int:
    """Return an integer, such as a numpy integer, as an int; raise UsageError for other values."""
    if type(value) is not bool and hasattr(value, "__index__"):
        return operator.index(value)
    raise UsageError(f"{requirement}, not {_shown(value)}")


def _shown(value: object) -> str:
    return "None" if value is None else quote(value)
