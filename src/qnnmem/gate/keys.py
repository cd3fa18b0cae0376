"""The keys of an entry in a budget file: pools, and options of `plan` and `fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from qnnmem.arguments import expect
from qnnmem.errors import UsageError
from qnnmem.options.htp import FitOptions
from qnnmem.options.option import OptionField, Options, option_fields
from qnnmem.options.parsers import number, table, text_item
from qnnmem.options.plan import PlanOptions
from qnnmem.text import quote, suggestion
from qnnmem.units import as_bytes

LPAI, HTP = "lpai", "htp"
TOTAL = "total"
# Pools of LPAI and their sum. `tcm` is the TCM that constants and IO need; the sum excludes it.
LPAI_POOLS = ("scratch", "persistent", "io", "constants", "tcm", TOTAL)
_ALSO: Mapping[str, Mapping[str, str]] = {
    LPAI: {"weights": "constants"},
    HTP: {"spill": "spill-fill", TOTAL: "ram", "host": "host-ram"},
}


def pools_of(target: str) -> tuple[str, ...]:
    """Return the pools of a target, without alternative spellings."""
    from qnnmem.htp.fit import POOLS

    return LPAI_POOLS if target == LPAI else POOLS


def pool_of(name: str, target: str) -> str | None:
    """Return the target's pool with this name; None if the target has no such pool."""
    word = name.strip().lower().replace("_", "-")
    word = _ALSO[target].get(word, word)
    return word if word in pools_of(target) else None


def is_pool(name: str) -> bool:
    """Return True if a word names a pool of any target."""
    return pool_of(name, LPAI) is not None or pool_of(name, HTP) is not None


def check_pool(name: str) -> None:
    """Raise UsageError if a word is not the name of a pool on any target."""
    if not is_pool(name):
        raise UsageError(f"{quote(name)} is not a pool; {suggestion(name, every_pool())}")


def every_pool() -> tuple[str, ...]:
    """Return all pool names that a budget may use, alternative spellings included."""
    others: Iterable[str] = (word for also in _ALSO.values() for word in also)
    return tuple(dict.fromkeys((*LPAI_POOLS, *pools_of(HTP), *others)))


_MAX_ITEMS = 1000  # items of a list
Reader = Callable[[object, str], Any]


def words(value: object, label: str) -> tuple[str, ...]:
    """Return one string or a list of strings as a tuple; `label` names the value in errors."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items or len(items) > _MAX_ITEMS:
        raise UsageError(f"{label} must be a string or a list of strings")
    for item in items:
        expect(item, str, f"{label} must be a string or a list of strings")
        text_item(item, label)
    return tuple(items)


def _choice(known: tuple[str | int, ...], value: object, label: str) -> Any:
    if isinstance(value, bool) or value not in known:
        raise UsageError(f"{label} must be {' or '.join(map(str, known))}, not {quote(value)}")
    return value


def _flag(value: object, label: str) -> bool:
    expect(value, bool, f"{label} must be true or false")
    return bool(value)


def _size(low: int, high: int, value: object, label: str) -> int:
    if isinstance(value, bool | float) or not isinstance(value, int | str):
        raise UsageError(f"{label} must be a number of bytes")
    return int(number(int(as_bytes(value)), label, low, high))


def _items(item: Reader, value: object, label: str) -> Mapping[str, Any]:
    return {name: item(element, f"{label}.{name}") for name, element in table(value, label).items()}


def _budget(item: Reader, value: object, label: str) -> Mapping[str, Any]:
    for name in table(value, label):
        check_pool(name)
    return _items(item, value, label)


def _reader(field: OptionField) -> Reader:
    """Return the function that reads an option's TOML value; `name=value` options are tables."""
    opt = field.opt
    if opt.choices:
        return partial(_choice, opt.choices)
    if field.kind == "flag":
        return _flag
    if opt.item is not None:
        return partial(_budget if field.key == "budget" else _items, opt.item)
    if opt.ge is None or opt.le is None:
        return words if field.is_many else text_item
    if opt.in_bytes:
        return partial(_size, int(opt.ge), int(opt.le))
    low, high = opt.ge, opt.le
    return lambda value, label: number(value, label, low, high)


def keys_of(group: type[Options]) -> dict[str, Reader]:
    """For each key of an options type, return the function that reads its value from TOML."""
    return {field.key: _reader(field) for field in option_fields(group) if field.is_shared}


def _all_keys() -> dict[str, tuple[str | None, Reader]]:
    lpai, htp = keys_of(PlanOptions), keys_of(FitOptions)
    shared = {key: (None, read) for key, read in lpai.items() if key in htp}
    return {
        "target": (None, partial(_choice, (LPAI, HTP))),
        **shared,
        **{key: (LPAI, read) for key, read in lpai.items() if key not in shared},
        **{key: (HTP, read) for key, read in htp.items() if key not in shared},
    }


# Keys of an entry, with the target they apply to; None means both targets.
KEYS: Mapping[str, tuple[str | None, Reader]] = _all_keys()
