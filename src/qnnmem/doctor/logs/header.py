"""The head of a line before its message: process, time and level.

Every line is parsed separately, because a bug report mixes logcat, kernel and program output.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache, lru_cache

import msgspec

from qnnmem.doctor.logs import outer
from qnnmem.text import lazy_pattern


class Header(msgspec.Struct, frozen=True):
    """Fields in the head of a line; missing fields are None or empty."""

    style: str
    time: float | None = None  # seconds, valid only for differences
    pid: int | None = None
    tid: int | None = None
    level: str = ""  # V, D, I, W, E or F
    tag: str = ""
    body: int = 0  # offset of the message


_STAMP = (
    rb"(?:(?:20[0-9]{2})-)?([0-9]{2})-([0-9]{2})[ T]"
    rb"([0-9]{2}):([0-9]{2}):([0-9]{2})[.,]([0-9]{1,9})"
)
_THREADTIME = (
    _STAMP
    + rb"Z?[ \t]+(?:[a-z0-9_]{1,20}[ \t]+)?([0-9]{1,9})[ \t]+([0-9]{1,9})"
    + rb"[ \t]+([VDIWEFAvdiwefa])[ \t]+(.{0,80}?)[ \t]*: ?"
)
_STUDIO_REST = (
    rb"([0-9]{1,9})-([0-9]{1,9})[ \t]+(\S.{0,60}?)[ \t]{2,}\S{1,120}[ \t]+([VDIWEFA])[ \t]{1,2}"
)
_STUDIO = _STAMP + rb"[ \t]+" + _STUDIO_REST
_OLD_STUDIO = _STAMP + rb"[ \t]+([0-9]{1,9})-([0-9]{1,9})/\S{1,120}[ \t]+([VDIWEFA])/(.{1,60}?): ?"
_ORT = _STAMP + rb"Z? \[([VIWEF]):(onnxruntime)[^\]]{0,200}\] ?"
_DATED = (
    _STAMP
    + rb"Z?[ \t]*(?:\[?(VERBOSE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|ERR|[VDIWEF](?= [^:]{1,80}: ))"
    + rb"\]?[ \t:])?"
)
_BRIEF = rb"([VDIWEFA])/(.{1,60}?)\([ \t]*([0-9]{1,9})\): ?"
_TAG = rb"([VDIWEFA])[/ \t][ \t]{0,3}([^\s,][^,]{0,60}?)[ \t]*: ?"
_KERNEL = rb"(?:<[0-9]{1,3}>)?\[[ \t]*([0-9]{1,9})\.([0-9]{6})\](?:\[[^\]]{1,12}\])? ?"
_JOURNAL = (
    rb"(?:[A-Z][a-z]{2}[ \t]+([0-9]{1,2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,][0-9]+)? )?"
    rb"(?:\S{1,64} )?"
    rb"([A-Za-z][\w./-]{0,40})\[([0-9]{1,9})\]: ?"
)
# The format of Go loggers.
_GO = (
    rb"[A-Za-z]{3}[ \t]+([0-9]{1,2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{3}) "
    rb"(TRC|DBG|INF|WRN|ERR|FTL) "
)
_TOOL = (
    rb"[ \t]{0,12}[0-9]{1,12}\.[0-9]ms \[[ \t]*(VERBOSE|DEBUG|INFO|WARNING|ERROR|FATAL)[ \t]*\] ?"
)
_GLOG = rb"([VDIWEF]) ([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{1,6}) ([\w.]{1,40}):\S{1,80}\] ?"
_CLOCK = (
    rb"([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{3})[ \t]+(\S{1,120})[ \t]+([VDIWEFA])[ \t]{1,2}"
)
_SNPE = rb"([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{1,6}) \["
_BRACKET = rb"\[[ \t]{0,3}(VERBOSE|DEBUG|TRACE|INFO|WARN|WARNING|ERROR|FATAL)[ \t]{0,3}\][ \t]*"
_MARK = rb"[ \t]*(?:QnnDsp[ \t]+)?<([VDIWE])>[ \t]?"
# Formats of the FastRPC library without logcat, of GStreamer, and of programs with spdlog.
_FASTRPC = rb"ADSPRPC: ([0-9]{1,9}) ([0-9]{1,9}) ([VDIWEF]) ([\w./-]{1,64}): "
_GSTREAMER = (
    rb"([0-9]{1,3}):([0-9]{2}):([0-9]{2})\.([0-9]{9})[ \t]+([0-9]{1,9})[ \t]+0x[0-9a-f]+[ \t]+"
    rb"(ERROR|WARN|FIXME|INFO|DEBUG|LOG|TRACE)[ \t]+(\S{1,64})[ \t]+\S{1,120}:[0-9]{1,6}:\S{1,120}:"
    rb"(?:<[^>]{0,64}>)?[ \t]*"
)
_SPDLOG = (
    rb"\[" + _STAMP + rb"\] (?:\[[\w.-]{1,40}\] )?"
    rb"\[(trace|debug|info|warning|error|critical)\][ \t]*"
)

# The head of a logcat line, up to the level.
LOGCAT = lazy_pattern(
    rb"([0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})\.([0-9]{3})"
    rb"[ \t]+([0-9]{1,9})[ \t]+[0-9]{1,9}(?= [VDIWEFA] )"
)
_LEVELS = {b"LOG": "V", b"FIXME": "W"}  # only in GStreamer
_NONE = Header("plain")

_DAY = 86_400
_CHOSEN = 40  # lines
_HEAD = 512


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Return a compiled pattern; it is compiled on first use, because a log has few styles."""
    return re.compile(pattern)


