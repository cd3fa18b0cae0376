"""Every number that logs of QNN, FastRPC and the kernel call an error, and what it means.

One number may mean several things: 12 is ENOMEM in a kernel line and an operator that cannot be
built after `graph prepare failed`. So all are given, each with who prints it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from qnnmem.qnn.codes import code_of, codes

# Who prints the numbers of a family.
COMPONENTS = MappingProxyType(
    {
        "fastrpc": "FastRPC, host side",
        "fastrpc-dsp": "FastRPC, DSP side",
        "errno": "Linux errno",
        "prepare": "HTP compiler, `graph prepare failed N`",
        "transport": "DspTransport of the HTP backend",
    }
)
# Codes raised on the DSP carry this on top (AEEStdErr.h of the open FastRPC library).
DSP_OFFSET = 0x80000400
_DSP_END = DSP_OFFSET + 0x400


@dataclass(frozen=True, slots=True)
class Note:
    """What a code means in the field."""

    practice: str = ""
    not_that: str = ""  # when it does not mean what its name says
    look_for: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # names that people write although no header has them


@dataclass(frozen=True, slots=True)
class Number:
    """One meaning of a number."""

    family: str
    code: int
    name: str
    component: str
    meaning: str
    aliases: tuple[str, ...] = ()
    note: Note = Note()


def meanings(code: int) -> tuple[Number, ...]:
    """Everything that a number may mean; nothing if it is in no table."""
    found = _by_code().get(code, ())
    if not found and code < 0:
        found = tuple(one for one in _by_code().get(-code, ()) if one.family == "errno")
    if not found and DSP_OFFSET < code < _DSP_END:
        found = tuple(map(_on_dsp, _by_code().get(code - DSP_OFFSET, ())))
        found = tuple(one for one in found if one.family == "fastrpc-dsp")
    if not found and code > 0xFFFF:  # a 64-bit error handle holds the code in its lowest bits
        found = tuple(one for one in _by_code().get(code_of(code), ()) if one.family == "qnn")
    return found


def named(name: str) -> tuple[Number, ...]:
    """The codes of a name, with or without its prefix; case does not matter."""
    wanted = name.strip().upper()
    exact, ends = [], []
    for one in _every():
        names = (one.name, *one.aliases, *one.note.written)
        if any(wanted == known.upper() for known in names):
            exact.append(one)
        elif any(known.upper().endswith(f"_{wanted}") for known in names):
            ends.append(one)
    return tuple(exact or ends)


def nearest_range(code: int) -> str:
    """Which component numbers like this belong to; empty if none does."""
    near = [one for one in codes().values() if code > 0 and one.code // 1000 == code // 1000]
    return f"{code // 1000}xxx: {near[0].component}" if near and code >= 1000 else ""


@cache
def _by_code() -> Mapping[int, tuple[Number, ...]]:
    found: dict[int, tuple[Number, ...]] = {}
    for one in _every():
        found[one.code] = (*found.get(one.code, ()), one)
    return MappingProxyType(found)


@cache
def _every() -> tuple[Number, ...]:
    notes = _notes()
    ours = [
        Number("qnn", c.code, c.name, f"QNN {c.component}", c.meaning, c.aliases)
        for c in codes().values()
    ]
    text = files(__package__).joinpath("other_codes.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        family = row["family"]
        ours.append(
            Number(family, int(row["code"], 0), row["name"], COMPONENTS[family], row["meaning"])
        )
    return tuple(_with(one, notes.get((one.family, one.code), Note())) for one in ours)


@cache
def _notes() -> Mapping[tuple[str, int], Note]:
    import tomllib

    text = files(__package__).joinpath("practice.toml").read_text("utf-8")
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


def _with(one: Number, note: Note) -> Number:
    return Number(one.family, one.code, one.name, one.component, one.meaning, one.aliases, note)


def _on_dsp(one: Number) -> Number:
    if one.family != "fastrpc" or one.name == "AEE_ECONNRESET":  # that one has no DSP side
        return one
    return Number(
        "fastrpc-dsp",
        one.code + DSP_OFFSET,
        one.name,
        COMPONENTS["fastrpc-dsp"],
        one.meaning,
        one.aliases,
        one.note,
    )
