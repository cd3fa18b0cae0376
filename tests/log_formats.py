"""Renders logs as other programs pass them on: prefixed, in JSON, quoted, escaped, recoded.

A format is a template for each line, or a function of all lines. A template for the message drops
the device's own line prefix first; a template for the line keeps it, as log collectors do.
"""

from __future__ import annotations

import gzip
import html
import json
import lzma
import random
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from doctor_cases import incidents
from robust_logs import Lines, failing_logs, healthy_logs

from qnnmem.doctor.kb.knowledge import Knowledge
from qnnmem.doctor.logs import header

_WORDS = {
    "V": ("verbose", 10, 7),
    "D": ("debug", 20, 7),
    "I": ("info", 30, 6),
    "W": ("warn", 40, 4),
    "E": ("error", 50, 3),
    "F": ("fatal", 60, 2),
}
_OF_DEVICE = ("threadtime", "studio", "brief", "tag", "journal", "kernel")
_BAD = re.compile(r"fail|error|unable|cannot|could not|<E>|denied|abort|crash", re.IGNORECASE)

# Templates for the message, as loggers write it.
LOGGERS = {
    "logcat brief": "%(L)s/%(tag)-8s(%(pid)5d): %(msg)s",
    "logcat process": "%(L)s(%(pid)5d) %(msg)s  (%(tag)s)",
    "logcat tag": "%(L)s/%(tag)-8s: %(msg)s",
    "logcat raw": "%(msg)s",
    "logcat time": "%(md)s %(hms)s.%(ms)s %(L)s/%(tag)-8s(%(pid)5d): %(msg)s",
    "logcat threadtime": "%(md)s %(hms)s.%(ms)s %(pid)5d %(tid)5d %(L)s %(tag)-8s: %(msg)s",
    "logcat epoch": "%(epoch)19s.%(ms)s %(pid)5d %(tid)5d %(L)s %(tag)-8s: %(msg)s",
    "logcat monotonic": "%(mono)11s.%(ms)s %(pid)5d %(tid)5d %(L)s %(tag)-8s: %(msg)s",
    "logcat uid": "%(md)s %(hms)s.%(ms)s 10234 %(pid)5d %(tid)5d %(L)s %(tag)-8s: %(msg)s",
    "logcat year": "2025-%(md)s %(hms)s.%(ms)s %(pid)5d %(tid)5d %(L)s %(tag)-8s: %(msg)s",
    "logcat usec": "%(md)s %(hms)s.%(us)s %(pid)5d %(tid)5d %(L)s %(tag)-8s: %(msg)s",
    "logcat zone": "2025-%(md)s %(hms)s.%(ms)s +0100 %(pid)5d %(tid)5d %(L)s %(tag)-8s: %(msg)s",
    "logcat color": "\x1b[38;5;196m%(md)s %(hms)s.%(ms)s %(pid)5d %(tid)5d %(L)s "
    "%(tag)-8s: %(msg)s\x1b[0m",
    "logcat long": "[ %(md)s %(hms)s.%(ms)s %(pid)5d:%(tid)5d %(L)s/%(tag)-8s ]\n%(msg)s\n",
    "studio": "2025-%(md)s %(hms)s.%(ms)s  %(pid)d-%(tid)-5d %(tag)-23s com.example.app"
    "         %(L)s  %(msg)s",
    "studio, compact": "%(hms)s.%(ms)s  %(L)s  %(msg)s",
    "studio, old": "2025-%(md)s %(hms)s.%(ms)s %(pid)d-%(tid)d/com.example.app "
    "%(L)s/%(tag)s: %(msg)s",
    "dmesg -T": "[Thu Jan  2 %(hms)s 2025] %(msg)s",
    "dmesg iso": "2025-%(md)sT%(hms)s,%(us)s+00:00 %(msg)s",
    "dmesg -x": "kern  :%(level)-6s: [%(mono)5s.%(us)s] %(msg)s",
    "dmesg raw": "<%(syslog)d>[%(mono)5s.%(us)s] %(msg)s",
    "journal short": "Jan 02 %(hms)s board app[%(pid)d]: %(msg)s",
    "journal iso": "2025-%(md)sT%(hms)s+0000 board app[%(pid)d]: %(msg)s",
    "journal iso-precise": "2025-%(md)sT%(hms)s.%(us)s+00:00 board app[%(pid)d]: %(msg)s",
    "journal full": "Thu 2025-%(md)s %(hms)s UTC board app[%(pid)d]: %(msg)s",
    "journal monotonic": "[%(mono)5s.%(us)s] board app[%(pid)d]: %(msg)s",
    "journal unix": "%(epoch)s.%(us)s board app[%(pid)d]: %(msg)s",
    "journal verbose": "Thu 2025-%(md)s %(hms)s.%(us)s UTC [s=5e1b;i=%(n)x;b=77a0]\n"
    "    PRIORITY=%(syslog)d\n    _UID=0\n    _HOSTNAME=board\n    SYSLOG_IDENTIFIER=app\n"
    "    _PID=%(pid)d\n    MESSAGE=%(msg)s",
    "journal json": '{"__REALTIME_TIMESTAMP":"%(epoch)s%(us)s","PRIORITY":"%(syslog)d","_PID":'
    '"%(pid)d","SYSLOG_IDENTIFIER":"app","_HOSTNAME":"board","MESSAGE":%(jm)s}',
    "syslog 3164": "<%(pri)d>Jan  2 %(hms)s board app[%(pid)d]: %(msg)s",
    "syslog 5424": "<%(pri)d>1 2025-%(md)sT%(hms)s.%(ms)sZ board app %(pid)d ID47 - %(msg)s",
    "rsyslog iso": "2025-%(md)sT%(hms)s.%(us)s+00:00 board app[%(pid)d]: %(msg)s",
    "zap": '{"level":"%(level)s","ts":%(epoch)s.%(ms)s,"caller":"run/engine.go:88","msg":%(jm)s}',
    "structlog": '{"event": %(jm)s, "level": "%(level)s", "timestamp": '
    '"2025-%(md)sT%(hms)s.%(us)sZ"}',
    "bunyan": '{"name":"app","hostname":"board","pid":%(pid)d,"level":%(bunyan)d,"msg":%(jm)s,'
    '"time":"2025-%(md)sT%(hms)s.%(ms)sZ","v":0}',
    "logstash": '{"@timestamp":"2025-%(md)sT%(hms)s.%(ms)sZ","@version":"1","message":%(jm)s,'
    '"logger_name":"com.example.Run","thread_name":"main","level":"%(LEVEL)s","level_value":40000}',
    "gson": '{"time":"2025-%(md)s %(hms)s","priority":"%(LEVEL)s","text":%(jg)s}',
    "cloud logging": '{"insertId":"a%(n)d","severity":"%(LEVEL)s","textPayload":%(jm)s,"timestamp":'
    '"2025-%(md)sT%(hms)s.%(us)sZ","logName":"projects/p/logs/stderr"}',
    "logfmt": "time=2025-%(md)sT%(hms)s.%(ms)sZ level=%(level)s msg=%(jm)s pid=%(pid)d",
    "python": "%(LEVEL)s:app:%(msg)s",
    "python, dashes": "2025-%(md)s %(hms)s,%(ms)s - app.run - %(LEVEL)s - %(msg)s",
    "python, brackets": "[2025-%(md)s %(hms)s,%(ms)s][app.run][%(LEVEL)s] - %(msg)s",
    "loguru": "2025-%(md)s %(hms)s.%(ms)s | %(LEVEL)-8s | app.run:infer:42 - %(msg)s",
    "glog": "%(L)s0102 %(hms)s.%(us)s %(tid)5d engine.cc:42] %(msg)s",
    "spdlog": "[2025-%(md)s %(hms)s.%(ms)s] [engine] [%(level)s] %(msg)s",
    "env_logger": "[2025-%(md)sT%(hms)sZ %(LEVEL)-5s app::run] %(msg)s",
    "tracing": "2025-%(md)sT%(hms)s.%(us)sZ %(LEVEL)5s app::run: %(msg)s",
    "log4j": "2025-%(md)s %(hms)s,%(ms)s %(LEVEL)-5s [main] com.example.Run - %(msg)s",
    "logback": "%(hms)s.%(ms)s [main] %(LEVEL)-5s com.example.Run -- %(msg)s",
    "julog": "Jan 02, 2025 3:04:05 AM com.example.Run infer\n%(LEVEL)s: %(msg)s",
    "dotnet": "%(level)4.4s: Example.Run[0]\n      %(msg)s",
    "serilog": "[%(hms)s %(LEVEL)3.3s] %(msg)s",
    "nlog": "2025-%(md)s %(hms)s.%(ms)s0|%(LEVEL)s|Example.Run|%(msg)s",
    "go log": "2025/01/02 %(hms)s run.go:88: %(msg)s",
    "ros": "[%(LEVEL)s] [%(epoch)s.%(us)s] [infer_node]: %(msg)s",
    "ros launch": "[infer-1] [%(LEVEL)s] [%(epoch)s.%(us)s] [infer_node]: %(msg)s",
    "gstreamer": "0:00:%(sec)s.%(us)s000 %(pid)5d 0x55d0c8 %(LEVEL)-7s qnn "
    "gstqnn.c:420:gst_qnn_run:<qnn0> %(msg)s",
    "qt": "[%(hms)s.%(ms)s] %(LEVEL)s app.engine: %(msg)s (engine.cpp:42)",
    "unity": "[%(LEVEL)s] %(msg)s\nUnityEngine.Debug:Log (object)\n",
    "debugview": "%(n)08d\t%(mono)s.%(us)s00\t[%(pid)d] %(msg)s",
    "debugview, clock": "%(n)d\t3:04:05 AM\t[%(pid)d] %(msg)s",
}

