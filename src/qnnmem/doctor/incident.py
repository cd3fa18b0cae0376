"""What the doctor hands out: incidents with their evidence, and how much was read for them.

Fields are in the order in which JSON shows them (schema `qnnmem.doctor/1`). `gc=False` is for
values of which a log may hold a hundred thousand: they cannot be part of a cycle.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from qnnmem.struct_types import ready

_ENCODER = msgspec.json.Encoder()
_NOT_PLAIN = re.compile(r"[^ -~]+")
_DELETE = "\x7f"  # the one control character that JSON does not escape
_DELETE_BYTE = b"\x7f"


class Candidate(msgspec.Struct, frozen=True):
    """A cause and how likely it is, from 0 to 1."""

    cause: str
    score: float


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """A line that matters, where it is first seen and how often."""

    file: str
    line: int
    text: str
    count: int
    decides: bool


class Resemblance(msgspec.Struct, frozen=True):
    """An entry whose lines have words in common with one that no entry knows."""

    entry: str
    title: str
    score: float
    shared: tuple[str, ...]


class ModelPart(msgspec.Struct, frozen=True):
    """One number of the model or the SoC, and where it comes from."""

    name: str
    bytes: int
    origin: str
    source: str


class ModelNumbers(msgspec.Struct, frozen=True):
    """What the failing model itself needs, beside what the log says."""

    parts: tuple[ModelPart, ...]
    sentences: tuple[str, ...]


class Conclusion(msgspec.Struct, frozen=True):
    """What the lines of an incident mean; the same for all incidents that are judged alike."""

    stage: str
    cause: str
    cause_meaning: str
    is_memory: bool | Literal["unknown"]
    confidence: str
    verdict: str
    entry: str | None
    title: str
    remedies: tuple[str, ...]
    collect_next: tuple[str, ...]
    candidates: tuple[Candidate, ...]


class Incident(Conclusion, frozen=True, omit_defaults=True, gc=False):
    """One failure in a log: what it means, where it stands, which lines say so."""

    file: str
    first_line: int
    last_line: int
    last_file: str
    process: int | None
    producer: str | None
    count: int
    evidence: tuple[Evidence, ...]
    quantities: dict[str, int | str]
    shortage_bytes: int | None
    similar: tuple[Resemblance, ...] | None = None  # where no entry knows the deciding line
    # Of quantities that no line prints: how they were come by.
    origins: dict[str, str] = {}
    model_numbers: ModelNumbers | None = msgspec.field(default=None, name="own_numbers")
    stage_told: bool = True  # whether a line tells the stage, or it is where this mostly happens
    unknown_error: Evidence | None = None  # before the deciding line: why confidence is lowered

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
    """The logs that were read, how much that was, and what was wrong with them."""

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
