"""Sentences about an incident, shared by text, Markdown and SARIF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from qnnmem.doctor.kb.entry import CAUSES, OPEN_CAUSES, is_memory
from qnnmem.results.incident import Candidate, Evidence, Incident, ReadingStats
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

StageAndCause = tuple[str, str]
IN_FULL = 20  # incidents shown in full; a table counts the others
WIDE = 400  # characters of evidence; the collector cuts at the same length
PRINTED = "reported: printed by the log"
MISSING = "computed: needed minus limit"

_MEMORY = {
    True: "out of memory",
    False: "not memory",
    "unknown": "it is unknown whether memory is short",
}
_NAMED = 5  # candidates in a list
_ENOUGH = 0.499  # sum of all scores; below it, candidates are guesses


def verdict(incident: Incident) -> str:
    """Return one line: stage, cause, whether memory is short, and confidence."""
    if incident.verdict == "undecided":
        failed = f"the {incident.stage} stage failed" if incident.stage_told else "something failed"
        return f"undecided: {failed}, but the log does not show why; {_side(incident)}"
    words = f"{incident.stage} stage: " if incident.stage_told else ""
    words += _decided(incident)
    if incident.shortage_bytes is not None:
        size = incident.shortage_bytes
        words += f"; {format_size(size)} ({counted(size, 'byte')}) missing"
    return f"{words} ({incident.cause}); confidence {incident.confidence}"


def _decided(incident: Incident) -> str:
    """Describe whether memory is short, and the cause; low confidence adds "probably"."""
    low = incident.confidence == "low"
    kind = f"{'probably ' if low else ''}{_MEMORY[incident.is_memory]}"
    if _is_open(incident):
        return f"{kind}; the log does not name the cause"
    meaning = shorten(incident.cause_meaning, WIDE)
    if incident.verdict == "memory":  # the entry decides memory or not, but not the cause
        return f"{kind}, {'perhaps' if low else 'probably'}: {meaning}"
    return f"{kind}: {meaning}"


def _side(incident: Incident) -> str:
    """Return whether memory is probably short, and what share of the probability says so."""
    known = _in_question(incident)
    short = incident.is_memory
    words = f"memory is probably{'' if short else ' not'} short"
    if short == "unknown":
        words = _MEMORY[short]
    if sum(candidate.score for candidate, _ in known) < _ENOUGH:
        return words
    share = sum(part for candidate, part in known if is_memory(candidate.cause))
    return f"{words} (memory causes {share:.0%}, other causes {1 - share:.0%})"


def _is_open(incident: Incident) -> bool:
    """Return True if no cause is named; a "cause" verdict always names one."""
    return incident.verdict != "cause" and incident.cause in OPEN_CAUSES


def _in_question(incident: Incident) -> list[tuple[Candidate, float]]:
    """Return the possible causes with their scores, scaled to a sum of 1 unless all are weak."""
    known = [c for c in incident.candidates if c.cause not in OPEN_CAUSES and c.score > 0]
    total = sum(candidate.score for candidate in known)
    scale = total if total >= _ENOUGH else 1.0
    return [(candidate, candidate.score / scale) for candidate in known]


def in_question(incident: Incident) -> list[str]:
    """Return rows of share, meaning and name for the possible causes of an undecided incident."""
    if not _is_open(incident):
        return []
    known = _in_question(incident)
    rows = [f"{part:>4.0%}  {_meaning(c.cause, c.meaning)}" for c, part in known[:_NAMED]]
    rest = sum(part for _, part in known[_NAMED:])
    return [*rows, f"{rest:>4.0%}  {len(known) - _NAMED} more"] if rest else rows


def _meaning(cause: str, words: str) -> str:
    kind = "memory: " if is_memory(cause) else ""
    name, meaning = shorten(cause), shorten(words, WIDE) or CAUSES.get(cause)
    return f"{kind}{meaning} ({name})" if meaning else f"{kind}{name}"


def candidates(incident: Incident) -> str:
    """Return the possible causes in one line, the likeliest first; empty if there are none."""
    ranked = [f"{candidate.cause} {candidate.score:.2f}" for candidate in incident.candidates]
    return ", ".join(ranked[:_NAMED])


def doubt(incident: Incident) -> str:
    """Return the reason for low confidence if an earlier error line is unknown; else empty."""
    line = incident.unknown_error
    return (
        "" if line is None else f"an unknown error line comes before the decisive line: {_at(line)}"
    )


def where(incident: Incident) -> str:
    """Return the log lines, process and program of an incident."""
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
    """Return a repeat count such as " (3 times)"; empty for a count of one."""
    return f" ({count:,} times)" if count > 1 else ""


def cause(incident: Incident) -> str:
    """Return the title of the matching entry with the label `cause`; `closest` for a weak match.

    Without an entry, return the incident's own title with the label `why`.
    """
    title = shorten(incident.title, WIDE)
    if incident.entry is None:
        return f"why: {title}"
    guessed = _is_open(incident) and incident.confidence == "low"
    word = "closest" if guessed else "cause"
    return f"{word}: {title} (entry {shorten(incident.entry)})"


def evidence(incident: Incident) -> Iterator[str]:
    """Yield each evidence line with its place; `>` marks the deciding line, `?` unknown errors."""
    for line in evidence_lines(incident):
        mark = ">" if line.decides else "?" if is_unknown(incident, line) else " "
        yield f"{mark} {_at(line)}: {shorten(line.text, WIDE)}{times(line.count)}"


def evidence_lines(incident: Incident) -> tuple[Evidence, ...]:
    """Return the evidence lines, which always include the unknown error."""
    strange = incident.unknown_error
    if strange is None or any(is_unknown(incident, line) for line in incident.evidence):
        return incident.evidence
    return (strange, *incident.evidence)


def is_unknown(incident: Incident, line: Evidence) -> bool:
    """Return True if the line is the unknown error of the incident."""
    strange = incident.unknown_error
    return strange is not None and (line.file, line.line) == (strange.file, strange.line)


def _at(line: Evidence) -> str:
    return f"{shorten(line.file, WIDE)}:{line.line}"


def quantities(incident: Incident) -> list[tuple[str, str, str, str]]:
    """Return the incident's numbers as rows: name, exact value, rounded size, origin."""
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
    """Return a number in its usual notation: FastRPC codes of 2^31 and above in hexadecimal."""
    is_code = isinstance(value, int) and value >> 31 == 1
    return f"0x{value:x}" if is_code else str(value)