# Templates for the whole line, as log collectors write it.
COLLECTORS = {
    "compose": "app-1  | %(line)s",
    "compose, times": "app-1  | 2025-%(md)sT%(hms)s.%(ns)sZ %(line)s",
    "kubectl prefix": "[pod/app-6d5f7/main] %(line)s",
    "kubectl times": "2025-%(md)sT%(hms)s.%(ns)sZ %(line)s",
    "cri": "2025-%(md)sT%(hms)s.%(ns)sZ stderr F %(line)s",
    "docker json": '{"log":%(jl)s,"stream":"stderr","time":"2025-%(md)sT%(hms)s.%(ns)sZ"}',
    "stern": "app-6d5f7-x2v main %(line)s",
    "github": "2025-%(md)sT%(hms)s.%(us)s7Z %(line)s",
    "gh run view": "build\tRun tests\t2025-%(md)sT%(hms)s.%(us)s7Z %(line)s",
    "gitlab": "2025-%(md)sT%(hms)s.%(us)sZ 01O %(line)s",
    "jenkins": "[2025-%(md)sT%(hms)s.%(ms)sZ] %(line)s",
    "jenkins, clock": "%(hms)s  %(line)s",
    "azure": "2025-%(md)sT%(hms)s.%(us)s7Z %(azure)s%(line)s",
    "buildkite": "\x1b_bk;t=%(epoch)s%(ms)s\x07%(line)s",
    "pm2": "0|app      | %(line)s",
    "foreman": "%(hms)s web.1  | %(line)s",
    "ts": "Jan 02 %(hms)s %(line)s",
    "fluentd": '2025-%(md)sT%(hms)s+00:00\tapp.run\t{"log":%(jm)s,"source":"stderr"}',
    "cloudwatch tail": "2025-%(md)sT%(hms)s.%(ms)s000+00:00 app/main/0a1b2c %(line)s",
    "tqdm": "\r 42%%|####      | %(n)d/100 [00:03<00:04, 12.1it/s]\r%(line)s",
    "cursor codes": "\x1b[2K\x1b[1G\x1b[?25l%(line)s\x1b[K",
    "grep -n": "%(n)d:%(line)s",
    "grep -Hn": "logs/device.log:%(n)d:%(line)s",
    "grep -H": "device.log:%(line)s",
    "line numbers": "%(n)6d\t%(line)s",
    "line numbers, colon": "%(n)4d: %(line)s",
    "line numbers, bar": "%(n)4d | %(line)s",
    "quoted": "> %(line)s",
    "quoted twice": "> > %(line)s",
    "four blanks": "    %(line)s",
    "list": "- %(line)s",
    "starred": "* `%(line)s`",
    "diff": "+%(line)s",
    "diff, blank": "+ %(line)s",
    "gdb": "(gdb) %(line)s",
    "adb shell": "OnePlus:/data/local/tmp # %(line)s",
    "string literals": '    "%(line)s\\n"',
    "crlf": "%(line)s\r",
    "trailing blanks": "%(line)s      ",
    "visual studio": "1>%(line)s",
    "csv": '"2025-%(md)s %(hms)s","%(level)s","app",%(csv)s',
    "xcode": "2025-%(md)s %(hms)s.%(us)s+0100 app[%(pid)d:%(tid)d] %(line)s",
    "ansible": "ok: [board] => %(line)s",
    "pytest": "E       %(line)s",
}


