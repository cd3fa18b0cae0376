"""Incidents of the doctor with their evidence, and how much was read for them.

Fields are in the order in which JSON shows them (schema `qnnmem.doctor/1`). `gc=False` is for
values of which a log may hold a hundred thousand: they cannot be part of a cycle.

A log may print any number, so quantities have no bounds here: check one before computing with it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from qnnmem.results.result import Count, describe, one_of
from qnnmem.wire import ready

_ENCODER = msgspec.json.Encoder()
_NOT_PLAIN = re.compile(r"[^ -~]+")
_DELETE = "\x7f"  # the one control character that JSON does not escape
_DELETE_BYTE = b"\x7f"


Share = Annotated[float, Meta(ge=0, le=1)]
STAGES = ("init", "graph", "context", "memreg", "execute")
Stage = Annotated[str, describe("The stage that fails."), one_of(*STAGES)]
Confidence = Annotated[str, describe("How sure it is."), one_of("high", "medium", "low")]
Verdict = Annotated[
    str,
    describe("How much is decided: the cause, only that memory is short, or nothing."),
    one_of("cause", "memory", "undecided"),
]


class EntryTitle(msgspec.Struct, frozen=True):
    """An entry of the knowledge base: its name and its conclusion."""

    id: Annotated[
        str,
        describe("Name of the entry."),
        Meta(extra_json_schema={"pattern": "^[a-z0-9][a-z0-9-]{0,63}$"}),
    ]
    title: Annotated[str, describe("The diagnosis in one line.")]
    cause: Annotated[str, describe("The cause, one of a closed set.")]
    stage: Stage


class EntryFacts(EntryTitle, frozen=True, kw_only=True):
    """What an entry says besides how it is recognised."""

    verdict: Verdict = "cause"
    confidence: Confidence = "high"
    own: Annotated[
        bool, describe("Whether it is a team's entry, which speaks before the built-in ones.")
    ] = False
    documented: Annotated[
        bool, describe("Whether it is known from its sources only: no stored log shows it.")
    ] = False
    remedies: Annotated[tuple[str, ...], describe("What to do, the first thing first.")] = ()
    sources: Annotated[tuple[str, ...], describe("Where this is known from.")] = ()


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cause and how likely it is, from 0 to 1."""

    cause: str
    score: Share
    meaning: Annotated[str, describe("The cause in the entry's words.", is_omitted=True)] = ""


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """A line that matters, where it is first seen and how often."""

    file: str
    line: Count
    text: str
    count: Count
    decides: Annotated[bool, describe("Whether it decides the diagnosis.")]


class Resemblance(msgspec.Struct, frozen=True):
    """An entry whose lines have words in common with one that no entry knows."""

    entry: str
    title: str
    score: float
    shared: Annotated[tuple[str, ...], describe("Words that both have.")]


class ModelPart(msgspec.Struct, frozen=True):
    """One number of the model or the SoC, and where it comes from."""

    name: str
    bytes: Count
    origin: Annotated[str, one_of("measured", "computed", "documented", "reported")]
    source: str


class ModelNumbers(msgspec.Struct, frozen=True):
    """What the failing model itself needs, beside what the log says."""

    parts: tuple[ModelPart, ...]
    sentences: tuple[str, ...]


class Conclusion(msgspec.Struct, frozen=True):
    """What the lines of an incident mean; the same for all incidents that are judged alike."""

    stage: Stage
    cause: Annotated[str, describe("The cause, one of a closed set.")]
    cause_meaning: Annotated[str, describe("The cause in words.")]
    is_memory: Annotated[
        bool | Literal["unknown"],
        describe("Whether memory is short."),
        one_of(True, False, "unknown"),
    ]
    confidence: Confidence
    verdict: Verdict
    entry: Annotated[str | None, describe("Entry of the knowledge base; null where none knows it.")]
    title: Annotated[str, describe("The diagnosis in one line.")]
    remedies: Annotated[tuple[str, ...], describe("What to do, the first thing first.")]
    collect_next: Annotated[tuple[str, ...], describe("What to collect to know more.")]
    candidates: Annotated[tuple[Candidate, ...], describe("Causes, the likeliest first.")]


