"""Error numbers of QNN, FastRPC and the kernel, and their meanings.

A number can have several meanings: 12 is ENOMEM in a kernel line, but after `graph prepare failed`
it is an operator that cannot be built. All meanings are returned, each with its component.
"""

from __future__ import annotations

import csv
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from qnnmem.qnn.codes import Code, code_of, codes
from qnnmem.text import lazy_pattern

# Component that prints the numbers, by family of numbers.
COMPONENTS = MappingProxyType(
    {
        "fastrpc": "FastRPC, host side",
        "fastrpc-dsp": "FastRPC, DSP side",
        "errno": "Linux errno",
        "prepare": "HTP compiler, `graph prepare failed N`",
        "transport": "DspTransport of the HTP backend",
    }
)
# Codes raised on the DSP have this offset (AEEStdErr.h of the open FastRPC library).
DSP_OFFSET = 0x80000400
_DSP_END = DSP_OFFSET + 0x400
_LOWEST = -4096  # the lowest negative error number that the kernel returns
_WORDS = lazy_pattern(r"[A-Za-z0-9]+")


class Note(Struct, frozen=True):
    """What a code means in practice."""

    practice: str = ""
    not_that: str = ""  # for a code whose name is misleading
    look_for: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # names in use that no header has


class Number(Code, frozen=True):
    """One meaning of a number, as a code of QNN or of the software around it."""

    family: str = "qnn"  # a key of COMPONENTS, or qnn
    note: Note = Note()


def meanings(code: int) -> tuple[Number, ...]:
    """Return every meaning of a number; empty if it is in no table."""
    known = _by_code().get(code, ())
    if not known and code < 0:
        known = _of_families(-code, "errno")
    if not known and DSP_OFFSET < code < _DSP_END:
        known = tuple(map(_on_dsp, _by_code().get(code - DSP_OFFSET, ())))
        known = tuple(number for number in known if number.family == "fastrpc-dsp")
    if not known and 0xFFFF < code < 1 << 64:  # a 64-bit handle holds the code in its lowest bits
        known = _of_families(code_of(code), "qnn")
    return known or _of_other_sign(code)


def _of_families(code: int, *families: str) -> tuple[Number, ...]:
    return tuple(number for number in _by_code().get(code, ()) if number.family in families)


def _of_other_sign(code: int) -> tuple[Number, ...]:
    """Return the meanings of a number that was printed with the wrong sign."""
    if code < -999:
        known = _by_code().get(-code, ()) or (meanings(code + (1 << 32)) if code > -1 << 31 else ())
        return tuple(number for number in known if number.family in ("qnn", "fastrpc-dsp"))
    for bits in (32, 64):
        if 1 << (bits - 1) <= code < 1 << bits and code - (1 << bits) > _LOWEST:
            return meanings(code - (1 << bits))
    return ()


def named(name: str, *, whole: bool = False) -> tuple[Number, ...]:
    """Return the codes with this name, in any spelling.

    If `whole` is false, the name can also be the last words of QNN's name.
    """
    wanted = squeezed(name.rpartition("::")[2])
    exact = _by_name().get(wanted, ())
    if exact or whole:
        return exact
    end = "_" + "_".join(_WORDS.findall(name.upper()))
    return tuple(
        number for number in _every() if any(n.upper().endswith(end) for n in _names(number))
    )


@lru_cache(maxsize=1024)  # a log may hold any number of names
def code_named(name: str) -> int | None:
    """Return the first code with a name; cached, because logs repeat a few names."""
    known = named(name)
    return known[0].code if known else None


def squeezed(name: str) -> str:
    """Return a name in lower case without separators, for comparisons."""
    return "".join(_WORDS.findall(name.lower()))


def every_name() -> tuple[str, ...]:
    """Return all names of all codes."""
    return tuple(name for number in _every() for name in _names(number))


def _names(number: Number) -> tuple[str, ...]:
    return (number.name, *number.aliases, *number.note.written)


def nearest_range(code: int) -> str:
    """Return the range that contains a number, and the range's component; empty if none does."""
    if DSP_OFFSET <= code < _DSP_END:
        return f"0x{DSP_OFFSET:x} to 0x{_DSP_END - 1:x}: {COMPONENTS['fastrpc-dsp']}"
    near = [known for known in codes().values() if code > 0 and known.code // 1000 == code // 1000]
    return f"{code // 1000}xxx: {near[0].component}" if near and code >= 1000 else ""


def neighbours(code: int) -> tuple[Number, ...]:
    """Return the QNN codes just below and above a number, in the same range."""
    same = sorted(known for known in codes() if known >= 1000 and known // 1000 == code // 1000)
    below, above = same[: bisect_left(same, code)], same[bisect_right(same, code) :]
    return tuple(_by_code()[known][0] for known in (*below[-1:], *above[:1]))


@cache
def _by_code() -> Mapping[int, tuple[Number, ...]]:
    numbers: dict[int, tuple[Number, ...]] = {}
    for number in _every():
        numbers[number.code] = (*numbers.get(number.code, ()), number)
    return MappingProxyType(numbers)


@cache
def _by_name() -> Mapping[str, tuple[Number, ...]]:
    numbers: dict[str, tuple[Number, ...]] = {}
    for number in _every():
        for name in dict.fromkeys(map(squeezed, _names(number))):
            numbers[name] = (*numbers.get(name, ()), number)
    return MappingProxyType(numbers)


@cache
def _every() -> tuple[Number, ...]:
    notes = _notes()
    numbers = [
        Number(c.code, c.name, f"QNN {c.component}", c.meaning, c.aliases) for c in codes().values()
    ]
    text = Path(__file__).with_name("other_codes.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        family = row["family"]
        numbers.append(
            Number(
                int(row["code"], 0), row["name"], COMPONENTS[family], row["meaning"], family=family
            )
        )
    return tuple(
        replace(number, note=notes.get((number.family, number.code), Note())) for number in numbers
    )


@cache
def _notes() -> Mapping[tuple[str, int], Note]:
    import tomllib

    text = Path(__file__).with_name("practice.toml").read_text("utf-8")
    notes = {}
    for row in tomllib.loads(text)["note"]:
        family, _, code = row["of"].partition(":")
        notes[family, int(code, 0)] = Note(
            row["practice"],
            row.get("not_that", ""),
            tuple(row["look_for"]),
            tuple(row.get("written", ())),
        )
    return MappingProxyType(notes)


def _on_dsp(number: Number) -> Number:
    if number.family != "fastrpc" or number.name == "AEE_ECONNRESET":  # which has no DSP side
        return number
    return replace(
        number,
        family="fastrpc-dsp",
        code=number.code + DSP_OFFSET,
        component=COMPONENTS["fastrpc-dsp"],
    )
