"""Prefixes that other programs put before log lines: collectors, loggers, editors, people.

    > app-1  | 2025-01-02T03:04:05.123Z  01-02 03:04:05.678  123  456 E QnnDsp: text
    > 2025-01-02 03:04:05.678 | ERROR    | run:42 - text

`step` parses one prefix (mark, name, time or level) at an offset. `inner` finds a head with an
unmistakable form anywhere near the start. Patterns accept any number of digits, because lines are
also parsed with their digits replaced.
"""

from __future__ import annotations

import re
from functools import cache

import msgspec

from qnnmem.text import lazy_pattern


class OuterHead(msgspec.Struct, frozen=True):
    """Fields of a prefix that another program put before a log line."""

    start: int
    end: int
    level: str = ""
    tag: str = ""
    pid: int | None = None
    tid: int | None = None
    stamp: bytes = b""  # the time as written
    timed: bool = False


_REACH = 240  # bytes in which a head may begin after other text
_NUM = rb"[0-9]{1,12}"
_CLOCK = _NUM + rb":" + _NUM + rb":" + _NUM
_STAMP = rb"(?:" + _NUM + rb"-)?" + _NUM + rb"-" + _NUM + rb"[ T]" + _CLOCK + rb"[.,]" + _NUM
_LEVEL = rb"(?P<level>[VDIWEFA])"
_PIDS = rb"(?P<pid>" + _NUM + rb")[ \t]+(?P<tid>" + _NUM + rb")[ \t]+"
_TAG = rb"(?P<tag>[^:]{0,80}?)[ \t]*: ?"
_UPPER = (
    rb"VERBOSE|TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERR(?:OR)?|FATAL|CRITICAL|SEVERE|PANIC"
    rb"|TRC|DBG|INF|WRN|FTL"
)
_WORD = (
    rb"(?P<word>" + _UPPER + rb"|" + _UPPER.lower() + rb"|Verbose|Trace|Debug|Info(?:rmation)?"
    rb"|Notice|Warn(?:ing)?|Error|Fatal|Critical)"
)
_STUDIO = (
    rb"(?<![\w.:-])(?P<stamp>" + _STAMP + rb")[ \t]+(?P<pid>" + _NUM + rb")-(?P<tid>" + _NUM + rb")"
)
_INNER = (
    # logcat threadtime, after a date or after seconds, optionally with a zone and a user
    rb"(?<![\w.:-])(?:(?P<stamp>" + _STAMP + rb")Z?|" + _NUM + rb"\." + _NUM + rb")[ \t]+"
    rb"(?:[+-][0-9]{1,9}[ \t]+)?(?:[a-z0-9_]{1,20}[ \t]+)?" + _PIDS + _LEVEL + rb"[ \t]+" + _TAG,
    # Android Studio, new, old and without a process
    _STUDIO + rb"[ \t]+(?P<tag>\S.{0,60}?)[ \t]{2,}\S{1,120}[ \t]+" + _LEVEL + rb"[ \t]{1,2}",
    _STUDIO + rb"/\S{1,120}[ \t]+" + _LEVEL + rb"/(?P<tag>.{1,60}?): ?",
    rb"(?<![\w.:-])"
    + _CLOCK
    + rb"\."
    + _NUM
    + rb"[ \t]+(?P<tag>\S{1,60})[ \t]+"
    + _LEVEL
    + rb"[ \t]{1,2}",
    # ONNX Runtime
    rb"(?:(?P<stamp>"
    + _STAMP
    + rb")Z? )?\[(?P<level>[VIWEF]):(?P<tag>onnxruntime)[^\]]{0,200}\] ?",
    # logcat time and brief
    rb"(?:(?P<stamp>"
    + _STAMP
    + rb")[ \t]+)?(?<![\w/])"
    + _LEVEL
    + rb"/(?P<tag>[^(:]{1,60})\([ \t]*(?P<pid>"
    + _NUM
    + rb")\): ?",
    # tools of QNN
    rb"(?<![\w.])" + _NUM + rb"\." + _NUM + rb"ms[ \t]\[[ \t]*" + _WORD + rb"[ \t]*\] ?",
    # Go loggers
    rb"(?<!\w)[A-Z][a-z]{2}[ \t]+"
    + _NUM
    + rb"[ \t]"
    + _CLOCK
    + rb"\."
    + _NUM
    + rb"[ \t](?P<word>TRC|DBG|INF|WRN|ERR|FTL)[ \t]",
    # a Python logger
    rb"(?<!\w)" + _STAMP + rb" - [\w.]{1,60} - " + _WORD + rb" - ",
    # QNN itself
    rb"(?P<tag>QnnDsp)?[ \t]*<(?P<level>[VDIWE])>(?=[ \t]|$)",
    rb"\[[ \t]{0,3}(?P<word>VERBOSE|DEBUG|TRACE|INFO|WARN|WARNING|ERROR|FATAL)[ \t]{0,3}\][ \t]*",
)
# Every line with such a head contains one of these texts, with tabs replaced by blanks. Few lines
# do, and a regex search at every byte takes thirty times as long.
_ALONE = tuple(b" %c " % letter for letter in b"VDIWEFA")
_BEFORE_TAG = tuple(b"%c/" % letter for letter in b"VDIWEFA")
_INNER_TEXTS = (
    *(_ALONE, _ALONE, _BEFORE_TAG, _ALONE),
    (b":onnxruntime",),
    _BEFORE_TAG,
    (b"ms [",),
    (b" TRC ", b" DBG ", b" INF ", b" WRN ", b" ERR ", b" FTL "),
    (b" - ",),
    tuple(b"<%c>" % letter for letter in b"VDIWE"),
    (b"VERBOSE", b"DEBUG", b"TRACE", b"INFO", b"WARN", b"ERROR", b"FATAL"),
)
_DAYS = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTHS = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_TIME = (
    rb"[\[(]?(?:" + _DAYS + rb"[a-z]{0,6},?[ ]{1,2})?(?:"
    rb"(?P<stamp>" + _STAMP + rb")"
    rb"|(?:"
    + _NUM
    + rb"[-/.]"
    + _NUM
    + rb"(?:[-/.]"
    + _NUM
    + rb")?,?[ T])?"
    + _CLOCK
    + rb"(?:[.,]"
    + _NUM
    + rb")?"
    rb"|"
    + _MONTHS
    + rb"[ ]{1,2}"
    + _NUM
    + rb"(?:, "
    + _NUM
    + rb")?[ ]"
    + _CLOCK
    + rb"(?:[.,]"
    + _NUM
    + rb")?(?: "
    + _NUM
    + rb"(?=\]))?"
    rb"|[0-9]{9,12}\.[0-9]{3,9}(?=[\])\t ])"
    rb")(?:Z|[ ]?[+-][0-9]{1,4}(?::?[0-9]{1,4})?(?![0-9-])|[ ](?:UTC|GMT|[AP]M))?"
    rb"[\])]?(?=[\s|,;:-])"
    rb"[ \t|,;:-]{0,8}(?:(?P<level>[VDIWEFA])[ ]{2}(?=\S))?"  # Android Studio, compact view
)
_FILE = rb"[\w./\\-]{1,120}\.(?:log|txt|out|err)(?:\.[0-9]{1,9})?"
# Kind and pattern of each prefix, with its possible first bytes if these are few.
_STEPS = (
    ("blank", rb"[ \t\r\x00]+|\xef\xbb\xbf|\xc2\xa0", b" \t\r\0\xef\xc2"),
    (
        "blank",
        rb"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|[\]_P^][^\x07\x1b\n]{0,160}(?:\x07|\x1b\\))",
        b"\x1b",
    ),
    (
        "blank",
        rb"(?:>[> ]{0,8}|[-*+][ \t]+|\+(?=[\w\[ ])|[`|]{1,3}[ \t]?|b?[\"'](?=[\w\[ \t<]))",
        b">-*+`|b\"'",
    ),
    ("time", _TIME, b"[(0123456789MTWFSJAOND"),
    ("blank", rb"[\[(<](?P<pri>[0-9]{1,3})>(?:1[ ])?", b"[(<"),
    # Text overwritten by a progress bar.
    ("blank", rb"[^\r\n]{1,200}\r(?=[^\r\n])", b""),
    # Line numbers, alone or with the name of a file.
    ("blank", _FILE + rb":(?:[0-9]{1,9}:)?(?=[^\s/\\])", b""),
    (
        "blank",
        rb"[0-9]{1,9}(?:[\t|>]|:(?![0-9])|:(?=" + _NUM + rb"-" + _NUM + rb"))",
        b"0123456789",
    ),
    # Levels, and the texts before them in a logcat.
    ("threads", rb"(?:[a-z0-9_]{1,20}[ \t]+)?" + _PIDS + _LEVEL + rb"[ \t]+" + _TAG, b""),
    ("level", rb"[\[(|][ \t]{0,4}" + _WORD + rb"[ \t]{0,5}[\])|][ \t:|-]{0,4}", b"[(|"),
    ("word", _WORD + rb"(?:[ \t]{0,5}[|:\]][ \t]?|[ \t]{1,5}(?:-{1,2}[ \t])?)", b""),
    ("level", rb"(?P<word>" + _UPPER + rb"|CRITICAL):[\w.]{1,40}:", b""),
    # Containers and services.
    ("blank", rb"(?:[0-9]{1,9}\|)?[A-Za-z][\w.-]{0,40}[ \t]{0,24}\|[ \t]", b""),
    ("blank", rb"\[[\w.-]{1,60}(?:/[\w.-]{1,60}){1,3}\][ \t]", b"["),
    ("blank", rb"std(?:err|out)[ \t][FP][ \t]", b"s"),
    ("blank", rb"##\[(?:error|warning|section|debug|command)\]", b"#"),
    (
        "process",
        rb"(?:[\w.-]{1,64}[ ])?(?P<tag>[A-Za-z][\w./-]{0,40})\[(?P<pid>"
        + _NUM
        + rb")(?::(?P<tid>"
        + _NUM
        + rb"))?\]:?[ ]?",
        b"",
    ),
    # Facility and level, as dmesg decodes them.
    ("level", rb"[a-z]{3,8}[ ]{0,4}:" + _WORD + rb"[ ]{0,4}:[ ]", b""),
    # The name of a logger or a thread.
    ("name", rb"(?:- )?[\w.]{1,60} - (?=" + _UPPER + rb")", b""),
    ("name", rb"[\[(][\w .:#/-]{1,60}[\])][ \t:-]{0,4}", b"[("),
)
_TELLS = lazy_pattern(
    rb"fail|error|unable|cannot|could not|denied|abort|exception|invalid|not found|out of|memory",
    re.IGNORECASE,
)
_ONLY_BEHIND = ("word", "process", "name", "threads")
_LETTERS = {
    b"TRA": "V", b"TRC": "V", b"ERR": "E", b"SEV": "E", b"CRI": "F", b"PAN": "F", b"FTL": "F",
    b"NOT": "I",
}  # fmt: skip


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern)