class _Spoken(NamedTuple):
    """A log line in parts."""

    line: str
    message: str
    level: str
    tag: str
    pid: int
    tid: int


def _spoken(lines: Lines, usual: str) -> Iterator[_Spoken]:
    pid = tid = 4242
    for line in lines:
        head = header.parse(line.encode("utf-8", "replace"))
        body = line.encode("utf-8", "replace")[head.body :].decode("utf-8", "replace")
        device = head.style in _OF_DEVICE
        pid, tid = (head.pid, head.tid or head.pid) if head.pid else (pid, tid)
        level = head.level or ("E" if usual == "E" and _BAD.search(line) else "I")
        tag = head.tag if device and head.tag else "app"
        yield _Spoken(line, body if device else line, "F" if level == "A" else level, tag, pid, tid)


def _places(one: _Spoken, number: int) -> dict[str, object]:
    """Return the fields of a template."""
    word, bunyan, syslog = _WORDS[one.level]
    part = number * 7
    second, ms = 5 + part // 1000, part % 1000
    gson = "".join(f"\\u{ord(c):04x}" if c in "<>&='" else c for c in json.dumps(one.message))
    return {
        **{"line": one.line, "msg": one.message, "L": one.level, "tag": one.tag, "n": number},
        **{"pid": one.pid, "tid": one.tid, "md": "01-02", "hms": f"03:04:{second % 60:02}"},
        **{"ms": f"{ms:03}", "us": f"{ms:03}123", "ns": f"{ms:03}123456", "mono": 73 + second},
        **{"sec": f"{second % 60:02}", "epoch": 1735786000 + second, "level": word},
        **{"LEVEL": word.upper(), "bunyan": bunyan, "syslog": syslog, "pri": 24 + syslog},
        **{"jm": json.dumps(one.message), "jl": json.dumps(one.line + "\n"), "jg": gson},
        "azure": "##[error]" if one.level in "EF" else "",
        "csv": '"' + one.line.replace('"', '""') + '"',
    }


