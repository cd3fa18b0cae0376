"""Lines of JSON as lines of a log: the message of each, with its time, level and process.

Every logger has names of its own for these. An object without a message is left as it is, and so is
what is no JSON; an object that holds others, as services export them, is looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from qnnmem.doctor.logs.outer import letter

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
_STAMP = re.compile(r"[0-9]{4}-([0-9]{2}-[0-9]{2})[ T]([0-9:]{8})(?:[.,]([0-9]{1,9}))?")
_NUMBERED = "FFFEWIID"  # levels of syslog
_DEPTH = 6


def lines_of_json(data: bytes) -> bytes:
    """The same lines with messages in place of objects; no end of a line is lost."""
    return b"\n".join(map(_line, data.split(b"\n")))


def _line(line: bytes) -> bytes:
    bare = line.strip().rstrip(b",")
    at = 0 if bare[:1] in (b"{", b"[") else bare.find(b'{"', 0, 160)
    if at < 0 or bare[-1:] not in (b"}", b"]"):
        return line
    try:
        value = msgspec.json.decode(bare[at:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line
    said = [text.rstrip("\r\n") for text in _records(value, 0)]
    if not said:
        return line
    return bare[:at] + "\n".join(said).encode("utf-8", "replace")


def _records(value: Any, depth: int) -> Iterator[str]:
    """The messages in a value, in its order."""
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
    """A message behind a head that tells what the object does; or what is in it, if it is JSON."""
    if text[:2] in ('{"', '["', "[{"):
        try:
            inside = list(_records(msgspec.json.decode(text.encode()), depth + 1))
        except (msgspec.DecodeError, RecursionError):
            inside = []
        if inside:
            yield from inside
            return
    yield _head(value) + text


def _head(value: dict[str, Any]) -> str:
    level = _level(next((value[name] for name in _LEVEL if name in value), None))
    pid = next((str(value[name]) for name in _PID if str(value.get(name)).isdecimal()), "")
    stamp = next((_STAMP.match(value[name]) for name in _TIME if _is_text(value.get(name))), None)
    if not level:
        return ""
    if pid:
        return f"{level}/json({pid}): "
    if stamp is None:
        return f"[{_WORDS[level]}] "
    return f"{stamp[1]} {stamp[2]}.{stamp[3] or '0'} [{_WORDS[level]}] "


_WORDS = {"V": "VERBOSE", "D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}


def _level(value: Any) -> str:
    if isinstance(value, str) and not value.isdecimal():
        found = letter(value.encode()) if value else ""
        return found if found in _WORDS else ""
    if isinstance(value, bool) or not str(value).isdecimal():
        return ""
    number = int(value)
    if number < len(_NUMBERED):
        return _NUMBERED[number]
    return "VDIWEF"[min(number // 10 - 1, 5)] if number >= 10 else ""  # as Node's loggers count


def _is_text(value: Any) -> bool:
    if isinstance(value, str):
        return True
    # A journal writes a message with other bytes than letters as a list of numbers.
    return isinstance(value, list) and bool(value) and all(_is_byte(one) for one in value[:64])


def _is_byte(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 256


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return bytes(one for one in value if _is_byte(one)).decode("utf-8", "replace")
