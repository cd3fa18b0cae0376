"""What error codes mean, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.doctor.explain import hex_of
from qnnmem.results.explain import CodeMeaning, Explanation
from qnnmem.text import shorten

_FEW = 2  # diagnoses that are named at once


def render_text(explained: Sequence[Explanation], *, verbose: bool = False) -> str:
    """A paragraph for each meaning of each code; `verbose` adds other names and the diagnoses."""
    return "\n".join("\n".join(_one(one, verbose)) + "\n" for one in explained)


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
    if one.nearest_range:
        yield f"  numbers near it belong to {one.nearest_range}; the log's first error tells more"
    else:
        yield "  it is in no range of QNN, FastRPC, errno or the compiler"
    if one.near:
        known = " and ".join(f"{number.code} {number.name}" for number in one.near)
        yield f"  next to it: {known}"


def _meaning(meaning: CodeMeaning, verbose: bool) -> Iterator[str]:
    yield f"{meaning.code} = {meaning.hex}  {meaning.name}  ({meaning.component})"
    yield from _rows("means", [meaning.meaning])
    yield from _rows("in practice", [meaning.in_practice] if meaning.in_practice else [])
    yield from _rows("but", [meaning.not_what_it_says] if meaning.not_what_it_says else [])
    if verbose:
        yield from _rows("also", [*meaning.aliases, *meaning.also_written])
    yield from _rows("look above", meaning.look_for)
    count = len(meaning.entries)
    if not verbose and count > _FEW:
        yield from _rows("diagnoses", [f"{count} of `qnnmem doctor`; -v names them"])
        return
    yield from _rows("diagnoses", [f"{entry.id}: {entry.title}" for entry in meaning.entries])


def _rows(title: str, rows: Sequence[str]) -> Iterator[str]:
    """A title before the first row."""
    yield from (f"  {title if not at else '':<13} {row}" for at, row in enumerate(rows))


def _shown(one: Explanation) -> str:
    text = shorten(one.asked, 80)
    return text if one.code is None else f"{text} ({one.code} = {hex_of(one.code)})"
