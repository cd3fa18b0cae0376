"""An incident in words: the sentences that text, Markdown and SARIF share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from qnnmem.doctor.kb.entry import CAUSES, is_memory
from qnnmem.results.incident import Candidate, Evidence, Incident, ReadingStats
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

WIDE = 400  # evidence is cut to this length where it is collected
PRINTED = "reported: printed by the log"
MISSING = "computed: needed less limit"

_MEMORY = {
    True: "out of memory",
    False: "not memory",
    "unknown": "whether memory is short is unknown",
}
_NAMED = 5  # harmless entries and candidates that are named
_OPEN = ("unknown", "mem_unknown")  # causes that name no cause
# Shares from which on memory is called likely, and up to which it is called unlikely.
_LIKELY, _UNLIKELY = 0.6, 0.4
_ENOUGH = 0.499  # all scores together; with less the candidates are guesses


def verdict(incident: Incident) -> str:
    """Return one line: stage, cause in words, memory or not, confidence."""
    if incident.verdict == "undecided":
        failed = f"the {incident.stage} stage failed" if incident.stage_told else "something failed"
        return f"undecided: {failed} and the lines do not decide why; {_side(incident)}"
    words = f"{incident.stage} stage: " if incident.stage_told else ""
    words += _decided(incident)
    if incident.shortage_bytes is not None:
        size = incident.shortage_bytes
        words += f"; {format_size(size)} ({counted(size, 'byte')}) missing"
    return f"{words} ({incident.cause}); confidence {incident.confidence}"


def _decided(incident: Incident) -> str:
    """Return whether memory is short, and the cause; low confidence adds "probably"."""
    low = incident.confidence == "low"
    kind = f"{'probably ' if low else ''}{_MEMORY[incident.is_memory]}"
    if _is_open(incident):
        return f"{kind}; the lines do not name the cause"
    meaning = shorten(incident.cause_meaning, WIDE)
    if incident.verdict == "memory":  # the entry knows the side, not the cause
        return f"{kind}, {'perhaps' if low else 'probably'}: {meaning}"
    return f"{kind}: {meaning}"


def _side(incident: Incident) -> str:
    """Return whether memory is likely to be short, from the shares of the possible causes."""
    known = _in_question(incident)
    if sum(one.score for one, _ in known) < _ENOUGH:
        return "whether memory is short is unknown"
    share = sum(part for one, part in known if is_memory(one.cause))
    if share >= _LIKELY:
        return f"memory is likely to be short ({share:.0%})"
    if share <= _UNLIKELY:
        return f"memory is probably not the reason ({share:.0%})"
    return f"memory may be short or not ({share:.0%})"


def _is_open(incident: Incident) -> bool:
    """Return whether no cause is named; a verdict of "cause" always names one."""
    return incident.verdict != "cause" and incident.cause in _OPEN


def _in_question(incident: Incident) -> list[tuple[Candidate, float]]:
    """Return possible causes with their shares; weak guesses keep their scores."""
    known = [one for one in incident.candidates if one.cause not in _OPEN and one.score > 0]
    total = sum(one.score for one in known)
    return [(one, one.score / (total if total >= _ENOUGH else 1.0)) for one in known]


def in_question(incident: Incident) -> list[str]:
    """Return candidate causes of an undecided incident: share, meaning and name."""
    if not _is_open(incident):
        return []
    known = _in_question(incident)
    rows = [f"{part:>4.0%}  {_meaning(one.cause, one.meaning)}" for one, part in known[:_NAMED]]
    rest = sum(part for _, part in known[_NAMED:])
    return [*rows, f"{rest:>4.0%}  {len(known) - _NAMED} more"] if rest else rows


def _meaning(cause: str, words: str) -> str:
    kind = "memory: " if is_memory(cause) else ""
    name, meaning = shorten(cause), shorten(words, WIDE) or CAUSES.get(cause)
    return f"{kind}{meaning} ({name})" if meaning else f"{kind}{name}"


def candidates(incident: Incident) -> str:
    """Return causes by likelihood in one line; empty if there are none."""
    ranked = [f"{one.cause} {one.score:.2f}" for one in incident.candidates]
    return ", ".join(ranked[:_NAMED])


def doubt(incident: Incident) -> str:
    """Return why confidence is lower than the deciding line alone would give; usually empty."""
    line = incident.unknown_error
    return "" if line is None else f"an unknown error line comes before it: {_at(line)}"


def where(incident: Incident) -> str:
    """Return the lines, process and program of an incident."""
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
    """Return a count in words; empty for one."""
    return f" ({count:,} times)" if count > 1 else ""


def cause(incident: Incident) -> str:
    """Return the title of the matching entry; a weak match is called closest, not the cause."""
    title = shorten(incident.title, WIDE)
    if incident.entry is None:
        return f"why: {title}"
    guessed = _is_open(incident) and incident.confidence == "low"
    word = "closest" if guessed else "cause"
    return f"{word}: {title} (entry {shorten(incident.entry)})"


def evidence(incident: Incident) -> Iterator[str]:
    """Yield each line with its place, and a mark for the deciding line and the unknown error."""
    for line in evidence_lines(incident):
        mark = ">" if line.decides else "?" if is_unknown(incident, line) else " "
        yield f"{mark} {_at(line)}: {shorten(line.text, WIDE)}{times(line.count)}"


def evidence_lines(incident: Incident) -> tuple[Evidence, ...]:
    """Return the evidence lines; the unknown error is always included."""
    strange = incident.unknown_error
    if strange is None or any(is_unknown(incident, line) for line in incident.evidence):
        return incident.evidence
    return (strange, *incident.evidence)


def is_unknown(incident: Incident, line: Evidence) -> bool:
    """Return whether a line is the error that no entry knows."""
    strange = incident.unknown_error
    return strange is not None and (line.file, line.line) == (strange.file, strange.line)


def _at(line: Evidence) -> str:
    return f"{shorten(line.file, WIDE)}:{line.line}"


def quantities(incident: Incident) -> list[tuple[str, str, str, str]]:
    """Return rows of name, exact value, size and origin; the shortage comes last."""
    rows = []
    for key, value in incident.quantities.items():
        if key.endswith("_bytes") and isinstance(value, int):
            name = key.removesuffix("_bytes").replace("_", " ")
            origin = incident.origins.get(key, PRINTED)
            rows.append((name, counted(value, "byte"), format_size(value), origin))
        else:
            rows.append((key.replace("_", " "), shorten(quantity(value), WIDE), "", PRINTED))
    shortage = incident.shortage_bytes
    if shortage is not None:
        origin = incident.origins.get("shortage_bytes", MISSING)
        rows.append(("missing", counted(shortage, "byte"), format_size(shortage), origin))
    return rows


def quantity(value: int | str) -> str:
    """Return a number as it is usually written: FastRPC codes from 2^31 on in hexadecimal."""
    is_code = isinstance(value, int) and value >> 31 == 1
    return f"0x{value:x}" if is_code else str(value)


def model_numbers(incident: Incident) -> list[tuple[str, str, str, str]]:
    """Return rows like `quantities`, for the model that the user named."""
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
    """Return sentences about the incident derived from the model's numbers."""
    numbers = incident.model_numbers
    return [] if numbers is None else [shorten(one, 600) for one in numbers.sentences]


