"""A checked program for build servers: SARIF 2.1.0 and JUnit's XML."""

from __future__ import annotations

import json
from typing import Any

from qnnmem.programs.check.client_run import ClientReport
from qnnmem.programs.check.findings import CALLED, ClientFinding
from qnnmem.programs.check.rules import title_of
from qnnmem.programs.stacks import Frame, Stack, of_program
from qnnmem.report.check_client import headline, verdict
from qnnmem.report.sarif import SCHEMA, VERSION, message, uri
from qnnmem.text import printable, shorten

_WIDE = 600


def render_sarif(report: ClientReport, version: str) -> str:
    """One SARIF log: a rule for each that was broken, a result for each finding."""
    names = list(dict.fromkeys(one.finding.rule for one in report.findings))
    rules = [
        {
            "id": name,
            "shortDescription": message(title_of(name)),
            "help": message(
                next(f.finding.cure for f in report.findings if f.finding.rule == name)
            ),
            "defaultConfiguration": {"level": "error"},
        }
        for name in names
    ]
    run = {
        "tool": {"driver": {"name": "qnnmem", "version": version, "rules": rules}},
        "invocations": [_invocation(report)],
        "columnKind": "unicodeCodePoints",
        "results": [_result(one, names.index(one.finding.rule)) for one in report.findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": VERSION, "runs": [run]}, indent=1) + "\n"


def _invocation(report: ClientReport) -> dict[str, Any]:
    made: dict[str, Any] = {
        "executionSuccessful": report.called and not report.not_checked,
        "exitCode": report.exit_code,
    }
    if report.not_checked:
        made["toolExecutionNotifications"] = [
            {"level": "error", "message": message(f"not checked: {one.what}")}
            for one in report.not_checked
        ]
    return made


def _result(one: ClientFinding, index: int) -> dict[str, Any]:
    found = one.finding
    text = f"{found.sentence}; {found.cure}" if found.cure else found.sentence
    result: dict[str, Any] = {
        "ruleId": found.rule,
        "ruleIndex": index,
        "level": "error",
        "message": message(shorten(text, _WIDE)),
        "occurrenceCount": one.count,
    }
    frame, what = _with_line(one.stack), found.call
    if one.label != CALLED:
        what = f"{found.call}, {one.label}"
    if frame is not None:
        result["locations"] = [_location(frame, what)]
        result["stacks"] = [_stack(what, one.stack)]
    other = _with_line(one.other_stack)
    if other is not None:
        result["relatedLocations"] = [{"id": 1, **_location(other, one.other)}]
        result.setdefault("stacks", []).append(_stack(one.other, one.other_stack))
    return result


def _with_line(stack: Stack) -> Frame | None:
    frame = of_program(stack, "")
    return frame if frame is not None and frame.line else None


def _location(frame: Frame, text: str) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri(frame.place.rpartition(":")[0])},
            "region": {"startLine": frame.line},
        },
        "message": message(shorten(text, _WIDE)),
    }


def _stack(text: str, stack: Stack) -> dict[str, Any]:
    frames = [
        {"location": _location(frame, frame.function), "module": frame.module}
        for frame in stack
        if frame.line
    ]
    return {"message": message(shorten(text, _WIDE)), "frames": frames}


def _missed(report: ClientReport) -> list[str]:
    """What keeps a run from being clean though no rule was broken."""
    if not report.called and not report.findings and not report.not_checked:
        return [verdict(report)]
    return [one.what for one in report.not_checked]


def render_junit(report: ClientReport) -> str:
    """One suite: a failure for each finding, an error for what was not checked, or one pass."""
    from xml.sax.saxutils import escape, quoteattr

    name = quoteattr(printable(report.command[0]))
    cases = [
        f"  <testcase classname={name} name={quoteattr(printable(headline(one)))}>\n"
        f"    <failure type={quoteattr(one.finding.rule)} "
        f"message={quoteattr(printable(one.finding.sentence))}>"
        f"{escape(printable(one.finding.cure))}\n"
        f"{escape(chr(10).join(printable(frame.text) for frame in one.stack))}</failure>\n"
        "  </testcase>\n"
        for one in report.findings
    ]
    missed = [
        f"  <testcase classname={name} name={quoteattr(printable(what))}>\n"
        f'    <error type="not checked" message={quoteattr(printable(what))}/>\n'
        "  </testcase>\n"
        for what in _missed(report)
    ]
    clean = f"  <testcase classname={name} name={quoteattr(printable(verdict(report)))}/>\n"
    cases = [*cases, *missed] or [clean]
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name={name} tests="{len(cases)}" failures="{len(report.findings)}" '
        f'errors="{len(missed)}">\n'
        f"{''.join(cases)}</testsuite>\n"
    )