def _match(pattern: bytes, line: bytes) -> re.Match[bytes] | None:
    return _compiled(pattern).match(line)


def process_of(line: bytes) -> tuple[int | None, float | None]:
    """Return the process and time that `parse` finds in a line, but faster for logcat lines."""
    if match := LOGCAT.match(line):
        return process_in(match)
    head = parse(line)
    return head.pid, head.time


def lines_of(log: bytes, process: int | None) -> bytes:
    """Return a log without the lines of other processes, or unchanged if `process` is None."""
    if process is None:
        return log
    lines = log.split(b"\n")
    return b"\n".join(line for line in lines if process_of(line)[0] in (process, None))


def is_chosen(log: bytes) -> bool:
    """Return True if a log is so short that a person probably selected its lines."""
    return sum(bool(line.strip()) for line in log.split(b"\n")) <= _CHOSEN


def process_in(match: re.Match[bytes]) -> tuple[int, float]:
    """Return the process and the time in a match of `LOGCAT`."""
    second, part, pid = match.groups()
    return int(pid), second_of(second) + int(part) / 1000


def parse(line: bytes) -> Header:
    """Parse the head of a line; missing fields stay None or empty.

    A check of the first bytes avoids compiling and trying patterns that cannot match. A head has at
    most a few hundred bytes, so the rest of the line costs nothing.
    """
    return _parsed(line[:_HEAD])


@lru_cache(maxsize=16)  # a failing line is parsed several times in a row
def _parsed(line: bytes) -> Header:
    if not line:
        return _NONE  # most logs end in an empty line; trying every prefix takes 5 ms
    head = _strict(line)
    return head if head.style != "plain" else _behind(line)


def _strict(line: bytes) -> Header:
    """Return the head at the start of a line; its style is "plain" if there is no head."""
    first, second = line[:1], line[1:2]
    if first.isdigit():
        return _dated(line)
    if first in (b"[", b"<"):
        if not second.isalpha() and (match := _match(_KERNEL, line)):
            seconds = int(match[1]) + int(match[2]) / 1e6
            kernel = Header("kernel", seconds, 0, 0, "", "kernel", match.end())
            return _relayed(kernel, line)
        if second.isdigit() and (match := _match(_SPDLOG, line)):
            level = _level(match[7].upper())
            return Header("dated", _when(match), None, None, level, "", match.end())
        if first == b"[" and (match := _match(_BRACKET, line)):
            return Header("level", None, None, None, _level(match[1]), "", match.end())
    elif first.isalpha() and (head := _lettered(line, second)):
        return head
    if b"ms [" in line[:40] and (match := _match(_TOOL, line)):
        return Header("tool", None, None, None, _level(match[1]), "", match.end())
    if b"<" in line[:24] and (match := _match(_MARK, line)):
        return Header("mark", None, None, None, match[1].decode(), "QnnDsp", match.end())
    return _NONE


def _relayed(head: Header, line: bytes) -> Header:
    """Return the inner head if the message is a relayed line of another program, else `head`."""
    said = _strict(line[head.body :])
    if head.style == "kernel" and said.style == "journal":
        # Programs also write to the kernel log in this style; only a journal puts the machine's
        # name before the program.
        machine = b" " in line[head.body : head.body + said.body].rstrip(b" ")
        if not machine:
            return head
        return msgspec.structs.replace(said, time=head.time, body=head.body + said.body)
    if said.style == "plain" or not (said.level or said.pid):
        found = outer.inner(line, head.body)
        if found is None:
            return head
        said = _found(found, found.end - head.body)
    pid = head.pid if said.pid is None else said.pid
    return msgspec.structs.replace(said, pid=pid, time=head.time, body=head.body + said.body)


_MARKS = 12  # prefixes before a message


