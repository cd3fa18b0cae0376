"""A diagnosis as text: verdict first, then evidence, cause, shortage, remedies, next step."""

from __future__ import annotations

from qnnmem.report import doctor_words as words
from qnnmem.text import shorten

TYPE_CHECKING = False  # true for type checkers; importing typing is dear beside a small log
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from qnnmem.report.doctor_read import Read

IN_FULL = 20  # incidents shown in full; the rest is a table


def render(incidents: Iterable[Mapping[str, Any]], read: Read) -> Iterator[str]:
    """The report piece by piece; whatever came from logs is made safe to print."""
    rest: dict[tuple[str, str], int] = {}
    number = 0
    for number, incident in enumerate(incidents, 1):
        if number == 1:
            yield words.summary(read, incident) + "\n"
        if number > IN_FULL:
            key = incident["stage"], incident["cause"]
            rest[key] = rest.get(key, 0) + 1
            continue
        if read.incidents > 1:
            yield f"\n{heading(incident, number, read.incidents)}\n"
        yield _lines(details(incident))
    if not number:
        yield words.healthy(read) + "\n"
    if rest:
        yield _lines(_table(rest))
    if number and read.incidents > 1:
        yield f"\nread {words.amount(read)}\n"
    yield from (f"note: {shorten(note, 600)}\n" for note in read.notes)


def one(incident: Mapping[str, Any], number: int) -> str:
    """An incident of a log that is still being written."""
    return f"incident {number}: {words.verdict(incident)}\n{_lines(details(incident))}\n"


def heading(incident: Mapping[str, Any], number: int, total: int) -> str:
    """Number and verdict of one incident of several."""
    return f"incident {number:,} of {total:,}: {words.verdict(incident)}"


def details(incident: Mapping[str, Any]) -> Iterator[str]:
    """Everything below an incident's verdict."""
    yield words.where(incident)
    yield from ("", "evidence, > decides:" if incident["verdict"] != "undecided" else "evidence:")
    yield from (f"  {line}" for line in words.evidence(incident))
    yield from ("", words.cause(incident))
    if incident["verdict"] != "undecided" and len(incident["candidates"]) > 1:
        yield f"ranked: {words.candidates(incident)}"
    yield from _rows("in the lines:", words.quantities(incident))
    yield from _rows("this model:", words.own_numbers(incident))
    yield from (f"  {sentence}" for sentence in words.sentences(incident))
    yield from _numbered("similar, not confirmed:", words.similar(incident))
    yield from _numbered("what to do:", incident["remedies"])
    yield from _numbered("what to collect next:", incident["collect_next"])


def _rows(title: str, rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    if not rows:
        return
    name, value, size = (max(len(row[k]) for row in rows) for k in range(3))
    yield from ("", title)
    for row in rows:
        cells = f"{row[0]:<{name}}  {row[1]:>{min(value, 60)}}  {row[2]:>{size}}"
        yield f"  {cells}  {row[3]}"


def _numbered(title: str, items: Iterable[str]) -> Iterator[str]:
    for number, item in enumerate(items, 1):
        if number == 1:
            yield from ("", title)
        yield f"  {number}. {shorten(item, 600)}"


def _table(rest: Mapping[tuple[str, str], int]) -> Iterator[str]:
    yield from ("", f"{sum(rest.values()):,} more incidents, by stage and cause:")
    yield from (f"{count:>9,}  {stage:<8} {name}" for stage, name, count in words.by_cause(rest))


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line.rstrip()}\n" for line in lines)
