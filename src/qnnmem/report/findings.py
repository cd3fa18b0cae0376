"""Findings in a common form, and their rendering as SARIF 2.1.0, JUnit XML or GitHub commands.

found = [CiFinding("budget-broken", "error", "scratch needs 10 bytes", CiPlace("a.onnx"))]
sarif_log(rules, found, {"executionSuccessful": True})
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qnnmem.text import counted, lazy_pattern, printable, shorten
from qnnmem.version import __version__

Level = Literal["error", "warning"]
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SARIF_VERSION = "2.1.0"

# Also matches backslashes before a bracket: they would cancel the added backslash.
_BRACKET = lazy_pattern(r"(\\*)([\[\]])")
# Characters that XML 1.0 cannot represent, not even escaped.
_NO_XML = lazy_pattern("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST_COMMANDS = 50  # annotations; GitHub shows only ten of each kind per step
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class CiRule:
    """Rule whose violation a finding reports: title, severity level and help."""

    id: str
    title: str
    level: Level
    description: str = ""
    help: str = ""


@dataclass(frozen=True, slots=True)
class CiPlace:
    """File and line of a finding; line 1 for a binary file, because CI services require a line."""

    file: str
    line: int = 1
    message: str = ""
    snippet: str = ""


@dataclass(frozen=True, slots=True)
class CallStack:
    """The call stack of a finding, innermost call first, each call with its module."""

    message: str
    frames: tuple[tuple[CiPlace, str], ...]


@dataclass(frozen=True, slots=True)
class CiFinding:
    """Finding for a CI service: rule, severity, message and places."""

    rule: str
    level: Level
    message: str
    place: CiPlace | None = None
    related: tuple[CiPlace, ...] = ()
    subject: str = ""  # the affected model or program
    count: int | None = None
    stacks: tuple[CallStack, ...] = ()
    fingerprint: str = ""  # equal for the same finding in two runs
    properties: Any = None


def sarif_log(
    rules: Sequence[CiRule], findings: Iterable[CiFinding], invocation: Mapping[str, Any]
) -> str:
    """Return one SARIF log with one run."""
    indexes = {rule.id: number for number, rule in enumerate(rules)}
    run = {
        **sarif_run(rules, invocation),
        "results": [sarif_result(finding, indexes[finding.rule]) for finding in findings],
    }
    log = {"$schema": SARIF_SCHEMA, "version": SARIF_VERSION, "runs": [run]}
    return json.dumps(log, indent=1, ensure_ascii=True) + "\n"


def sarif_run(
    rules: Iterable[CiRule], invocation: Mapping[str, Any], version: str = __version__
) -> dict[str, Any]:
    """Return a SARIF run without results: the tool with its rules, and the invocation."""
    driver = {"name": "qnnmem", "version": version, "rules": [sarif_rule(rule) for rule in rules]}
    return {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
    }


def sarif_rule(rule: CiRule) -> dict[str, Any]:
    """Return a rule as a SARIF object."""
    texts = {"fullDescription": rule.description, "help": rule.help}
    return {
        "id": rule.id,
        "shortDescription": sarif_message(rule.title),
        **{key: sarif_message(text) for key, text in texts.items() if text},
        "defaultConfiguration": {"level": rule.level},
    }


def sarif_result(finding: CiFinding, rule_index: int) -> dict[str, Any]:
    """Return a finding as a SARIF object without empty fields."""
    text = f"{finding.subject}: {finding.message}" if finding.subject else finding.message
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": finding.level,
        "message": sarif_message(shorten(text, _LONGEST)),
    }
    if finding.count is not None:
        result["occurrenceCount"] = max(1, finding.count)
    if finding.place is not None:
        result["locations"] = [sarif_location(finding.place)]
    if finding.related:
        result["relatedLocations"] = [
            {"id": number, **sarif_location(place)}
            for number, place in enumerate(finding.related, 1)
        ]
    if finding.stacks:
        result["stacks"] = [_sarif_stack(stack) for stack in finding.stacks]
    if finding.fingerprint:
        result["partialFingerprints"] = {"qnnmem/v1": finding.fingerprint}
    if finding.properties is not None:
        result["properties"] = finding.properties
    return result


def sarif_location(place: CiPlace) -> dict[str, Any]:
    """Return a place in a file as a SARIF location."""
    region: dict[str, Any] = {"startLine": max(1, place.line)}
    if place.snippet:
        region["snippet"] = {"text": place.snippet}
    return {
        "physicalLocation": {"artifactLocation": {"uri": uri(place.file)}, "region": region},
        "message": sarif_message(place.message),
    }


def _sarif_stack(stack: CallStack) -> dict[str, Any]:
    frames = [
        {"location": sarif_location(place), "module": module} for place, module in stack.frames
    ]
    return {"message": sarif_message(stack.message), "frames": frames}


def sarif_message(text: str) -> dict[str, str]:
    """Return a SARIF message with braces and brackets escaped, so that it is shown literally."""
    doubled = text.replace("{", "{{").replace("}", "}}")
    return {"text": _BRACKET.sub(r"\1\1\\\2", doubled)}


def uri(name: str) -> str:
    """Return a file's name as a URI reference; `stdin` for standard input."""
    from urllib.parse import quote

    if name == "-":
        return "stdin"
    name = name.removeprefix("file://")
    if "://" in name:
        quoted = quote(os.fsencode(name), safe=":/?#@!$&'()*+,;=%~")
        return re.sub("%(?![0-9A-Fa-f]{2})", "%25", quoted)
    data = os.fsencode(name.replace("\\", "/") if os.name == "nt" else name)
    quoted = quote(data, safe="/~")
    if os.path.isabs(name):  # noqa: PTH117 - a name without a file system
        return f"file://{'' if quoted.startswith('/') else '/'}{quoted}"
    return quoted