def _behind(line: bytes, timed: bool = False) -> Header:
    """Return the head that follows other programs' prefixes, else a head made of the prefixes."""
    at, time, level, pid = 0, None, "", None
    for _ in range(_MARKS):
        found = outer.step(line, at, timed or bool(level))
        if found is None:
            break
        at, timed = found.end, timed or found.timed
        level, pid = found.level or level, pid if found.pid is None else found.pid
        time = _stamped(found.stamp) if found.stamp else time
        said = _strict(line[at:])
        # `in[0]: ` is a process only after a time.
        if said.style != "plain" and (timed or said.style != "journal" or said.time is not None):
            return _placed(said, at, time, pid, said.level or level)
    if further := outer.inner(line, at):
        return _placed(_found(further, further.end), 0, time, pid, further.level or level)
    style = "dated" if timed else "level" if level else "journal" if pid else "plain"
    return Header(style, time, pid, None, level, "", at)


def _placed(said: Header, at: int, time: float | None, pid: int | None, level: str) -> Header:
    """Return a head found after prefixes; a missing time or process is taken from the prefixes."""
    return msgspec.structs.replace(
        said,
        body=at + said.body,
        time=time if said.time is None else said.time,
        pid=pid if said.pid is None else said.pid,
        level=level,
    )


def _found(one: outer.OuterHead, body: int) -> Header:
    style = "level" if one.pid is None else "brief" if one.tid is None else "threadtime"
    time = _stamped(one.stamp) if one.stamp else None
    return Header(style, time, one.pid, one.tid, one.level, one.tag, body)


def _stamped(text: bytes) -> float | None:
    match = _match(_STAMP, text)
    return _when(match) if match else None


def _lettered(line: bytes, second: bytes) -> Header | None:
    if second in (b"/", b" ", b"\t"):
        if match := _match(_BRIEF, line):
            pid = int(match[3])
            return Header("brief", None, pid, None, *_words(match[1], match[2]), match.end())
        if match := _match(_GLOG, line):
            clock = _clock(match[2], match[3], match[4], match[5])
            return Header("glog", clock, None, None, *_words(match[1], match[6]), match.end())
    if line[:9] == b"ADSPRPC: " and (match := _match(_FASTRPC, line)):
        pid, tid = int(match[1]), int(match[2])
        return Header("fastrpc", None, pid, tid, *_words(match[3], match[4]), match.end())
    if line[3:4] == b" " and (match := _match(_GO, line)):
        time = int(match[1]) * _DAY + _clock(*match.group(2, 3, 4, 5))
        return Header("go", time, None, None, _level(match[6]), "", match.end())
    if b"]:" in line[:160] and (match := _match(_JOURNAL, line)):
        return _relayed(_journal(match), line)
    if second in (b"/", b" ", b"\t") and (match := _match(_TAG, line)):
        return Header("tag", None, None, None, *_words(match[1], match[2]), match.end())
    return None


def _dated(line: bytes) -> Header:
    if match := _match(_THREADTIME, line):
        pid, tid, level, tag = match.group(7, 8, 9, 10)
        return Header(
            "threadtime", _when(match), int(pid), int(tid), *_words(level, tag), match.end()
        )
    if match := _match(_STUDIO, line):
        pid, tid, tag, level = match.group(7, 8, 9, 10)
        return Header("studio", _when(match), int(pid), int(tid), *_words(level, tag), match.end())
    if match := _match(_ORT, line):
        return Header(
            "onnxruntime", _when(match), None, None, *_words(*match.group(7, 8)), match.end()
        )
    if match := _match(_OLD_STUDIO, line):
        pid, tid, level, tag = match.group(7, 8, 9, 10)
        return Header("studio", _when(match), int(pid), int(tid), *_words(level, tag), match.end())
    if match := _match(_DATED, line):
        rest = line[match.end() :]
        inner = _NONE if match[7] else _strict(rest)
        if not match[7] and inner.style == "plain":
            inner = _behind(rest, timed=True)
            inner = _NONE if inner.style == "dated" and not inner.level else inner
        if inner.style != "plain":  # another program put a time before a whole line
            body = match.end() + inner.body
            return msgspec.structs.replace(inner, time=_when(match), body=body)
        return Header("dated", _when(match), None, None, _level(match[7] or b""), "", match.end())
    if match := _match(_STUDIO_REST, line):  # copied without its time
        pid, tid, tag, level = match.groups()
        return Header("studio", None, int(pid), int(tid), *_words(level, tag), match.end())
    if match := _match(_TOOL, line):
        return Header("tool", None, None, None, _level(match[1]), "", match.end())
    if match := _match(_CLOCK, line):
        clock, words = _clock(*match.group(1, 2, 3, 4)), _words(match[6], match[5])
        return Header("studio", clock, None, None, *words, match.end())
    if match := _match(_GSTREAMER, line):
        clock, tag = _clock(*match.group(1, 2, 3, 4)), match[7].decode("utf-8", "replace")
        return Header("gstreamer", clock, int(match[5]), None, _level(match[6]), tag, match.end())
    if match := _match(_SNPE, line):
        clock, body = _clock(*match.group(1, 2, 3, 4)), match.end() - 1
        inner = _behind(line[body:], timed=True)
        if inner.level:
            return msgspec.structs.replace(inner, time=clock, body=body + inner.body)
        return Header("snpe", clock, body=body)
    return _NONE