def letter(word: bytes) -> str:
    """Return the letter for a level that is given as a word."""
    word = word.upper()
    return _LETTERS.get(word[:3]) or word[:1].decode("ascii")


def _made(match: re.Match[bytes]) -> OuterHead:
    found = match.groupdict()
    level = found.get("level") or b""
    word = found.get("word") or b""
    pid, tid = found.get("pid"), found.get("tid")
    return OuterHead(
        match.start(),
        match.end(),
        letter(word) if word else level.decode("ascii"),
        (found.get("tag") or b"").decode("utf-8", "replace"),
        None if pid is None else int(pid),
        None if tid is None else int(tid),
        found.get("stamp") or b"",
    )


def inner(line: bytes, at: int) -> OuterHead | None:
    """Return the first known head that begins at or shortly after an offset in a line."""
    first: re.Match[bytes] | None = None
    stop = at + _REACH
    piece = line[at : stop + 120].replace(b"\t", b" ")
    for pattern, texts in zip(_INNER, _INNER_TEXTS, strict=True):
        if not any(text in piece for text in texts):
            continue
        found = _compiled(pattern).search(line, at, stop + 120)
        if found and found.start() < stop and (first is None or found.start() < first.start()):
            first = found
    # A failure word before the head means a message that quotes another line, not a prefix.
    if first is None or _TELLS.search(line, at, first.start()):
        return None
    return _made(first)


def step(line: bytes, at: int, known: bool) -> OuterHead | None:
    """Return the prefix at an offset; some kinds count only if a time or level is `known`."""
    first = line[at : at + 1]
    for kind, pattern, starts in _STEPS:
        if (kind in _ONLY_BEHIND and not known) or (starts and first not in starts):
            continue
        if (found := _compiled(pattern).match(line, at)) and found.end() > at:
            made = _made(found)
            return msgspec.structs.replace(made, timed=True) if kind == "time" else made
    return None
