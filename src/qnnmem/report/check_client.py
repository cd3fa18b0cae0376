"""Render the result of `check-client` as text, SARIF 2.1.0 and JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qnnmem.programs.check.findings import CALLED, MOST
from qnnmem.programs.ledger import listed
from qnnmem.programs.stacks import of_program
from qnnmem.qnn.codes import code_name
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
from qnnmem.report.table import as_text, thousands
from qnnmem.results.programs import ClientFinding, ClientResult, Frame, Stack
from qnnmem.text import counted, printable, shorten

_WIDE = 400
_ALIGNMENT = "R3"
_FRAMES = 8  # stack frames in the text
NO_LINES = (
    "note: addr2line (binutils) is not installed, so this shows functions and offsets instead of "
    "files and lines"
)


def _timeline(report: ClientResult) -> Iterator[str]:
    """Yield one line: the peak number of contexts, the peak memory, and the call at that peak."""
    if report.timeline:
        contexts = max(point.contexts for point in report.timeline)
        peak = max(report.timeline, key=lambda point: point.registered_bytes)
        size = counted(peak.registered_bytes, "byte")
        yield (
            f"peak: {counted(contexts, 'context')}; {size} in pools, resident binaries and "
            f"registered memory together (after call {peak.call:,}, {peak.what})"
        )


_NOT_LOADED = """\
the program must load libQnnLpai.so by name or be linked with it
not checked are libraries loaded by a full path, through an RPATH to another folder or with dlmopen,
and programs whose start script replaces LD_PRELOAD or LD_LIBRARY_PATH
to preload other libraries, set LD_PRELOAD for `qnnmem`"""


@as_text
def render_text(report: ClientResult) -> Iterator[str]:
    """Render the verdict, then every finding with its places."""
    yield report.verdict
    if not report.called and not report.not_checked:
        yield _NOT_LOADED
    for finding in report.findings:
        yield ""
        yield from _finding(finding)
    if report.findings:
        yield ""
        yield from _timeline(report)
    if report.findings and not report.has_lines:
        yield ""
        yield NO_LINES
    yield from (f"note: {note}" for note in report.notes)
    yield from listed(report.not_checked)
    if report.left_out:
        left = counted(report.left_out, "more finding")
        yield f"and {left}, not listed: at most {MOST:,} different findings are kept"
    if report.passes and report.exit_code:
        yield f"exit code {report.exit_code} is the program's own, not a finding"
    rules = [finding.rule for finding in report.findings if not finding.rule.startswith("C")]
    if rules:  # runs without rules already list all they have
        yield ""
        yield f"next: explain a rule: qnnmem lpai rules {rules[0]}"


def headline(finding: ClientFinding) -> str:
    """Return one line about a finding: rule, call, place and problem."""
    word = " at" if finding.label == CALLED else f", {finding.label}"
    where = f"{word} {finding.place}" if finding.place else ""
    return shorten(f"[{finding.rule}] {finding.call or 'exit'}{where}: {finding.sentence}", _WIDE)


def _finding(finding: ClientFinding) -> Iterator[str]:
    yield headline(finding)
    if finding.code:
        yield f"  answered   {finding.code} {code_name(finding.code)}"
    if finding.need is not None or finding.given is not None:
        expected, given = numbers(finding.rule, finding.need, finding.given)
        yield f"  numbers    expected {expected}, given {given}"
    yield f"  rule       {finding.title}"
    yield f"  cure       {shorten(finding.cure, _WIDE)}"
    if finding.count > 1:
        yield f"  times      {finding.count:,}"
    for place in finding.also:
        where = f" at {place.place}" if place.place else ""
        yield f"  also       {shorten(f'{place.what}{where}', _WIDE)}"
    yield from _stack(finding.label, finding.stack)
    if finding.other is not None:
        yield from _stack(finding.other.what, finding.other.stack)


def numbers(rule: str, need: int | None, given: int | None) -> tuple[str, str]:
    """Return the expected and the given number in words."""
    expected, passed = thousands(need, "nothing"), thousands(given, "nothing")
    if rule == _ALIGNMENT:  # the finding holds the remainder
        return f"a multiple of {expected}", f"{passed} past a multiple of {expected}"
    return expected, passed


def _stack(label: str, stack: Stack) -> Iterator[str]:
    own = [frame for frame in stack if frame.line] or list(stack)  # frames that the user can change
    for number, frame in enumerate(own[:_FRAMES]):
        head = label if number == 0 else ""
        source = f"  {frame.source}" if frame.source else ""
        name = f"{frame.function} " if frame.function and frame.line else ""
        yield f"  {head:<10} {printable(shorten(f'{name}{frame.place}{source}', 200))}"


_LONGEST = 600


def render_sarif(report: ClientResult) -> str:
    """Render a SARIF log: a rule for each broken rule, a result for each finding."""
    rules = {
        finding.rule: CiRule(finding.rule, finding.title, "error", help=finding.cure)
        for finding in reversed(report.findings)  # the cure of the first finding wins
    }
    return sarif_log(
        list(reversed(rules.values())), map(_ci_finding, report.findings), _invocation(report)
    )


def _invocation(report: ClientResult) -> dict[str, Any]:
    invocation: dict[str, Any] = {
        "executionSuccessful": report.called and not report.not_checked,
        "exitCode": report.exit_code,
    }
    if report.not_checked:
        invocation["toolExecutionNotifications"] = [
            {"level": "error", "message": sarif_message(f"not checked: {missed.what}")}
            for missed in report.not_checked
        ]
    return invocation


def _ci_finding(finding: ClientFinding) -> CiFinding:
    text = f"{finding.sentence}; {finding.cure}" if finding.cure else finding.sentence
    call = finding.call if finding.label == CALLED else f"{finding.call}, {finding.label}"
    frame, stacks = _with_line(finding.stack), []
    if frame is not None:
        stacks.append(_call_stack(call, finding.stack))
    related: tuple[CiPlace, ...] = ()
    if finding.other is not None and (second := _with_line(finding.other.stack)) is not None:
        stacks.append(_call_stack(finding.other.what, finding.other.stack))
        related = (_place(second, finding.other.what),)
    return CiFinding(
        finding.rule,
        "error",
        shorten(text, _LONGEST),
        None if frame is None else _place(frame, call),
        related,
        count=finding.count,
        stacks=tuple(stacks),
    )


def _with_line(stack: Stack) -> Frame | None:
    frame = of_program(stack, "")
    return frame if frame is not None and frame.line else None


def _place(frame: Frame, text: str) -> CiPlace:
    return CiPlace(frame.place.rpartition(":")[0], frame.line, shorten(text, _LONGEST))


def _call_stack(text: str, stack: Stack) -> CallStack:
    frames = ((_place(frame, frame.function), frame.module) for frame in stack if frame.line)
    return CallStack(shorten(text, _LONGEST), tuple(frames))


def render_junit(report: ClientResult) -> str:
    """Return a JUnit suite: a failure for each finding, an error for each part not checked.

    Without failures and errors, the suite has one case that passes.
    """
    cases = [
        JunitCase(
            headline(finding),
            "failure",
            finding.rule,
            finding.sentence,
            (finding.cure, *(frame.text for frame in finding.stack)),
        )
        for finding in report.findings
    ]
    cases += [JunitCase(gap, "error", "not checked", gap) for gap in _missed(report)]
    suite = JunitSuite(report.command[0], tuple(cases or [JunitCase(report.verdict)]))
    return junit_xml([suite])


def _missed(report: ClientResult) -> list[str]:
    """Return a sentence for each part of the run that was not checked."""
    if not report.called and not report.findings and not report.not_checked:
        return [report.verdict]
    return [missed.what for missed in report.not_checked]