def model_numbers(incident: Incident) -> list[tuple[str, str, str, str]]:
    """Return the memory of the model that the user named, as rows in the form of `quantities`."""
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
    """Return sentences derived from the numbers of the user's model."""
    numbers = incident.model_numbers
    return [] if numbers is None else [shorten(sentence, 600) for sentence in numbers.sentences]


def similar(incident: Incident) -> list[str]:
    """Return the knowledge base entries similar to an unknown line, with the shared words."""
    return [
        f"{entry.title} (entry {entry.entry}; shared words: {', '.join(entry.shared[:6])})"
        for entry in incident.similar or ()
    ]


def healthy(stats: ReadingStats) -> str:
    """Return the one-line verdict on logs without a known failure."""
    words = f"healthy: no known failure in {amount(stats)}"
    if stats.foreign:
        words = f"no QNN log: no QNN lines in {amount(stats)}"
    if stats.unclear:
        words = f"undecided: neither failure nor success in {amount(stats)}"
    if stats.unread:  # logs that were not read cannot be called healthy
        words = f"not all logs could be read; no known failure in {amount(stats)}"
    if stats.noise:
        known = stats.noise[:_NAMED]
        named = [f"{shorten(entry.title, 100)}{times(entry.count)}" for entry in known]
        more = len(stats.noise) - len(named)
        named += [f"{more} more"] if more else []
        words += f"; harmless lines that look like failures: {'; '.join(named)}"
    return words


def amount(stats: ReadingStats) -> str:
    """Return how many lines and bytes were read, and the file's name or the number of files."""
    files = len(stats.files)
    names = shorten(stats.files[0], WIDE) if files == 1 else counted(files, "file")
    lines = counted(stats.lines, "line")
    return f"{lines}, {counted(stats.bytes, 'byte')} of {names}"


def summary(stats: ReadingStats, first: Incident) -> str:
    """Return the first line of a report: the verdict and, if several, the number of incidents."""
    if stats.incidents == 1:
        return verdict(first)
    return f"{counted(stats.incidents, 'incident')}; the first: {verdict(first)}"


def in_full(
    incidents: Iterable[Incident], rest: Counter[StageAndCause]
) -> Iterator[tuple[int, Incident]]:
    """Yield the incidents to show in full, with their numbers; count the others in `rest`."""
    for number, incident in enumerate(incidents, 1):
        if number <= IN_FULL:
            yield number, incident
        else:
            rest[incident.stage, incident.cause] += 1


def by_cause(counts: Counter[StageAndCause]) -> list[tuple[str, str, int]]:
    """Return rows of stage, cause and number of incidents, the most frequent first."""
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(stage, cause, count) for (stage, cause), count in rows]