def _each(form: str) -> Callable[[Lines, str], bytes]:
    def render(lines: Lines, usual: str) -> bytes:
        rows = (form % _places(one, n) for n, one in enumerate(_spoken(lines, usual), 1))
        return "".join(f"{row}\n" for row in rows).encode("utf-8", "replace")

    return render


def _text(change: Callable[[str], str]) -> Callable[[Lines, str], bytes]:
    """Return a format that changes the whole text."""
    return lambda lines, usual: change("\n".join(lines) + "\n").encode("utf-8", "replace")


def _mailed(width: int, mark: str) -> Callable[[str], str]:
    def render(text: str) -> str:
        rows = []
        for line in text.splitlines():
            rows += textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [
                ""
            ]
        return "".join(f"{mark}{row}\n" for row in rows)

    return render


def _page(text: str) -> str:
    return f"<html><body><pre>\n{html.escape(text)}</pre></body></html>\n"


def _breaks(text: str) -> str:
    rows = "<br>\n".join(html.escape(line).replace("  ", "&nbsp; ") for line in text.splitlines())
    return f"<p>{rows}</p>\n"


def _smart(text: str) -> str:
    text = re.sub(r'"([^"\n]*)"', "\u201c\\1\u201d", text)
    text = re.sub(r"'([^'\n]*)'", "\u2018\\1\u2019", text).replace("'", "\u2019")
    return text.replace(" - ", " \u2013 ").replace("...", "\u2026").replace("--", "\u2014")


def _coloured(text: str) -> str:
    paint = r"\b(error|failed|fail|warning|qnn\w*)\b"
    return re.sub(paint, "\x1b[1;31m\\1\x1b[0m", text, flags=re.IGNORECASE)


def _interleaved(text: str) -> str:
    """Return the text with progress lines between its lines, as buffered stdout gives."""
    rows = text.splitlines()
    out = [f"{row}\nstep {n} of {len(rows)} done" for n, row in enumerate(rows, 1)]
    return "\n".join(out) + "\n"


def _transcript(text: str) -> str:
    stars = "*" * 22
    head = f"{stars}\nWindows PowerShell transcript start\nStart time: 20250102030405\n{stars}\n"
    return (head + "PS C:\\qnn> .\\run.exe\n" + text + f"{stars}\n").replace("\n", "\r\n")


