"""An incident in words: the sentences that text, Markdown and SARIF share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from qnnmem.doctor.incident import Incident, ReadingStats
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

WIDE = 400  # evidence is cut to this length where it is collected
PRINTED = "reported: printed by the log"
MISSING = "computed: needed less limit"

_MEMORY = {
    True: "out of memory",
    False: "not memory",
    "unknown": "memory or not is not known",
}
_NAMED = 5  # harmless entries and candidates that are named in one line


def verdict(incident: Incident) -> str:
    """One line: stage, cause in words, memory or not, confidence."""
    if incident.verdict == "undecided":
        return f"undecided: the {incident.stage} stage failed, {_undecided(incident)}"
    kind = _MEMORY[incident.is_memory]
    words = f"{incident.stage} stage: {kind}: {shorten(incident.cause_meaning, WIDE)}"
    if incident.shortage_bytes is not None:
        size = incident.shortage_bytes
        words += f"; {format_size(size)} ({counted(size, 'byte')}) missing"
    return f"{words} ({incident.cause}); confidence {incident.confidence}"


def _undecided(incident: Incident) -> str:
    ranked = candidates(incident)
    if not ranked:
        return "and the lines do not say why; whether memory is short is not known"
    return f"whether memory is short is not known; possible: {ranked}"


def candidates(incident: Incident) -> str:
    """Causes by how likely they are, in one line; empty when there are none."""
    ranked = [f"{one.cause} {one.score:.2f}" for one in incident.candidates]
    return ", ".join(ranked[:_NAMED])


def where(incident: Incident) -> str:
    """Lines, process and program that an incident is about."""
    file, last = incident.file, incident.last_file
    end = incident.last_line
    words = f"{shorten(file, WIDE)}:{incident.first_line}"
    if last != file:
        words += f" to {shorten(last, WIDE)}:{end}"
    elif end != incident.first_line:
        words += f" to {end}"
    if incident.process is not None:
        words += f", process {incident.process}"
    if incident.producer not in (None, "", "other"):
        words += f", {shorten(str(incident.producer))}"
    return words + times(incident.count)


def times(count: int) -> str:
    """How often something was seen, when more than once."""
    return f" ({count:,} times)" if count > 1 else ""


def cause(incident: Incident) -> str:
    """The entry that speaks; one that cannot decide is not called a cause."""
    title = shorten(incident.title, WIDE)
    if incident.entry is None:
        return f"why: {title}"
    word = "closest" if incident.verdict == "undecided" else "cause"
    return f"{word}: {title} (entry {shorten(incident.entry)})"


def evidence(incident: Incident) -> Iterator[str]:
    """Each line with where it stands; the deciding one is marked."""
    for line in incident.evidence:
        mark = ">" if line.decides else " "
        place = f"{shorten(line.file, WIDE)}:{line.line}"
        yield f"{mark} {place}: {shorten(line.text, WIDE)}{times(line.count)}"


def quantities(incident: Incident) -> list[tuple[str, str, str, str]]:
    """Rows of name, exact value, size and origin; what is missing comes last."""
    rows = []
    for key, value in incident.quantities.items():
        if key.endswith("_bytes") and isinstance(value, int):
            name = key.removesuffix("_bytes").replace("_", " ")
            rows.append((name, counted(value, "byte"), format_size(value), PRINTED))
        else:
            rows.append((key.replace("_", " "), shorten(str(value), WIDE), "", PRINTED))
    shortage = incident.shortage_bytes
    if shortage is not None:
        rows.append(("missing", counted(shortage, "byte"), format_size(shortage), MISSING))
    return rows


def model_numbers(incident: Incident) -> list[tuple[str, str, str, str]]:
    """Rows as those of `quantities`, of the model that was named."""
    if incident.model_numbers is None:
        return []
    return [
        (
            part.name,
            counted(part.bytes, "byte"),
            format_size(part.bytes),
            shorten(f"{part.origin}: {part.source}", WIDE),
        )
        for part in incident.model_numbers.parts
    ]


def sentences(incident: Incident) -> list[str]:
    """What the model's numbers say about the incident."""
    numbers = incident.model_numbers
    return [] if numbers is None else [shorten(one, 600) for one in numbers.sentences]


def similar(incident: Incident) -> list[str]:
    """Entries that a line is like which none knows, with the words they share."""
    return [
        f"{one.title} (entry {one.entry}; shared words: {', '.join(one.shared[:6])})"
        for one in incident.similar or ()
    ]


def healthy(stats: ReadingStats) -> str:
    """One line about logs in which nothing failed."""
    words = f"healthy: no known failure in {amount(stats)}"
    if stats.foreign:
        words = f"undecided: nothing of QNN in {amount(stats)}"
    if stats.unread:  # nobody can call healthy what was not read
        words = f"not all could be read: no known failure in {amount(stats)}"
    if stats.noise:
        named = [f"{shorten(one.title, 100)}{times(one.count)}" for one in stats.noise[:_NAMED]]
        more = len(stats.noise) - len(named)
        named += [f"{more} more"] if more else []
        words += f"; harmless although it looks like a failure: {'; '.join(named)}"
    return words


def amount(stats: ReadingStats) -> str:
    """How much was read."""
    files = len(stats.files)
    names = shorten(stats.files[0], WIDE) if files == 1 else counted(files, "file")
    lines = counted(stats.lines, "line")
    return f"{lines}, {counted(stats.bytes, 'byte')} of {names}"


def summary(stats: ReadingStats, first: Incident) -> str:
    """The first line of a report: the verdict, with the number of incidents if several."""
    if stats.incidents == 1:
        return verdict(first)
    return f"{counted(stats.incidents, 'incident')}; the first: {verdict(first)}"


def by_cause(counts: Mapping[tuple[str, str], int]) -> list[tuple[str, str, int]]:
    """Stage, cause and number of incidents, the most frequent first."""
    rows: Sequence[tuple[tuple[str, str], int]] = sorted(
        counts.items(), key=lambda item: (-item[1], item[0])
    )
    return [(stage, name, count) for (stage, name), count in rows]
