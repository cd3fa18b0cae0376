"""A diagnosis as part of a page: the incident's lines in order, cause, shortage, remedies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from qnnmem.report.page.charts import Bar, bars
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Html, command, lines, table, tag, text
from qnnmem.report.page.values import DoctorValues, LogEvidence, LogIncident

_MOST = 50  # incidents that are shown in full
_COMMAND = re.compile(r"`(qnnmem [^`]+)`")


def doctor_section(found: DoctorValues) -> PageSection:
    """All incidents of a log."""
    files = ", ".join(PurePath(file).name for file in found.files[:3]) or "a log"
    if not found.incidents:
        notes = [tag("p", note) for note in found.notes]
        return PageSection(f"Diagnosis of {files}", lines([tag("p", "No failure found."), *notes]))
    shown = [_incident(one) for one in found.incidents[:_MOST]]
    left = len(found.incidents) - _MOST
    more = [tag("p", f"{left:,} more incidents are in the result.")] if left > 0 else []
    return PageSection(f"Diagnosis of {files}", lines([*shown, *more]))


def _incident(one: LogIncident) -> Html:
    memory = "memory or not is open"
    if isinstance(one.is_memory, bool):
        memory = "memory" if one.is_memory else "not memory"
    where = f"stage {one.stage}, {memory}, confidence {one.confidence}"
    times = f", {one.count:,} times" if one.count > 1 else ""
    return lines(
        [
            tag("h3", one.title),
            tag("p", f"{one.cause_meaning} ({one.cause}); {where}{times}", class_="answer"),
            *_shortage(one),
            tag("ol", *map(_line, one.evidence), class_="evidence"),
            *_remedies(one),
        ]
    )


def _line(shown: LogEvidence) -> Html:
    times = f" ({shown.count:,} times)" if shown.count > 1 else ""
    return tag(
        "li",
        tag("span", f"{PurePath(shown.file).name}:{shown.line}{times}", class_="faint"),
        Html(" <strong>decides</strong>" if shown.decides else ""),
        Html("<br>"),
        tag("code", text(shown.text, 2000)),
        class_="decides" if shown.decides else None,
    )


def _shortage(one: LogIncident) -> Iterator[Html]:
    need, limit = one.quantities.get("needed_bytes"), one.quantities.get("limit_bytes")
    if isinstance(need, int) and isinstance(limit, int):
        yield bars([Bar("needed", [("total", need)], limit)], "Needed against the limit")
    if one.shortage_bytes is not None:
        yield tag("p", f"Missing: {one.shortage_bytes:,} bytes")


def _remedies(one: LogIncident) -> Iterator[Html]:
    if one.remedies:
        yield tag("h3", "What to change")
    for remedy in one.remedies:
        yield tag("p", _COMMAND.sub(r"\1", remedy))
        yield from map(command, _COMMAND.findall(remedy))
    if one.collect_next:
        yield tag("h3", "What to collect next")
        yield table(("what",), [(item,) for item in one.collect_next])
