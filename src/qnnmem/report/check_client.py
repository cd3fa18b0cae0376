"""Render the result of `check-client` as text, SARIF 2.1.0 and JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qnnmem.programs.check.findings import CALLED
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
from qnnmem.results.programs import ClientFinding, ClientResult, Frame, Stack
from qnnmem.text import counted, printable, shorten

_WIDE = 400
_ALIGNMENT = "R3"
_FRAMES = 8  # stack frames in the text


def _timeline(report: ClientResult) -> Iterator[str]:
    """Yield one line: the peak number of contexts, and the peak of memory with its call."""
    if report.timeline:
        contexts = max(one.contexts for one in report.timeline)
        most = max(report.timeline, key=lambda one: one.registered_bytes)
        size = counted(most.registered_bytes, "byte")
        yield (
            f"peak: {counted(contexts, 'context')}; {size} in pools, resident binaries and "
            f"registered memory together (after call {most.call:,}, {most.what})"
        )


def render_text(report: ClientResult) -> str:
    """Render the verdict, then every finding with its places."""
    return "\n".join([report.verdict, *_lines(report)]) + "\n"


def _lines(report: ClientResult) -> Iterator[str]:
    if not report.called and not report.not_checked:
        yield (
            "the program must load libQnnLpai.so by name or be linked with it; a full "
            "path, an RPATH to "
        )
        yield "another folder or dlmopen bypasses this checker, and so does a script that replaces "
        yield (
            "LD_PRELOAD or LD_LIBRARY_PATH (to preload other libraries, set LD_PRELOAD for "
            "`qnnmem` itself)"
        )
    for one in report.findings:
        yield ""
        yield from _finding(one)
    if report.findings:
        yield ""
        yield from _timeline(report)
    if report.findings and not report.has_lines:
        yield ""
        yield "note: addr2line (binutils) is not installed, so places are functions and offsets"
    yield from (f"note: {note}" for note in report.notes)
    yield from listed(report.not_checked)
    if report.left_out:
        yield f"and {counted(report.left_out, 'more finding')}, not listed because of the limit"
    if report.passes and report.exit_code:
        yield f"exit code {report.exit_code} is the program's own, not a finding"
    rules = [one.rule for one in report.findings if not one.rule.startswith("C")]
    if rules:  # runs without rules already list all they have
        yield ""
        yield f"next: explain a rule: qnnmem lpai rules {rules[0]}"


def headline(one: ClientFinding) -> str:
    """Return one line about a finding: rule, call, place and problem."""
    word = " at" if one.label == CALLED else f", {one.label}"
    where = f"{word} {one.place}" if one.place else ""
    return shorten(f"[{one.rule}] {one.call or 'exit'}{where}: {one.sentence}", _WIDE)


def _finding(one: ClientFinding) -> Iterator[str]:
    yield headline(one)
    if one.code:
        yield f"  answered   {one.code} {code_name(one.code)}"
    if one.need is not None or one.given is not None:
        expected, given = numbers(one.rule, one.need, one.given)
        yield f"  numbers    expected {expected}, given {given}"
    yield f"  rule       {one.title}"
    yield f"  cure       {shorten(one.cure, _WIDE)}"
    if one.count > 1:
        yield f"  times      {one.count:,}"
    for place in one.also:
        where = f" at {place.place}" if place.place else ""
        yield f"  also       {shorten(f'{place.what}{where}', _WIDE)}"
    yield from _stack(one.label, one.stack)
    if one.other is not None:
        yield from _stack(one.other.what, one.other.stack)


def numbers(rule: str, need: int | None, given: int | None) -> tuple[str, str]:
    """Return the expected and the given number in words."""
    if rule == _ALIGNMENT:  # the finding holds the remainder
        return f"a multiple of {_number(need)}", f"{_number(given)} past such a multiple"
    return _number(need), _number(given)


def _number(value: int | None) -> str:
    return "nothing" if value is None else f"{value:,}"


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
        one.rule: CiRule(one.rule, one.title, "error", help=one.cure)
        for one in reversed(report.findings)  # the cure of the first finding wins
    }
    return sarif_log(
        list(reversed(rules.values())), map(_ci_finding, report.findings), _invocation(report)
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


def _ci_finding(one: ClientFinding) -> CiFinding:
    text = f"{one.sentence}; {one.cure}" if one.cure else one.sentence
    what = one.call if one.label == CALLED else f"{one.call}, {one.label}"
    frame, stacks = _with_line(one.stack), []
    if frame is not None:
        stacks.append(_call_stack(what, one.stack))
    related: tuple[CiPlace, ...] = ()
    if one.other is not None and (second := _with_line(one.other.stack)) is not None:
        stacks.append(_call_stack(one.other.what, one.other.stack))
        related = (_place(second, one.other.what),)
    return CiFinding(
        one.rule,
        "error",
        shorten(text, _LONGEST),
        None if frame is None else _place(frame, what),
        related,
        count=one.count,
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
    """Return a JUnit suite: a failure for each finding, an error for each gap, else one pass."""
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
    """Return what was not checked; a run with such gaps is not clean even without findings."""
    if not report.called and not report.findings and not report.not_checked:
        return [report.verdict]
    return [missed.what for missed in report.not_checked]
