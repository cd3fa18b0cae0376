"""What the keys of an entry may hold, each refused in a sentence where it holds something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from qnnmem.arguments import expect
from qnnmem.errors import UsageError
from qnnmem.gate.pools import HTP, LPAI, check_pool
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, Bytes, as_bytes

Given: TypeAlias = "bool | int | float | tuple[bool | int | float, ...] | Path"

_MAX_DIM = 1 << 40
_ITEMS = 1000  # of a list or a table
_SHAPE = re.compile(r"[0-9]{1,13}(?:\s*[xX,*\u00d7]\s*[0-9]{1,13})*")
_SEPARATOR = re.compile(r"\s*[xX,*\u00d7]\s*")


def words(value: object, what: str) -> tuple[str, ...]:
    """A text, or several."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not found or len(found) > _ITEMS:
        raise UsageError(f"{what} is a text or a list of them")
    for one in found:
        expect(one, str, f"{what} is a text or a list of them")
        if not one.strip() or "\0" in one:
            raise UsageError(f"{what} holds an empty text")
    return tuple(found)


def text(value: object, what: str) -> str:
    """A text that is not empty."""
    expect(value, str, f"{what} is a text")
    return words(value, what)[0]


def flag(value: object, what: str) -> bool:
    """True or false."""
    expect(value, bool, f"{what} is true or false")
    return bool(value)


def number(low: float, high: float) -> Callable[[object, str], Any]:
    """A number between two."""

    def check(value: object, what: str) -> Any:
        kinds = int if isinstance(low, int) else (int, float)
        expect(value, kinds, f"{what} is a number from {low} to {high}")
        if not low <= value <= high:  # type: ignore[operator]
            raise UsageError(f"{what} is a number from {low} to {high}, not {quote(value)}")
        return value

    return check


def choice(*known: str) -> Callable[[object, str], str]:
    """One of some words."""

    def check(value: object, what: str) -> str:
        if value not in known:
            raise UsageError(f"{what} is {' or '.join(known)}, not {quote(value)}")
        return str(value)

    return check


def table(value: object, what: str) -> Mapping[str, Any]:
    """A table of names."""
    if not isinstance(value, Mapping) or len(value) > _ITEMS:
        raise UsageError(f"{what} is a table, such as {{ name = 1 }}")
    return value


def dims(value: object, what: str) -> Mapping[str, int]:
    """Free dimensions."""
    return {k: number(0, _MAX_DIM)(v, f"{what}.{k}") for k, v in table(value, what).items()}


def shapes(value: object, what: str) -> Mapping[str, tuple[int, ...]]:
    """Shapes of tensors: `"1x3x224x224"` or `[1, 3, 224, 224]`."""
    return {name: _shape(sizes, f"{what}.{name}") for name, sizes in table(value, what).items()}


def _shape(value: object, what: str) -> tuple[int, ...]:
    if isinstance(value, str) and _SHAPE.fullmatch(value.strip()):
        value = [int(part) for part in _SEPARATOR.split(value.strip())]
    if not isinstance(value, list | tuple) or len(value) > 64:
        raise UsageError(f'{what} is a shape, such as "1x3x224x224" or [1, 3, 224, 224]')
    return tuple(number(0, _MAX_DIM)(size, what) for size in value)


def values(value: object, what: str) -> Mapping[str, Given]:
    """Inputs that are constants: numbers, lists of them, or files as `"@mask.npy"`."""
    return {name: _value(one, f"{what}.{name}") for name, one in table(value, what).items()}


def _value(value: object, what: str) -> Given:
    if isinstance(value, str) and value.removeprefix("@"):
        return Path(value.removeprefix("@"))
    numbers = tuple(value) if isinstance(value, list | tuple) else (value,)
    for one in numbers:
        expect(one, (bool, int, float), f'{what} is a number, numbers, or a file as "@mask.npy"')
    return numbers if isinstance(value, list | tuple) else numbers[0]


def states(value: object, what: str) -> Mapping[str, str]:
    """Outputs that are inputs of the next run."""
    return {name: text(one, f"{what}.{name}") for name, one in table(value, what).items()}


def budget(value: object, what: str) -> Mapping[str, Bytes]:
    """Sizes by pool."""
    found: dict[str, Bytes] = {}
    for name, size in table(value, what).items():
        check_pool(name)
        if isinstance(size, bool | float) or not isinstance(size, int | str):
            raise UsageError(f'{what}.{name} is a size, such as 262144 or "256K"')
        found[name] = as_bytes(size)
        if not 0 <= found[name] <= MAX_BYTES:
            raise UsageError(f"{what}.{name} lies between 0 and {MAX_BYTES:,} bytes")
    return found


def size(value: object, what: str) -> int:
    """An alignment: a power of two is not asked for here, the planner says what it takes."""
    if isinstance(value, bool | float) or not isinstance(value, int | str):
        raise UsageError(f"{what} is a number of bytes")
    found = int(as_bytes(value))
    return int(number(1, 1 << 20)(found, what))


# What an entry may say; `None`: on both targets.
KEYS: Mapping[str, tuple[str | None, Callable[[object, str], Any]]] = {
    "target": (None, choice(LPAI, HTP)),
    "dims": (None, dims),
    "shapes": (None, shapes),
    "values": (None, values),
    "time_limit": (None, number(0.0, 86_400.0)),
    "budget": (None, budget),
    "states": (LPAI, states),
    "align": (LPAI, size),
    "bits": (LPAI, number(8, 32)),
    "io": (LPAI, choice("inside", "outside")),
    "inplace": (LPAI, flag),
    "reorder": (LPAI, flag),
    "socs": (HTP, words),
    "precision": (HTP, choice("fp16", "int8", "w8a16")),
    "vtcm_mb": (HTP, number(1, 64)),
}
