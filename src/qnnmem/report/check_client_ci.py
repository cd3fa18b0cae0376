"""A checked program for build servers: SARIF 2.1.0 and JUnit's XML."""

from __future__ import annotations

from typing import Any

from qnnmem.programs.check.findings import CALLED
from qnnmem.programs.stacks import of_program
from qnnmem.report.check_client import headline
from qnnmem.report.findings import (
    CallStack,
    CiFinding,
    CiPlace,
    CiRule,
    JunitCase,
    JunitSuite,
    junit_xml,
    sarif_log,
    sarif_message,
)
from qnnmem.results.programs import ClientFinding, ClientResult, Frame, Stack
from qnnmem.text import shorten

_WIDE = 600


def render_sarif(report: ClientResult) -> str:
    """One SARIF log: a rule for each that was broken, a result for each finding."""
    rules = {
        one.rule: CiRule(one.rule, one.title, "error", help=one.cure)
        for one in reversed(report.findings)  # the cure of the first finding counts
    }
    return sarif_log(
        list(reversed(rules.values())), map(_finding, report.findings), _invocation(report)
    )


def _invocation(report: ClientResult) -> dict[str, Any]:
    made: dict[str, Any] = {
        "executionSuccessful": report.called and not report.not_checked,
        "exitCode": report.exit_code,
    }
    if report.not_checked:
        made["toolExecutionNotifications"] = [
            {"level": "error", "message": sarif_message(f"not checked: {missed.what}")}
            for missed in report.not_checked
        ]
    return made


def _finding(one: ClientFinding) -> CiFinding:
    text = f"{one.sentence}; {one.cure}" if one.cure else one.sentence
    what = one.call if one.label == CALLED else f"{one.call}, {one.label}"
    frame, stacks = _with_line(one.stack), []
    if frame is not None:
        stacks.append(_stack(what, one.stack))
    related: tuple[CiPlace, ...] = ()
    if one.other is not None and (second := _with_line(one.other.stack)) is not None:
        stacks.append(_stack(one.other.what, one.other.stack))
        related = (_place(second, one.other.what),)
    return CiFinding(
        one.rule,
        "error",
        shorten(text, _WIDE),
        None if frame is None else _place(frame, what),
        related,
        count=one.count,
        stacks=tuple(stacks),
    )


def _with_line(stack: Stack) -> Frame | None:
    frame = of_program(stack, "")
    return frame if frame is not None and frame.line else None


def _place(frame: Frame, text: str) -> CiPlace:
    return CiPlace(frame.place.rpartition(":")[0], frame.line, shorten(text, _WIDE))


def _stack(text: str, stack: Stack) -> CallStack:
    frames = ((_place(frame, frame.function), frame.module) for frame in stack if frame.line)
    return CallStack(shorten(text, _WIDE), tuple(frames))


def render_junit(report: ClientResult) -> str:
    """One suite: a failure for each finding, an error for what was not checked, or one pass."""
    cases = [
        JunitCase(
            headline(one),
            "failure",
            one.rule,
            one.sentence,
            (one.cure, *(frame.text for frame in one.stack)),
        )
        for one in report.findings
    ]
    cases += [JunitCase(what, "error", "not checked", what) for what in _missed(report)]
    suite = JunitSuite(report.command[0], tuple(cases or [JunitCase(report.verdict)]))
    return junit_xml([suite])


def _missed(report: ClientResult) -> list[str]:
    """What keeps a run from being clean though no rule was broken."""
    if not report.called and not report.findings and not report.not_checked:
        return [report.verdict]
    return [missed.what for missed in report.not_checked]