@dataclass(frozen=True, slots=True)
class JunitCase:
    """A test case, and its failure or error if the case did not pass."""

    name: str
    fault: Literal["", "failure", "error"] = ""
    kind: str = ""
    message: str = ""
    body: tuple[str, ...] = field(default=())  # lines of text


@dataclass(frozen=True, slots=True)
class JunitSuite:
    """The test suite of one model or program."""

    name: str
    cases: tuple[JunitCase, ...]
    seconds: float | None = None


def junit_xml(suites: Sequence[JunitSuite], name: str = "") -> str:
    """Return JUnit XML: a single suite, or all suites under a name."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    if not name:
        lines += (line for suite in suites for line in _junit_suite(suite))
        return "\n".join(lines) + "\n"
    cases = [case for suite in suites for case in suite.cases]
    seconds = sum(suite.seconds or 0.0 for suite in suites)
    lines.append(f"<testsuites name={_quoted(name)} {_junit_counts(cases, seconds)}>")
    lines += (f" {line}" for suite in suites for line in _junit_suite(suite))
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def _junit_suite(suite: JunitSuite) -> Iterator[str]:
    from xml.sax.saxutils import escape  # importing this loads HTTP and TLS

    name = _quoted(suite.name)
    yield f'<testsuite name={name} {_junit_counts(suite.cases, suite.seconds)} skipped="0">'
    for case in suite.cases:
        head = f' <testcase classname={name} name={_quoted(case.name)} time="0"'
        if not case.fault:
            yield f"{head}/>"
            continue
        fault = f"{case.fault} type={_quoted(case.kind)} message={_quoted(case.message)}"
        body = "\n".join(escape(_xml(line)) for line in case.body)
        end = f">{body}</{case.fault}>" if body else "/>"
        yield f"{head}><{fault}{end}</testcase>"
    yield "</testsuite>"


def _junit_counts(cases: Sequence[JunitCase], seconds: float | None) -> str:
    faults = [case.fault for case in cases]
    failures, errors = faults.count("failure"), faults.count("error")
    numbers = f'tests="{len(cases)}" failures="{failures}" errors="{errors}"'
    return numbers if seconds is None else f'{numbers} time="{seconds:.3f}"'


def _quoted(text: str) -> str:
    from xml.sax.saxutils import quoteattr

    return quoteattr(_xml(text))


def _xml(text: str) -> str:
    """Return text without characters that XML cannot represent."""
    return _NO_XML.sub("?", printable(text))


def github_commands(findings: Iterable[CiFinding], verdict: str) -> str:
    """Return a GitHub workflow command for each finding up to a limit, then the verdict as text."""
    commands = [_github_command(finding) for finding in findings]
    left = len(commands) - _MOST_COMMANDS
    more = [f"{counted(left, 'more finding')} in the summary"] if left > 0 else []
    return "\n".join([*commands[:_MOST_COMMANDS], *more, printable(verdict)]) + "\n"


def _github_command(finding: CiFinding) -> str:
    title = _github_property(shorten(f"qnnmem: {finding.subject}", 200))
    place = finding.place
    where = "" if place is None else f"file={_github_property(place.file)},line={place.line},"
    text = _github_data(shorten(finding.message, _LONGEST))
    return f"::{finding.level} {where}title={title}::{text}"


def _github_data(text: str) -> str:
    """Escape the text after `::` so that it stays on one line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _github_property(text: str) -> str:
    """Escape the value of a property; unlike data, it also ends at a comma or colon."""
    return _github_data(printable(text)).replace(":", "%3A").replace(",", "%2C")