def _journal(match: re.Match[bytes]) -> Header:
    day, hour, minute, second, program, pid = match.groups()
    time = None if day is None else int(day) * _DAY + _clock(hour, minute, second, b"0")
    return Header(
        "journal", time, int(pid), None, "", program.decode("ascii", "replace"), match.end()
    )


def _when(match: re.Match[bytes]) -> float:
    month, day, hour, minute, second, part = match.group(1, 2, 3, 4, 5, 6)
    days = int(month) * 31 + int(day)
    return days * _DAY + _clock(hour, minute, second, part)


@lru_cache(maxsize=64)
def second_of(text: bytes) -> int:
    """Convert `MM-DD HH:MM:SS` to seconds; cached, because many lines share a second."""
    month, day, hour, minute, second = map(
        int, (text[:2], text[3:5], text[6:8], text[9:11], text[12:])
    )
    return (month * 31 + day) * _DAY + hour * 3600 + minute * 60 + second


def _clock(hour: bytes, minute: bytes, second: bytes, part: bytes) -> float:
    return int(hour) * 3600 + int(minute) * 60 + int(second) + int(part) / float(10 ** len(part))


def _level(word: bytes) -> str:
    return _LEVELS.get(word) or outer.letter(word)


def _words(level: bytes, tag: bytes) -> tuple[str, str]:
    return level.decode("ascii").upper(), tag.decode("utf-8", "replace")


_LOOKS = {
    "threadtime": "a logcat",
    "studio": "a logcat",
    "brief": "a logcat",
    "kernel": "a kernel log",
    "journal": "a system journal",
    "onnxruntime": "an ONNX Runtime log",
    "dated": "a log with times",
}


def look(start: bytes) -> str:
    """Return a description of a log's apparent format, based on its first lines."""
    if b"Traceback (most recent call last)" in start:
        return "a Python traceback"
    styles = Counter(parse(line).style for line in start.splitlines() if line.strip())
    style, _ = max(styles.items(), key=lambda one: one[1], default=("plain", 0))
    return _LOOKS.get(style, "plain text")


_MARKED = 200  # bytes of a line that are examined
_ONES = bytes.maketrans(b"23456789", b"1" * 8)
# Words that identify the program that wrote a line, the most specific first. They contain no digit
# but 0, because all other digits of a line are replaced before the search.
_PRODUCERS = (
    ("kernel", (b"qcom,fastrpc", b"remoteproc", b"arm-smmu", b"kernel:", b"adsprpc: comm")),
    (
        "fastrpc",
        (b"adsprpc", b"fastrpc_", b"apps_std", b"dspqueue", b"rpcmem", b"listener_android"),
    ),
    ("executorch", (b"executorch",)),
    ("onnxruntime", (b"onnxruntime", b"ortexception", b"qnn ep", b"qnnexecutionprovider")),
    ("genie", (b"genie", b'[error] "', b'[info]  "')),
    ("ggml-hexagon", (b"ggml-hex", b"htp0")),
    ("ggml", (b"ggml", b"llama_", b"load_tensors")),
    ("mllm", (b"mllm", b"qnnbackend.cpp")),
    ("mnn", (b"mnn",)),
    ("litert", (b"litert", b"tflite", b"qnn_manager.cc")),
    ("snpe", (b"snpe", b"user_info:", b"pf_validator")),
    ("lpai", (b"lpai", b"tcm pool", b"enpu", b"eai_")),
    ("qnn", (b"qnndsp", b"qnn", b"<e>", b"graph_prepare.cc", b"ms [ ")),
)


def producer(line: bytes) -> str:
    """Return the program that wrote a line, recognised by its words; `other` if unknown."""
    line = line[:_MARKED]
    head = LOGCAT.match(line)  # the head contains no such words
    text = line[head.end() if head else 0 :].translate(_ONES).replace(b"10", b"1")
    return _producer(text.replace(b"11", b"1").replace(b"11", b"1").replace(b"11", b"1"))


@lru_cache(maxsize=1024)
def _producer(line: bytes) -> str:
    low = line.lower()
    for name, marks in _PRODUCERS:
        for mark in marks:
            if mark in low:
                return name
    return "other"
