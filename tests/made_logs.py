"""Made logs of good runs and of other programs, laid into the styles of loggers.

`doctor/made_logs.txt` holds one block for each log: `== program outcome style`, then its lines. A
line `E tag| text` has a level and the name of its author; other lines stay as they are. All logs of
a program share their wording, so they form one group.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parent / "doctor" / "made_logs.txt"
_WORDS = {"V": "VERBOSE", "D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}


class MadeLog(NamedTuple):
    """A log that somebody wrote in the manner of a program."""

    program: str
    outcome: str  # healthy or foreign
    text: str


class _Place(NamedTuple):
    """Where a line stands: what a logger writes before its message."""

    seconds: int  # of the day
    part: int  # microseconds
    pid: int
    level: str
    tag: str

    @property
    def clock(self) -> str:
        minutes, second = divmod(self.seconds, 60)
        return f"{minutes // 60 % 24:02}:{minutes % 60:02}:{second:02}"


def _logcat(at: _Place) -> str:
    tid = at.pid + at.part % 40
    return f"06-14 {at.clock}.{at.part // 1000:03} {at.pid:5} {tid:5} {at.level} {at.tag:8}: "


def _studio(at: _Place) -> str:
    head = f"2024-06-14 {at.clock}.{at.part // 1000:03} {at.pid}-{at.pid}"
    return f"{head} {at.tag:24} com.acme.app  {at.level}  "


def _ort(at: _Place) -> str:
    where = f"session.cc:{at.part % 900} Run"
    return f"2024-06-14 {at.clock}.{at.part:06}111 [{at.level}:onnxruntime:, {where}] "


def _journal(at: _Place) -> str:
    return f"Jun 14 {at.clock} host {at.tag}[{at.pid}]: "


def _python(at: _Place) -> str:
    return f"2024-06-14 {at.clock},{at.part // 1000:03} - {at.tag} - {_WORDS[at.level]} - "


def _k8s(at: _Place) -> str:
    return f"{at.level}0614 {at.clock}.{at.part:06} {at.pid:7} {at.tag}.go:{at.part % 900}] "


def _gst(at: _Place) -> str:
    word = {"W": "WARN"}.get(at.level, _WORDS[at.level])
    where = f"{at.tag}.c:{at.part % 900}:run:<{at.tag}0>"
    return f"0:00:{at.seconds % 60:02}.{at.part:06}111 {at.pid} 0xaaab10 {word} {at.tag} {where} "


_GO = {"V": "TRC", "D": "DBG", "I": "INF", "W": "WRN", "E": "ERR", "F": "FTL"}
_HEADS: dict[str, Callable[[_Place], str]] = {
    "logcat": _logcat,
    "studio": _studio,
    "brief": lambda at: f"{at.level}/{at.tag}({at.pid:5}): ",
    "kernel": lambda at: f"[{at.seconds % 9000:5}.{at.part:06}] {at.tag}: ",
    "journal": _journal,
    "python": _python,
    "ort": _ort,
    "k8s": _k8s,
    "go": lambda at: f"Jun 14 {at.clock}.{at.part // 1000:03} {_GO[at.level]} ",
    "tool": lambda at: f"{at.part / 1000:8.1f}ms [{_WORDS[at.level]:^7}] {at.tag} ",
    "gst": _gst,
    "docker": lambda at: f"{at.tag:12} | ",
    "ci": lambda at: f"2024-06-14T{at.clock}.{at.part:06}1Z ",
}


def made_logs() -> Iterator[MadeLog]:
    """Each made log, in the order of the file."""
    for block in f"\n{FILE.read_text('utf-8')}".split("\n== ")[1:]:
        head, *lines = block.rstrip("\n").split("\n")
        program, outcome, style = head.split()
        key = zlib.crc32(block.encode())
        text = "\n".join(_laid(line, style, key, at) for at, line in enumerate(lines))
        yield MadeLog(program, outcome, text)


def _laid(line: str, style: str, key: int, at: int) -> str:
    """A line as a logger of this style writes it."""
    head, told, text = line.partition("| ")
    level, _, tag = head.partition(" ")
    if not told or level not in _WORDS:
        level, tag, text = "I", "", line
        if style != "ci":
            return line
    place = _Place(key % 80_000 + at, (key * (at + 3)) % 1_000_000, key % 9000 + 900, level, tag)
    if style == "json":
        said = {"ts": f"2024-06-14T{place.clock}Z", "level": _WORDS[level].lower()}
        return json.dumps({**said, "logger": tag, "msg": text})
    return (_HEADS[style](place) if style in _HEADS else f"{tag}: ") + text