def _powershell(text: str) -> str:
    """Return a program's stderr as the older PowerShell shows it."""
    first, *rest = text.splitlines()
    more = textwrap.fill(
        f"    + CategoryInfo          : NotSpecified: ({first[:40]}:String) [], RemoteException"
    )
    head = f"run.exe : {first}\nAt line:1 char:1\n+ .\\run.exe 2> log.txt\n+ ~~~~~~~~~\n{more}\n"
    return (head + "\n".join(rest) + "\n").replace("\n", "\r\n")


def _raised(text: str) -> str:
    head = "Traceback (most recent call last):\n"
    return f'{head}  File "run.py", line 12, in <module>\n    main()\nRuntimeError: {text}'


def _chat(text: str) -> str:
    return "Ann Example  9:41 AM\n" + text.replace("\n", "\n\n") + "Ann Example  9:43 AM\n"


def _json(value: object) -> str:
    return json.dumps(value) + "\n"


def _cast(text: str) -> str:
    rows = [_json({"version": 2, "width": 120, "height": 40})]
    rows += [_json([n / 10, "o", f"{line}\r\n"]) for n, line in enumerate(text.splitlines())]
    return "".join(rows)


def _junit(text: str) -> str:
    head = '<?xml version="1.0"?>\n<testsuite name="run"><testcase name="infer">'
    return f"{head}<system-err><![CDATA[{text}]]></system-err></testcase></testsuite>\n"


def _xml(text: str) -> str:
    return f"<log><message>{html.escape(text, quote=False)}</message></log>\n"


def _bugreport(lines: Lines, usual: str) -> bytes:
    head = b"== dumpstate: 2025-01-02 03:04:05\n\nBuild: AP2A.240905.003\nUptime: up 0 weeks\n\n"
    section = b"------ SYSTEM LOG (logcat -v threadtime -v printable -v uid -d *:v) ------\n"
    begin = b"--------- beginning of main\n"
    rows = _each(LOGGERS["logcat uid"])(lines, usual)
    return head + section + begin + rows + b"------ 0.3s was the duration of 'SYSTEM LOG' ------\n"


