"""Render a diagnosis as a page section: log lines, cause, shortage and remedies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from qnnmem.report.doctor_remedies import learned
from qnnmem.report.doctor_words import quantity
from qnnmem.report.page.charts import Bar, bars
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, command, details, lines, table, tag, text
from qnnmem.results.doctor import DoctorResult
from qnnmem.results.incident import Evidence, Incident
from qnnmem.results.result import MAX_COUNT
from qnnmem.text import counted
from qnnmem.units import format_size

_MOST = 50  # incidents shown in full
_WIDE, _ROW = 1000, 26  # size of the timeline
_COMMAND = re.compile(r"`(qnnmem [^`]+)`")
# Show a command at the end of a sentence below it, with a copy button.
_AT_END = re.compile(r"(?:[:;,]?(?: or| and| with)? *`qnnmem [^`]+`)+\.?$")


def doctor_section(result: DoctorResult) -> PageSection:
    """Return a section with all incidents of a log."""
    files = ", ".join(PurePath(file).name for file in result.files[:3]) or "a log"
    title = f"Diagnosis of {files}"
    notes = [tag("p", note) for note in result.notes]
    if not result.incidents:
        return PageSection(
            title, lines([tag("p", _capital(result.answer or "no failure found.")), *notes])
        )
    shown = [_incident(incident, result.why) for incident in result.incidents[:_MOST]]
    left = len(result.incidents) - _MOST
    more = [tag("p", f"{counted(left, 'more incident')} in the JSON result.")] if left > 0 else []
    return PageSection(title, lines([*shown, *more, *notes, *_read(result)]))


def _read(result: DoctorResult) -> Iterator[Html]:
    numbers = (("lines", result.stats.lines), ("bytes", result.stats.bytes))
    amount = [f"{number:,} {name}" for name, number in numbers if number]
    rows = [(name,) for name in result.files[:_MOST]]
    title = f"Read {counted(len(result.files), 'file')}{''.join(f', {part}' for part in amount)}"
    yield details(title, table(("file",), rows))


def _incident(incident: Incident, why: dict[str, str]) -> Html:
    times = f", {incident.count:,} times" if incident.count > 1 else ""
    reason = learned(incident) if incident.words else why.get(incident.entry or "", "")
    kind = "undecided whether memory is short"
    if isinstance(incident.is_memory, bool):
        kind = "memory" if incident.is_memory else "not memory"
        kind = f"undecided, probably {kind}" if incident.verdict == "undecided" else kind
    where = f"stage {incident.stage}, {kind}, confidence {incident.confidence}{times}"
    remedies = list(_remedies(incident))
    deciding = [row for row in incident.evidence if row.decides] or incident.evidence[:1]
    is_alone = len({row.file for row in incident.evidence}) < 2
    shown = [_line(row, is_alone=is_alone) for row in deciding]
    return lines(
        [
            tag("p", tag("strong", incident.title), class_="answer"),
            *_shortage(incident),
            tag("p", f"{_capital(incident.cause_meaning)} ({incident.cause})"),
            tag("p", where, class_="faint wraps"),
            tag(
                "div",
                tag(
                    "div",
                    *([tag("h4", "The decisive line")] if deciding else ()),
                    tag("ol", *shown, class_="evidence"),
                    *([tag("p", reason)] if reason else ()),
                ),
                *([tag("div", *remedies)] if remedies else ()),
                class_="beside",
            ),
            *_candidates(incident),
            *_log(incident, deciding),
            *_numbers(incident),
        ]
    )


def _capital(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"


def _log(incident: Incident, shown: Sequence[Evidence]) -> Iterator[Html]:
    """Yield all evidence lines in order, unless the section already shows them all."""
    if len(incident.evidence) > len(shown):
        yield tag("h4", "Evidence in the log, in order")
        yield from _timeline(incident.evidence)
        is_alone = len({row.file for row in incident.evidence}) < 2
        rows = [_line(row, is_alone=is_alone) for row in incident.evidence]
        yield tag("ol", *rows, class_="evidence")


def _timeline(evidence: Sequence[Evidence]) -> Iterator[Html]:
    """Yield a drawing of the positions of the lines in the log; the deciding line is marked."""
    if len(evidence) < 2 or len({line.file for line in evidence}) > 1:
        return
    numbers = [line.line for line in evidence]
    first, last = min(numbers), max(numbers)
    scale = (_WIDE - 20) / ((last - first) or 1)
    marks = "".join(
        f'<path d="M{10 + (line.line - first) * scale:.1f} 3V{_ROW - 3}" '
        f'class="{"decides" if line.decides else "said"}"/>'
        for line in evidence
    )
    words = f"Lines {first:,} to {last:,} of the log; the decisive line is marked"
    axis = f'<path d="M0 {_ROW / 2}H{_WIDE}" class="axis"/>'
    yield tag(
        "div",
        tag("span", f"line {first:,}", class_="label"),
        Html(
            f'<svg viewBox="0 0 {_WIDE} {_ROW}" preserveAspectRatio="none" role="img" '
            f'aria-label="{text(words)}">{axis}{marks}</svg>'
        ),
        tag("span", f"line {last:,}", class_="amount"),
        class_="bar timeline",
    )


def _line(shown: Evidence, *, is_alone: bool) -> Html:
    """Return a log line with its place, but no file name if there is only one log (`is_alone`)."""
    place = f"line {shown.line:,}" if is_alone else f"{shown.file}:{shown.line}"
    times = f" ({shown.count:,} times)" if shown.count > 1 else ""
    return tag(
        "li",
        tag("span", f"{place}{times}", class_="faint wraps"),
        Html(" <strong>decides</strong>" if shown.decides else ""),
        Html("<br>"),
        tag("code", text(shown.text, 2000)),
        class_="decides" if shown.decides else None,
    )


def _shortage(incident: Incident) -> Iterator[Html]:
    need, limit = (_size(incident.quantities.get(name)) for name in _NEED)
    if incident.shortage_bytes is not None:
        short = _size(incident.shortage_bytes)
        exact = f"{incident.shortage_bytes:,} bytes"
        words = f"{format_size(short)} ({exact})" if short and short >= 1024 else exact
        yield tag("p", f"Missing: {words}", class_="answer")
    if need is not None and limit is not None:
        bar = Bar("needed", [("total", need)], limit, 0, *map(incident.origin_of, _NEED))
        yield bars([bar], "Need against the limit")


_NEED = ("needed_bytes", "limit_bytes")


def _size(number: int | str | None) -> int | None:
    """Return a number if it can be drawn, else None: a log can print any number."""
    return number if isinstance(number, int) and 0 <= number <= MAX_COUNT else None


def _candidates(incident: Incident) -> Iterator[Html]:
    """Yield the possible causes, the likeliest first, if there are several."""
    if len(incident.candidates) > 1:
        rows = [(each.meaning or each.cause, f"{each.score:.0%}") for each in incident.candidates]
        yield details("Possible causes", table(("cause", "likely"), rows))


def _remedies(incident: Incident) -> Iterator[Html]:
    if incident.remedies:
        yield tag("h4", "What to change")
    for remedy in incident.remedies:
        words = _COMMAND.sub("the command below", _AT_END.sub("", remedy)) or remedy
        yield tag("p", _capital(words))
        yield from map(command, _COMMAND.findall(remedy))
    if incident.collect_next:
        yield tag("h4", "What to collect next")
        yield tag("ul", *(tag("li", _capital(item)) for item in incident.collect_next))


def _shown(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def _numbers(incident: Incident) -> Iterator[Html]:
    """Yield a table of all numbers of the incident with their origins."""
    rows: list[tuple[str, str, str]] = [
        (name, quantity(value) if "code" in name else _shown(value), incident.origin_of(name))
        for name, value in incident.quantities.items()
    ]
    if incident.model_numbers is not None:
        rows += [
            (part.name, f"{part.bytes:,}", f"{part.origin}: {part.source}")
            for part in incident.model_numbers.parts
        ]
        yield from (tag("p", sentence) for sentence in incident.model_numbers.sentences)
    facts = {
        "entry": incident.entry,
        "process": incident.process,
        "written by": incident.producer,
    }
    rows += [(name, str(value), "") for name, value in facts.items() if value is not None]
    if rows:
        yield details("Where the numbers come from", table(("what", "value", "from"), rows))
