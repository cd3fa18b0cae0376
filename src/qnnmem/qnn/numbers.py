"""Error numbers of QNN, FastRPC and the kernel, and their meanings.

A number can have several meanings: 12 is ENOMEM in a kernel line, but after `graph prepare failed`
it is an operator that cannot be built. All meanings are returned, each with its component.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType

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


@dataclass(frozen=True, slots=True)
class Note:
    """What a code means in practice."""

    practice: str = ""
    not_that: str = ""  # for a code whose name is misleading
    look_for: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # names in use that no header has


@dataclass(frozen=True, slots=True)
class Number(Code):
    """One meaning of a number, as a code of QNN or of the software around it."""

    family: str = "qnn"
    note: Note = Note()


def meanings(code: int) -> tuple[Number, ...]:
    """Return every meaning of a number; empty if it is in no table."""
    found = _by_code().get(code, ())
    if not found and code < 0:
        found = tuple(one for one in _by_code().get(-code, ()) if one.family == "errno")
    if not found and DSP_OFFSET < code < _DSP_END:
        found = tuple(map(_on_dsp, _by_code().get(code - DSP_OFFSET, ())))
        found = tuple(one for one in found if one.family == "fastrpc-dsp")
    if not found and 0xFFFF < code < 1 << 64:  # a 64-bit handle holds the code in its lowest bits
        found = tuple(one for one in _by_code().get(code_of(code), ()) if one.family == "qnn")
    return found or _of_other_sign(code)


def _of_other_sign(code: int) -> tuple[Number, ...]:
    """Return the meanings of a number that was printed with the wrong sign."""
    if code < -999:
        found = _by_code().get(-code, ()) or (meanings(code + (1 << 32)) if code > -1 << 31 else ())
        return tuple(one for one in found if one.family in ("qnn", "fastrpc-dsp"))
    for bits in (32, 64):
        if 1 << (bits - 1) <= code < 1 << bits and code - (1 << bits) > _LOWEST:
            return meanings(code - (1 << bits))
    return ()


def named(name: str, *, whole: bool = False) -> tuple[Number, ...]:
    """Return the codes with a name in any spelling; with `whole`, the prefix must be included."""
    wanted = squeezed(name.rpartition("::")[2])
    exact = _by_name().get(wanted, ())
    if exact or whole:
        return exact
    end = "_" + "_".join(_WORDS.findall(name.upper()))
    return tuple(one for one in _every() if any(n.upper().endswith(end) for n in _names(one)))


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
    return tuple(name for one in _every() for name in _names(one))


def _names(one: Number) -> tuple[str, ...]:
    return (one.name, *one.aliases, *one.note.written)


def nearest_range(code: int) -> str:
    """Return the range and component of an unknown number; empty if it is in no range."""
    if DSP_OFFSET <= code < _DSP_END:
        return f"0x{DSP_OFFSET:x} to 0x{_DSP_END - 1:x}: {COMPONENTS['fastrpc-dsp']}"
    near = [one for one in codes().values() if code > 0 and one.code // 1000 == code // 1000]
    return f"{code // 1000}xxx: {near[0].component}" if near and code >= 1000 else ""


def neighbours(code: int) -> tuple[Number, ...]:
    """Return the QNN codes just below and above a number, in the same range."""
    same = sorted(one for one in codes() if one >= 1000 and one // 1000 == code // 1000)
    below, above = [one for one in same if one < code], [one for one in same if one > code]
    return tuple(_by_code()[one][0] for one in (*below[-1:], *above[:1]))


@cache
def _by_code() -> Mapping[int, tuple[Number, ...]]:
    found: dict[int, tuple[Number, ...]] = {}
    for one in _every():
        found[one.code] = (*found.get(one.code, ()), one)
    return MappingProxyType(found)


@cache
def _by_name() -> Mapping[str, tuple[Number, ...]]:
    found: dict[str, tuple[Number, ...]] = {}
    for one in _every():
        for name in dict.fromkeys(map(squeezed, _names(one))):
            found[name] = (*found.get(name, ()), one)
    return MappingProxyType(found)


@cache
def _every() -> tuple[Number, ...]:
    notes = _notes()
    ours = [
        Number(c.code, c.name, f"QNN {c.component}", c.meaning, c.aliases) for c in codes().values()
    ]
    text = Path(__file__).with_name("other_codes.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        family = row["family"]
        ours.append(
            Number(
                int(row["code"], 0),
                row["name"],
                COMPONENTS[family],
                row["meaning"],
                family=family,
            )
        )
    return tuple(replace(one, note=notes.get((one.family, one.code), Note())) for one in ours)


@cache
def _notes() -> Mapping[tuple[str, int], Note]:
    import tomllib

    text = Path(__file__).with_name("practice.toml").read_text("utf-8")
    found = {}
    for row in tomllib.loads(text)["note"]:
        family, _, code = row["of"].partition(":")
        found[family, int(code, 0)] = Note(
            row["practice"],
            row.get("not_that", ""),
            tuple(row["look_for"]),
            tuple(row.get("written", ())),
        )
    return MappingProxyType(found)


def _on_dsp(one: Number) -> Number:
    if one.family != "fastrpc" or one.name == "AEE_ECONNRESET":  # which has no DSP side
        return one
    return replace(
        one,
        family="fastrpc-dsp",
        code=one.code + DSP_OFFSET,
        component=COMPONENTS["fastrpc-dsp"],
    )