class Incident(Conclusion, frozen=True, omit_defaults=True, gc=False):
    """One failure in a log: meaning, place, evidence."""

    file: str
    first_line: Count
    last_line: Count
    last_file: str
    process: Annotated[int | None, describe("Number of the process, where a line tells it.")]
    producer: Annotated[str | None, describe("The program or library that wrote the line.")]
    count: Annotated[Count, describe("How often it happened.")]
    evidence: tuple[Evidence, ...]
    quantities: Annotated[dict[str, int | str], describe("Numbers and names in the lines.")]
    shortage_bytes: Annotated[int | None, describe("Bytes that are missing.")]
    similar: Annotated[
        tuple[Resemblance, ...] | None,
        describe("Entries like it, where no entry knows the deciding line.", is_omitted=True),
    ] = None
    origins: Annotated[
        dict[str, str],
        describe("Of quantities that no line prints: where they come from.", is_omitted=True),
    ] = {}
    model_numbers: Annotated[
        ModelNumbers | None,
        describe("What the failing model itself needs.", is_omitted=True),
    ] = msgspec.field(default=None, name="own_numbers")
    stage_told: Annotated[
        bool,
        describe(
            "False where no line tells the stage: it is where this mostly happens.", is_omitted=True
        ),
    ] = True
    unknown_error: Annotated[
        Evidence | None,
        describe(
            "An unknown error before the deciding line, which lowers the confidence.",
            is_omitted=True,
        ),
    ] = None

    words: Annotated[
        tuple[str, ...],
        describe(
            "Words of the log that spoke most for the cause, where a learned model names it.",
            is_omitted=True,
        ),
    ] = ()

    def origin_of(self, quantity: str) -> str:
        """Where a quantity comes from."""
        return self.origins.get(quantity, "reported: by the log")

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        from qnnmem.notebook import shown

        return shown(self)


class Harmless(msgspec.Struct, frozen=True):
    """An entry about lines of healthy runs that look like failures, and how often it applied."""

    entry: str
    title: str
    count: int


class ReadingStats(msgspec.Struct, frozen=True):
    """The logs read, their amount, and their faults."""

    files: tuple[str, ...]
    lines: int
    bytes: int
    seconds: float
    incidents: int
    noise: tuple[Harmless, ...] = ()
    notes: tuple[str, ...] = ()
    unread: int = 0  # files and folders that may hold a log and could not be read
    foreign: bool = False  # whether there is nothing of QNN in any of them
    unclear: bool = False  # whether they are a few lines that do not say how things went


def to_json(value: object) -> str:
    """A value of structs as one line of JSON in ASCII, which every terminal and encoding takes."""
    try:
        text = _ENCODER.encode(value).decode()
    except UnicodeEncodeError:  # the name of a file that is not UTF-8
        import json

        return json.dumps(msgspec.to_builtins(value))
    return text if text.isascii() and _DELETE not in text else _NOT_PLAIN.sub(_escaped, text)


def to_json_bytes(value: object) -> bytes:
    """The same as bytes, which most values are at once."""
    try:
        data = _ENCODER.encode(value)
    except UnicodeEncodeError:
        return to_json(value).encode("ascii")
    plain = data.isascii() and _DELETE_BYTE not in data
    return data if plain else to_json(value).encode("ascii")


def from_json(data: bytes) -> Incident:
    """The incident that `to_json` wrote."""
    try:
        return msgspec.json.decode(data, type=ready(Incident))
    except msgspec.DecodeError:  # half a surrogate pair, as above
        import json

        return msgspec.convert(json.loads(data), ready(Incident))


def _escaped(match: re.Match[str]) -> str:
    import json

    return json.dumps(match[0])[1:-1]