_EVENTS = "2025-01-02T03:04:05.123Z"
WHOLE: dict[str, Callable[[Lines, str], bytes]] = {
    "bugreport": _bugreport,
    "fenced": _text(lambda text: f"This is what I get:\n\n```shell\n{text}```\n"),
    "mail, 72": _text(_mailed(72, "> ")),
    "mail, 78": _text(_mailed(78, "")),
    "mail, 72, twice": _text(_mailed(72, ">> ")),
    "html": _text(_page),
    "html, breaks": _text(_breaks),
    "nbsp": _text(lambda text: text.replace(" ", "\u00a0")),
    "smart quotes": _text(_smart),
    "full-width": _text(lambda text: text.replace(": ", "\uff1a").replace(", ", "\uff0c")),
    "jira": _text(lambda text: "{noformat:title=device}\n" + text + "{noformat}\n"),
    "rst": _text(lambda text: "::\n\n" + textwrap.indent(text, "   ")),
    "tabs": _text(lambda text: text.replace("  ", "\t").replace(": ", ":\t")),
    "one line, bars": _text(lambda text: " | ".join(text.splitlines()) + "\n"),
    "one line, \\n": _text(lambda text: "\\n".join(text.splitlines()) + "\n"),
    "bytes repr": _text(lambda text: f"{text.encode()!r}\n"),
    "str repr": _text(lambda text: f"stderr={text!r}\n"),
    "list repr": _text(lambda text: f"{text.splitlines()!r}\n"),
    "raised": _text(_raised),
    "cut starts": _text(lambda text: "".join(f"{row[10:]}\n" for row in text.splitlines())),
    "cut ends": _text(lambda text: "".join(f"{row[:-10]}\n" for row in text.splitlines())),
    "cut at 120": _text(lambda text: "".join(f"{row[:119]}>\n" for row in text.splitlines())),
    "folded at 80": _text(lambda text: re.sub(r"([^\n]{80})(?=[^\n])", "\\1\n", text)),
    "gz": lambda lines, usual: gzip.compress(_PLAIN(lines, usual)),
    "xz": lambda lines, usual: lzma.compress(_PLAIN(lines, usual)),
    "utf-16": lambda lines, usual: _PLAIN(lines, usual).decode().encode("utf-16"),
    "utf-16, big": lambda lines, usual: (
        b"\xfe\xff" + _PLAIN(lines, usual).decode().encode("utf-16-be")
    ),
    "utf-16, no mark": lambda lines, usual: _PLAIN(lines, usual).decode().encode("utf-16-le"),
    "utf-8 with mark": _text(lambda text: "\ufeff" + text),
    "transcript": _text(_transcript),
    "transcript, utf-16": lambda lines, usual: _transcript(_PLAIN(lines, usual).decode()).encode(
        "utf-16"
    ),
    "powershell error": _text(_powershell),
    "cr only": _text(lambda text: text.replace("\n", "\r")),
    "coloured": _text(_coloured),
    "interleaved": _text(_interleaved),
    "said twice": _text(lambda text: "".join(f"{row}\n{row}\n" for row in text.splitlines())),
    "empty lines": _text(lambda text: text.replace("\n", "\n\n")),
    "chat": _text(_chat),
    "json, one field": _text(lambda text: _json({"id": 7, "status": "done", "log": text})),
    "json, slashes": _text(lambda text: _json({"run": 7, "log": text}).replace("/", "\\/")),
    "json, pretty": _text(lambda text: json.dumps({"log": text.splitlines()}, indent=2) + "\n"),
    "json in json": _text(lambda text: _json({"body": json.dumps({"stderr": text})})),
    "json, long": _text(
        lambda text: _json({"env": {f"KEY_{n}": "value" * 9 for n in range(120)}, "log": text})
    ),
    "cloudwatch": _text(
        lambda text: _json(
            {"events": [{"timestamp": _EVENTS, "message": row} for row in text.splitlines()]}
        )
    ),
    "asciinema": _text(_cast),
    "typescript": _text(lambda text: "Script started on 2025-01-02\n" + text.replace("\n", "\r\n")),
    "junit": _text(_junit),
    "xml": _text(_xml),
    "yaml block": _text(lambda text: "run: 7\nlog: |\n" + textwrap.indent(text, "  ")),
    "yaml quoted": _text(lambda text: f"run: 7\nlog: {json.dumps(text)}\n"),
    "zero width": _text(lambda text: text.replace("_", "_\u200b")),
    "links": _text(lambda text: f"\x1b]0;run\x07{text}\x1b]8;;file:///a\x1b\\a\x1b]8;;\x1b\\\n"),
}
_PLAIN: Callable[[Lines, str], bytes] = _text(str)

FORMATS: dict[str, Callable[[Lines, str], bytes]] = {
    **{name: _each(form) for name, form in (LOGGERS | COLLECTORS).items()},
    **WHOLE,
}
# Formats that themselves report a failure, whatever the log inside.
FAILING_ONLY = frozenset({"raised"})


class Rendered(NamedTuple):
    """A log in a format, its verdicts, and the verdicts on the plain log."""

    format: str
    log: str
    said: object
    expected: object


def verdicts(log: bytes, knowledge: Knowledge) -> object:
    """Return the doctor's verdicts on a log: causes, sides and missing bytes."""
    return frozenset(
        (one.verdict, one.cause, one.is_memory, one.shortage_bytes)
        for one in incidents(log, knowledge)
    )


def tried(knowledge: Knowledge, names: Sequence[str], count: int, seed: int) -> Iterator[Rendered]:
    """Yield failure logs in each format; the verdicts must equal those on the plain log."""
    logs = failing_logs()
    for name in names:
        draw = random.Random(f"{name} {seed}")  # noqa: S311 - reproducible, not secret
        for log in draw.sample(logs, count):
            expected = verdicts(_PLAIN(log.lines, "E"), knowledge)
            said = verdicts(FORMATS[name](log.lines, "E"), knowledge)
            yield Rendered(name, log.id, said, expected)


def healthy(
    knowledge: Knowledge, names: Sequence[str], count: int, seed: int
) -> Iterator[Rendered]:
    """Yield healthy logs in each format; no verdict is expected."""
    logs = healthy_logs()
    for name in names:
        if name in FAILING_ONLY:
            continue
        draw = random.Random(f"{name} {seed}")  # noqa: S311 - reproducible, not secret
        for log in draw.sample(logs, count):
            said = verdicts(FORMATS[name](log.lines, "I"), knowledge)
            yield Rendered(name, log.id, said, frozenset())
