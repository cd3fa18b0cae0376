"""Incidents of the doctor with their evidence, and the amount of data read.

Fields are in the order of the JSON (schema `qnnmem.doctor/1`). Classes with `gc=False` skip garbage
collection: one log can yield a hundred thousand of their values, none of which is part of a
reference cycle.

A log can state any number, so quantities have no bounds: check a quantity before computing with it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from qnnmem.results.result import Count, describe, one_of
from qnnmem.text import lazy_pattern
from qnnmem.wire import ready

_ENCODER = msgspec.json.Encoder()
_NOT_PLAIN = lazy_pattern(r"[^ -~]+")
_DELETE = "\x7f"  # the only control character that JSON does not escape
_DELETE_BYTE = b"\x7f"


Share = Annotated[float, Meta(ge=0, le=1)]
STAGES = ("init", "graph", "context", "memreg", "execute")
Stage = Annotated[str, describe("The stage that failed."), one_of(*STAGES)]
Confidence = Annotated[
    str, describe("How certain the diagnosis is."), one_of("high", "medium", "low")
]
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
    """An entry of the knowledge base without its line templates."""

    verdict: Verdict = "cause"
    confidence: Confidence = "high"
    own: Annotated[
        bool,
        describe("Whether the entry is the team's own; own entries come before built-in entries."),
    ] = False
    documented: Annotated[
        bool, describe("Whether the entry is based only on documents, without a stored log.")
    ] = False
    remedies: Annotated[tuple[str, ...], describe("What to do, first step first.")] = ()
    sources: Annotated[tuple[str, ...], describe("Sources of the entry.")] = ()


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A possible cause and its probability, from 0 to 1."""

    cause: str
    score: Share
    meaning: Annotated[str, describe("The cause in the words of the entry.", is_omitted=True)] = ""


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """A relevant log line, its first position and its count."""

    file: str
    line: Count
    text: str
    count: Count
    decides: Annotated[bool, describe("Whether this line decides the diagnosis.")]


class Resemblance(msgspec.Struct, frozen=True):
    """An entry whose line templates share words with a line that no entry matches."""

    entry: str
    title: str
    score: float
    shared: Annotated[tuple[str, ...], describe("Words that the entry and the line share.")]


class ModelPart(msgspec.Struct, frozen=True):
    """A number about the model or the SoC, and its source."""

    name: str
    bytes: Count
    origin: Annotated[str, one_of("measured", "computed", "documented", "reported")]
    source: str


class ModelNumbers(msgspec.Struct, frozen=True):
    """The memory needs of the failing model itself, to compare with the numbers of the log."""

    parts: tuple[ModelPart, ...]
    sentences: tuple[str, ...]


class Conclusion(msgspec.Struct, frozen=True):
    """The conclusion from the lines of an incident; equal conclusions are one shared object."""

    stage: Stage
    cause: Annotated[str, describe("The cause, one of a closed set.")]
    cause_meaning: Annotated[str, describe("The cause in words.")]
    is_memory: Annotated[
        bool | Literal["unknown"],
        describe("Whether memory is short; only probable if the verdict is undecided."),
        one_of(True, False, "unknown"),
    ]
    confidence: Confidence
    verdict: Verdict
    entry: Annotated[str | None, describe("Entry of the knowledge base; null if none matches.")]
    title: Annotated[str, describe("The diagnosis in one line.")]
    remedies: Annotated[tuple[str, ...], describe("What to do, first step first.")]
    collect_next: Annotated[tuple[str, ...], describe("What to collect next for a diagnosis.")]
    candidates: Annotated[tuple[Candidate, ...], describe("Possible causes, likeliest first.")]

    @property
    def decided_memory(self) -> bool | None:
        """Whether memory is short; None if undecided, even if one answer is probable."""
        is_short = self.is_memory
        return is_short if isinstance(is_short, bool) and self.verdict != "undecided" else None


class Incident(Conclusion, frozen=True, omit_defaults=True, gc=False):
    """A failure in a log: conclusion, position, evidence."""

    file: str
    first_line: Count
    last_line: Count
    last_file: str
    process: Annotated[int | None, describe("Process id, if a line shows it.")]
    producer: Annotated[str | None, describe("Program or library that wrote the line.")]
    count: Annotated[Count, describe("Number of times that the failure occurred.")]
    evidence: tuple[Evidence, ...]
    quantities: Annotated[dict[str, int | str], describe("Numbers and names found in the lines.")]
    shortage_bytes: Annotated[int | None, describe("Missing bytes.")]
    similar: Annotated[
        tuple[Resemblance, ...] | None,
        describe("Similar entries, if no entry matches the decisive line.", is_omitted=True),
    ] = None
    origins: Annotated[
        dict[str, str],
        describe("Origins of those quantities that no line prints.", is_omitted=True),
    ] = {}
    model_numbers: Annotated[
        ModelNumbers | None,
        describe("What the failing model itself needs.", is_omitted=True),
    ] = msgspec.field(default=None, name="own_numbers")
    stage_told: Annotated[
        bool,
        describe(
            "Whether a line shows the stage; if not, `stage` is the usual stage of this failure.",
            is_omitted=True,
        ),
    ] = True
    unknown_error: Annotated[
        Evidence | None,
        describe(
            "Unknown error before the decisive line; it lowers the confidence.",
            is_omitted=True,
        ),
    ] = None

    words: Annotated[
        tuple[str, ...],
        describe(
            "Words of the log with the most weight for the cause, if a learned model chose it.",
            is_omitted=True,
        ),
    ] = ()

    def origin_of(self, quantity: str) -> str:
        """Return the origin of a quantity."""
        return self.origins.get(quantity, "reported: by the log")

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        from qnnmem.notebook import shown

        return shown(self)


class Harmless(msgspec.Struct, frozen=True):
    """An entry about harmless lines that look like failures, and its number of matches."""

    entry: str
    title: str
    count: int


class ReadingStats(msgspec.Struct, frozen=True):
    """The logs that were read, their size, and problems while reading."""

    files: tuple[str, ...]
    lines: int
    bytes: int
    seconds: float
    incidents: int
    noise: tuple[Harmless, ...] = ()
    notes: tuple[str, ...] = ()
    unread: int = 0  # files and folders that may hold a log but could not be read
    foreign: bool = False  # whether no line mentions QNN
    unclear: bool = False  # whether the lines are too few to show success or failure


def to_json(value: object) -> str:
    """Return a value as one line of JSON in ASCII, which every terminal and encoding accepts."""
    try:
        text = _ENCODER.encode(value).decode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        import json

        return json.dumps(msgspec.to_builtins(value))
    return text if text.isascii() and _DELETE not in text else _NOT_PLAIN.sub(_escaped, text)


def to_json_bytes(value: object) -> bytes:
    """Return a value as one line of JSON in ASCII bytes; faster than `to_json` for most values."""
    try:
        data = _ENCODER.encode(value)
    except UnicodeEncodeError:
        return to_json(value).encode("ascii")
    plain = data.isascii() and _DELETE_BYTE not in data
    return data if plain else to_json(value).encode("ascii")


def from_json(data: bytes) -> Incident:
    """Return the incident that `to_json` wrote."""
    try:
        return msgspec.json.decode(data, type=ready(Incident))
    except msgspec.DecodeError:  # half a surrogate pair, as in `to_json`
        import json

        return msgspec.convert(json.loads(data), ready(Incident))


def _escaped(match: re.Match[str]) -> str:
    import json

    return json.dumps(match[0])[1:-1]
