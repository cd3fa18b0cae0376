"""Conversion of JSON lines to log lines: each message with its time, level and process.

Every logger has its own field names. Objects without a message and text that is not JSON are left
unchanged. Objects that contain other objects, as in service exports, are searched for messages.

Most objects in a log have the same fields, and few fields are relevant. Therefore the relevant
fields are looked up only once for all objects with the same fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from qnnmem.doctor.logs.outer import letter
from qnnmem.text import lazy_pattern

_MESSAGE = (
    *("message", "msg", "MESSAGE", "event", "log", "textPayload", "text", "@message", "_raw"),
    *(
        "short_message",
        "line",
        "body",
        "content",
        "data",
        "value",
        "Body",
        "Message",
        "RenderedMessage",
    ),
)
_MORE = ("stdout", "stderr", "output", "stack_trace", "stack", "exception", "exc_info", "err")
_LEVEL = ("level", "severity", "levelname", "lvl", "log.level", "priority", "PRIORITY", "Level")
_PID = ("pid", "_PID", "process.pid", "process_id", "process")
_TIME = ("time", "timestamp", "@timestamp", "ts", "asctime", "datetime", "Timestamp")
_STAMP = lazy_pattern(r"[0-9]{4}-([0-9]{2}-[0-9]{2})[ T]([0-9:]{8})(?:[.,]([0-9]{1,9}))?")
_NUMBERED = "FFFEWIID"  # levels of syslog
_DEPTH = 6
_INSIDE = ('{"', '["', "[{")  # start of a message that is itself JSON
_USUAL = 16 << 10  # bytes of an object whose shape is cached
_LONGEST = 32  # letters of a level
_decode = msgspec.json.Decoder().decode


def lines_of_json(data: bytes) -> bytes:
    """Replace the JSON objects in lines by their messages; keep the line ends."""
    return b"\n".join(map(_line, data.split(b"\n")))


def _line(line: bytes) -> bytes:
    bare = line.strip().rstrip(b",")
    at = 0 if bare[:1] in (b"{", b"[") else bare.find(b'{"', 0, 160)
    if at < 0 or bare[-1:] not in (b"}", b"]"):
        return line
    try:
        value = _decode(bare[at:] if at else bare)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line
    usual = _usual(value) if type(value) is dict and len(bare) <= _USUAL else None
    if usual is not None:
        return bare[:at] + usual.rstrip("\r\n").encode("utf-8", "replace")
    said = [text.rstrip("\r\n") for text in _records(value, 0)]
    if not said:
        return line
    return bare[:at] + "\n".join(said).encode("utf-8", "replace")


class _Shape(NamedTuple):
    """Names of the relevant fields in JSON objects that have the same fields, best name first."""

    messages: tuple[str, ...]
    more: tuple[str, ...]
    level: str | None
    pids: tuple[str, ...]
    times: tuple[str, ...]


def _shape(names: Any) -> _Shape:
    messages, more, levels, pids, times = (
        tuple(name for name in known if name in names)
        for known in (_MESSAGE, _MORE, _LEVEL, _PID, _TIME)
    )
    return _Shape(messages, more, levels[0] if levels else None, pids, times)


_kept_shape = lru_cache(maxsize=256)(_shape)


def _usual(value: dict[str, Any]) -> str | None:
    """Return the log line for an object with one plain text message; None for other objects."""
    shape = _kept_shape(tuple(value))
    if not shape.messages or type(text := value[shape.messages[0]]) is not str:
        return None
    if text[:2] in _INSIDE or (shape.more and any(type(value[one]) is str for one in shape.more)):
        return None
    return _head(value, shape) + text


def _records(value: Any, depth: int) -> Iterator[str]:
    """Yield the messages in a JSON value, in their order."""
    if depth > _DEPTH:
        return
    if isinstance(value, list):
        for one in value:
            if isinstance(one, str):
                yield one
            else:
                yield from _records(one, depth + 1)
    if not isinstance(value, dict):
        return
    main = next((name for name in _MESSAGE if _is_text(value.get(name))), None)
    if main is not None:
        yield from _said(value, _text(value[main]), depth)
    more = [value[name] for name in _MORE if isinstance(value.get(name), str)]
    yield from more
    if main is None and not more:
        for one in value.values():
            yield from _records(one, depth + 1)


def _said(value: dict[str, Any], text: str, depth: int) -> Iterator[str]:
    """Yield the messages in a JSON text; if it has none, the text with the object's head."""
    if text[:2] in _INSIDE:
        try:
            inside = list(_records(_decode(text), depth + 1))
        except (msgspec.DecodeError, RecursionError):
            inside = []
        if inside:
            yield from inside
            return
    yield _head(value, _shape(value)) + text


def _head(value: dict[str, Any], shape: _Shape) -> str:
    level = "" if shape.level is None else _level(value[shape.level])
    if not level:
        return ""
    for name in shape.pids:
        if (pid := str(value[name])).isdecimal():
            return f"{level}/json({pid}): "
    for name in shape.times:
        time = value[name]
        if isinstance(time, str) and (stamp := _STAMP.match(time)):
            return f"{stamp[1]} {stamp[2]}.{stamp[3] or '0'} [{_WORDS[level]}] "
        if _is_text(time):
            break
    return f"[{_WORDS[level]}] "


_WORDS = {"V": "VERBOSE", "D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}


def _level(value: Any) -> str:
    if type(value) is not str and type(value) is not int:
        return ""
    text = str(value)
    if len(text) > _LONGEST:  # the first letters count, and a number is not a level
        text = "" if text.isdecimal() else f"{text[:_LONGEST]}."
    return _kept_level(text)


@lru_cache(maxsize=256)
def _kept_level(text: str) -> str:
    if not text.isdecimal():
        found = letter(text.encode("utf-8", "replace")) if text[:1].isascii() and text else ""
        return found if found in _WORDS else ""
    number = int(text)
    if number < len(_NUMBERED):
        return _NUMBERED[number]
    return "VDIWEF"[min(number // 10 - 1, 5)] if number >= 10 else ""  # Node's numbers


def _is_text(value: Any) -> bool:
    if isinstance(value, str):
        return True
    # A journal writes a message with non-text bytes as a list of numbers.
    return isinstance(value, list) and bool(value) and all(_is_byte(one) for one in value[:64])


def _is_byte(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 256


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return bytes(one for one in value if _is_byte(one)).decode("utf-8", "replace")
