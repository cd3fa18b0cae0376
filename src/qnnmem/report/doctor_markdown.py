"""A diagnosis as Markdown for a ticket; nothing in a log can become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from qnnmem.doctor.incident import Incident, ReadingStats
from qnnmem.report import doctor_words as words
from qnnmem.report.doctor_remedies import Guide, legend
from qnnmem.report.shell import LONGEST
from qnnmem.text import shorten

IN_FULL = 20

# An underscore inside a word is not markup; a colon and www. only matter where they begin a link.
_MARKS = re.compile(r"([\\`*\[\]#~|$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
_PLAIN_CODE = re.compile(r"[^`|\\<>&]+")


def render_markdown(
    incidents: Iterable[Incident], stats: ReadingStats, guide: Guide | None = None
) -> Iterator[str]:
    """The report piece by piece."""
    guide = guide or Guide()
    rest: dict[tuple[str, str], int] = {}
    number = 0
    for number, incident in enumerate(incidents, 1):
        if number == 1:
            yield f"# {escape(words.summary(stats, incident))}\n"
        if number > IN_FULL:
            key = incident.stage, incident.cause
            rest[key] = rest.get(key, 0) + 1
            continue
        if stats.incidents > 1:
            title = f"{number:,} of {stats.incidents:,}: {words.verdict(incident)}"
            yield f"\n## {escape(title)}\n"
        yield "".join(f"{line}\n" for line in details(incident, guide))
    if not number:
        yield f"# {escape(words.healthy(stats))}\n"
    if rest:
        rows = [(stage, name, f"{count:,}") for stage, name, count in words.by_cause(rest)]
        yield "\n## The rest, by stage and cause\n\n"
        yield "".join(f"{line}\n" for line in table(("stage", "cause", "incidents"), rows))
    if number:
        yield f"\nRead {escape(words.amount(stats))}.\n"
    yield from (f"\nNote: {escape(shorten(note, 600))}\n" for note in stats.notes)


def render_live(incident: Incident, number: int, guide: Guide | None = None) -> str:
    """An incident of a log that is still being written."""
    title = f"Incident {number}: {words.verdict(incident)}"
    body = "".join(f"{line}\n" for line in details(incident, guide or Guide()))
    return f"## {escape(title)}\n{body}\n"


def details(incident: Incident, guide: Guide) -> Iterator[str]:
    """Everything below an incident's heading."""
    yield from ("", f"**Where:** {escape(words.where(incident))}")
    label, _, entry = words.cause(incident).partition(": ")
    yield from ("", f"**{label.capitalize()}:** {escape(entry)}")
    if why := guide.why(incident):
        yield from ("", f"**Why:** {advice(why)}")
    if possible := words.in_question(incident):
        yield from ("", "**What comes into question:**", "")
        yield from (f"- {escape(row.strip())}" for row in possible)
    elif len(incident.candidates) > 1:
        yield from ("", f"**Ranked:** {escape(words.candidates(incident))}")
    yield from ("", "**Evidence** (`>` decides):", "", *block(words.evidence(incident)))
    if doubt := words.doubt(incident):
        yield from ("", escape(doubt))
    head = ("quantity", "value", "size", "origin")
    for title, rows in (
        ("In the lines", words.quantities(incident)),
        ("This model", words.model_numbers(incident)),
    ):
        if rows:
            yield from ("", f"**{title}:**", "", *table(head, rows))
    for sentence in words.sentences(incident):
        yield from ("", escape(sentence))
    yield from _numbered("Similar, not confirmed", words.similar(incident))
    yield from _remedies(guide, incident)
    yield from _numbered("What to collect next", incident.collect_next)


def escape(text: str) -> str:
    """Text that shows as it is: without markup, HTML, links or mentions."""
    marked = "".join(_ENTITIES.get(c, c) for c in _MARKS.sub(r"\\\1", shorten(text, 2000)))
    marked = re.sub(r"(?i)\b(www)\.", r"\1&#46;", marked.replace("://", "&#58;//"))
    return re.sub(r"^(\s*)([-+=]|[0-9]+(?=[.)]))", _not_a_list, marked)


def _not_a_list(match: re.Match[str]) -> str:
    digits = match[2].isdigit()
    return f"{match[1]}{match[2]}\\" if digits else f"{match[1]}\\{match[2]}"


def advice(text: str) -> str:
    """A sentence of the knowledge base, in which `code` stays code."""
    parts = shorten(text, 600).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return "".join(
        (code(part) if part else "") if index % 2 else escape(part) if part else ""
        for index, part in enumerate(parts)
    )


def code(text: str, width: int = words.WIDE) -> str:
    """Text as code, also inside a table; what could end the code is written as numbers."""
    shown = shorten(text, width)
    if _PLAIN_CODE.fullmatch(shown) and shown.strip():
        return f"`{shown}`"
    numbers = (c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in shown)
    return f"<code>{''.join(numbers)}</code>"


def block(lines: Iterable[str]) -> list[str]:
    """A code block with a fence longer than any run of backticks inside it."""
    inside = list(lines)
    longest = max((len(run) for line in inside for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *inside, fence]


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A table; its cells come from logs."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(code(cell) if cell else ' ' for cell in row)} |"


def _remedies(guide: Guide, incident: Incident) -> Iterator[str]:
    remedies = guide.remedies(incident)
    for number, one in enumerate(remedies, 1):
        if number == 1:
            yield from ("", "**What to do:**", "")
        commands = " or ".join(code(command, LONGEST) for command in one.commands)
        yield f"{number}. {advice(one.text)}{': ' if commands else ''}{commands}"
    if meant := legend(remedies):
        yield from ("", advice(meant))


def _numbered(title: str, items: Iterable[str]) -> Iterator[str]:
    for number, item in enumerate(items, 1):
        if number == 1:
            yield from ("", f"**{title}:**", "")
        yield f"{number}. {advice(item)}"
