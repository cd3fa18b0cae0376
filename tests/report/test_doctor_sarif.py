"""SARIF of hostile logs: literal messages, file names as URIs, and levels."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from qnnmem.report import doctor, doctor_formats
from qnnmem.results.incident import Incident, ReadingStats

LINK = "see [the fix](http://evil.example/x) {0} {1} \\[a](1)\x1b[31m\r\u202e\x9b"


def incident(verdict: str = "cause", text: str = LINK, file: str = "dev.log") -> Incident:
    """Return an incident whose every text is hostile."""
    line = {"file": file, "line": 1, "text": text, "count": 1, "decides": True}
    return msgspec.convert(
        {
            **{"stage": "graph", "cause": "unknown", "cause_meaning": text, "is_memory": False},
            **{"confidence": "low", "verdict": verdict, "entry": "x", "title": text},
            **{"remedies": [text], "collect_next": [text], "candidates": [], "file": file},
            **{"first_line": 1, "last_line": 1, "last_file": file, "process": None},
            **{"producer": text, "count": 1, "evidence": [line, line], "quantities": {"op": text}},
            "shortage_bytes": None,
        },
        Incident,
    )


def stats(*notes: str) -> ReadingStats:
    """Return statistics of reading."""
    return ReadingStats(("dev.log",), 1, 1, 0.1, 1, notes=notes)


def sarif(one: Incident, *notes: str) -> dict[str, Any]:
    """Return the only run of a SARIF log."""
    text = "".join(doctor_formats.render_sarif([one], stats(*notes), "1.0"))
    assert text.isascii()
    run: dict[str, Any] = json.loads(text)["runs"][0]
    return run


def messages(value: Any) -> list[str]:
    """Return every message string of a SARIF value."""
    if isinstance(value, list):
        return [text for one in value for text in messages(one)]
    if not isinstance(value, dict):
        return []
    found = [text for key, one in value.items() if key != "properties" for text in messages(one)]
    kinds = ("message", "shortDescription", "fullDescription", "help")
    return found + [value[kind]["text"] for kind in kinds if kind in value]


def shown(text: str) -> str:
    """Return the text as a viewer shows it; assert that it holds no link and no placeholder."""
    assert not re.search(r"(?<!\\)(?:\\\\)*[\[\]]", text), text
    assert "{" not in text.replace("{{", "")
    assert "}" not in text.replace("}}", "")
    plain = re.sub(r"(\\+)([\[\]])", lambda m: m[1][: len(m[1]) // 2] + m[2], text)
    return plain.replace("{{", "{").replace("}}", "}")


def test_no_message_holds_a_link_or_a_placeholder() -> None:
    """A viewer shows log text literally, without control characters, links or placeholders."""
    run = sarif(incident(), LINK)
    found = messages(run)
    assert len(found) == 7
    safe = "see [the fix](http://evil.example/x) {0} {1} \\[a](1)"
    assert sum(safe in shown(text) for text in found) == 7
    assert all(text.isprintable() for text in found)
    snippet = run["results"][0]["locations"][0]["physicalLocation"]["region"]["snippet"]["text"]
    assert snippet.startswith(safe)  # a snippet is not a message


@pytest.mark.parametrize(
    ("verdict", "level"), [("cause", "error"), ("memory", "error"), ("undecided", "warning")]
)
def test_a_verdict_has_its_level(verdict: str, level: str) -> None:
    """The level of a result is that of its verdict, in the result and in its rule."""
    run = sarif(incident(verdict), "a note")
    assert run["results"][0]["level"] == level
    assert run["tool"]["driver"]["rules"][0]["defaultConfiguration"]["level"] == level
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["level"] == "warning"


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("a[1]{0}.log", "a%5B1%5D%7B0%7D.log"),
        ("a#b?c%2f.log", "a%23b%3Fc%252f.log"),
        ("javascript:x", "javascript%3Ax"),
        ("/x/\udcff\x1b\u202e.log", "file:///x/%FF%1B%E2%80%AE.log"),
        ("file:///x/a#b.log", "file:///x/a%23b.log"),
        ("s3://b/\udcff[x].log", "s3://b/%FF%5Bx%5D.log"),
        ("s3://b/100%.log", "s3://b/100%25.log"),
    ],
)
def test_a_name_of_a_file_is_a_uri(name: str, uri: str) -> None:
    """A file name with any bytes becomes a valid URI."""
    place = sarif(incident(file=name))["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == uri


@pytest.mark.parametrize("render", [doctor.render_text, doctor_formats.render_markdown])
@pytest.mark.parametrize(
    "bad", ["\x1b]0;x\x07", "\r", "\x9b31m", "\u202e", "\u2066", "\udcff", "\0"]
)
def test_no_control_gets_through_anywhere(render: Any, bad: str) -> None:
    """Control characters in lines, names and notes do not reach the report."""
    text = "".join(render([incident(text=f"a{bad}b", file=f"f{bad}.log")], stats(f"n{bad}")))
    assert all(c.isprintable() or c == "\n" for c in text)