def similar(incident: Incident) -> list[str]:
    """Return entries similar to an unknown line, with the words they share."""
    return [
        f"{one.title} (entry {one.entry}; shared words: {', '.join(one.shared[:6])})"
        for one in incident.similar or ()
    ]


def healthy(stats: ReadingStats) -> str:
    """Return one line about logs without failures."""
    words = f"healthy: no known failure in {amount(stats)}"
    if stats.foreign:
        words = f"no log of QNN: nothing of QNN in {amount(stats)}"
    if stats.unclear:
        words = f"undecided: {amount(stats)} show neither a failure nor a success"
    if stats.unread:  # nobody can call healthy what was not read
        words = f"not all logs could be read: no known failure in {amount(stats)}"
    if stats.noise:
        named = [f"{shorten(one.title, 100)}{times(one.count)}" for one in stats.noise[:_NAMED]]
        more = len(stats.noise) - len(named)
        named += [f"{more} more"] if more else []
        words += f"; harmless, although it looks like a failure: {'; '.join(named)}"
    return words


def amount(stats: ReadingStats) -> str:
    """Return how much was read."""
    files = len(stats.files)
    names = shorten(stats.files[0], WIDE) if files == 1 else counted(files, "file")
    lines = counted(stats.lines, "line")
    return f"{lines}, {counted(stats.bytes, 'byte')} of {names}"


def summary(stats: ReadingStats, first: Incident) -> str:
    """Return the first line of a report: the verdict, with the number of incidents if several."""
    if stats.incidents == 1:
        return verdict(first)
    return f"{counted(stats.incidents, 'incident')}; the first: {verdict(first)}"


def by_cause(counts: Mapping[tuple[str, str], int]) -> list[tuple[str, str, int]]:
    """Return stage, cause and number of incidents, the most frequent first."""
    rows: Sequence[tuple[tuple[str, str], int]] = sorted(
        counts.items(), key=lambda item: (-item[1], item[0])
    )
    return [(stage, name, count) for (stage, name), count in rows]
