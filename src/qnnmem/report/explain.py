"""What error codes mean, as text and as JSON, schema `qnnmem.explain/1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qnnmem.doctor.explain import CodeMeaning, Explanation
from qnnmem.results.schema import write_json
from qnnmem.text import shorten

SCHEMA = "qnnmem.explain/1"

_FEW = 2  # diagnoses that are named at once


def render_text(explained: Sequence[Explanation], *, verbose: bool = False) -> str:
    """A paragraph for each meaning of each code; `verbose` adds other names and the diagnoses."""
    return "\n".join("\n".join(_one(one, verbose)) + "\n" for one in explained)


def render_json(explained: Sequence[Explanation]) -> str:
    """One JSON object."""
    return write_json(as_values(explained))


def as_values(explained: Sequence[Explanation]) -> dict[str, Any]:
    """Everything known about each code, as the schema has it."""
    return {"schema": SCHEMA, "codes": [_values(one) for one in explained]}


def _one(one: Explanation, verbose: bool) -> Iterator[str]:
    if not one.meanings:
        yield f"{_shown(one)}: no known code"
        yield from _unknown(one)
        return
    if len(one.meanings) > 1:
        yield f"{_shown(one)}: {len(one.meanings)} meanings; who printed it decides"
    for meaning in one.meanings:
        yield from _meaning(meaning, verbose)


def _unknown(one: Explanation) -> Iterator[str]:
    if one.nearest:
        yield f"  numbers near it belong to {one.nearest}; the log's first error tells more"
    else:
        yield "  it is in no range of QNN, FastRPC, errno or the compiler"
    if one.near:
        known = " and ".join(f"{number.code} {number.name}" for number in one.near)
        yield f"  next to it: {known}"


def _meaning(meaning: CodeMeaning, verbose: bool) -> Iterator[str]:
    number, note = meaning.number, meaning.number.note
    yield f"{number.code} = {_hex(number.code)}  {number.name}  ({number.component})"
    yield from _rows("means", [number.meaning])
    yield from _rows("in practice", [note.practice] if note.practice else [])
    yield from _rows("but", [note.not_that] if note.not_that else [])
    if verbose:
        yield from _rows("also", [*number.aliases, *note.written])
    yield from _rows("look above", note.look_for)
    count = len(meaning.entries)
    if not verbose and count > _FEW:
        yield from _rows("diagnoses", [f"{count} of `qnnmem doctor`; -v names them"])
        return
    yield from _rows("diagnoses", [f"{entry.id}: {entry.title}" for entry in meaning.entries])


def _rows(title: str, rows: Sequence[str]) -> Iterator[str]:
    """A title before the first row."""
    yield from (f"  {title if not at else '':<13} {row}" for at, row in enumerate(rows))


def _values(one: Explanation) -> dict[str, Any]:
    return {
        "asked": one.asked,
        "code": one.code,
        "known": bool(one.meanings),
        "nearest_range": one.nearest,
        "near": [{"code": number.code, "name": number.name} for number in one.near],
        "meanings": [_meaning_values(meaning) for meaning in one.meanings],
    }


def _meaning_values(meaning: CodeMeaning) -> dict[str, Any]:
    number = meaning.number
    return {
        "code": number.code,
        "hex": _hex(number.code),
        "name": number.name,
        "family": number.family,
        "component": number.component,
        "meaning": number.meaning,
        "aliases": list(number.aliases),
        "also_written": list(number.note.written),
        "in_practice": number.note.practice,
        "not_what_it_says": number.note.not_that,
        "look_for": list(number.note.look_for),
        "entries": [
            {"id": entry.id, "title": entry.title, "cause": entry.cause, "stage": entry.stage}
            for entry in meaning.entries
        ],
    }


def _shown(one: Explanation) -> str:
    text = shorten(one.asked, 80)
    return text if one.code is None else f"{text} ({one.code} = {_hex(one.code)})"


def _hex(code: int) -> str:
    return f"-0x{-code:x}" if code < 0 else f"0x{code:x}"
