"""A program checked against the contract: text with the verdict first, and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from qnnmem.contract.rules import every_rule
from qnnmem.programs.check.client_run import ClientReport
from qnnmem.programs.check.findings import CALLED, ClientFinding
from qnnmem.programs.ledger import in_words, listed
from qnnmem.programs.stacks import Stack
from qnnmem.qnn.codes import code_name
from qnnmem.results.schema import write_json
from qnnmem.text import counted, printable, shorten

SCHEMA = "qnnmem.check-client/1"
_WIDE = 400
_ALIGNMENT = "R3"
_FRAMES = 8  # of a stack that the text shows


def verdict(report: ClientReport) -> str:
    """One line: clean, or which rules are broken."""
    program = shorten(report.command[0], 200)
    missed = in_words(report.not_checked)
    if not report.called and not missed:
        return f"cannot tell: {program} never called QNN ({_end(report)})"
    calls = counted(sum(report.calls.values()), "call")
    if report.findings:
        rules = dict.fromkeys(one.finding.rule for one in report.findings)
        found = counted(len(report.findings), "finding")
        said = f"{found} in {program}: {', '.join(rules)} ({calls} of QNN, {_end(report)})"
        return f"{said}; not checked: {missed}" if missed else said
    if missed:
        return f"not checked: {missed}; {calls} of {program} kept every rule ({_end(report)})"
    silent = (
        f", {counted(report.suppressed, 'known finding')} left out" if report.suppressed else ""
    )
    return f"clean: {program} kept every rule in {calls} of QNN{silent} ({_end(report)})"


def _timeline(report: ClientReport) -> Iterator[str]:
    """The most that the program held at QNN at once."""
    if report.timeline:
        contexts = max(one.contexts for one in report.timeline)
        most = max(report.timeline, key=lambda one: one.registered_bytes)
        size = counted(most.registered_bytes, "byte")
        yield (
            f"held at most: {counted(contexts, 'context')}, {size} of "
            f"pools, kept binaries and registered memory (after call {most.call:,}, {most.what})"
        )


def _end(report: ClientReport) -> str:
    if report.timed_out:
        return "it did not end in time"
    return f"ended by {report.ended_by}" if report.ended_by else f"exit code {report.exit_code}"


def render_text(report: ClientReport) -> str:
    """Verdict, then every finding with its places."""
    return "\n".join([verdict(report), *_lines(report)]) + "\n"


def _lines(report: ClientReport) -> Iterator[str]:
    if not report.called and not report.not_checked:
        yield "it has to load libQnnLpai.so by name or be linked with it; a full path, an RPATH to "
        yield "another folder or dlmopen goes past this checker, so does a script that replaces "
        yield "LD_PRELOAD or LD_LIBRARY_PATH (set what is to be preloaded for `qnnmem` itself)"
    for one in report.findings:
        yield ""
        yield from _finding(one)
    if report.findings:
        yield ""
        yield from _timeline(report)
    if report.findings and not report.has_lines:
        yield ""
        yield "note: addr2line (binutils) is not here, so places are functions and offsets"
    yield from listed(report.not_checked)
    if report.left_out:
        yield f"and {counted(report.left_out, 'finding')} more, which were not kept"
    if report.passes and report.exit_code:
        yield f"exit code {report.exit_code} is the program's own, not a finding"
    rules = [one.finding.rule for one in report.findings if not one.finding.rule.startswith("C")]
    if rules:  # those of programs alone say all they have
        yield ""
        yield f"next: what a rule says: qnnmem lpai rules {rules[0]}"


def headline(one: ClientFinding) -> str:
    """Rule, call, place and what happened, in one line."""
    found = one.finding
    word = " at" if one.label == CALLED else f", {one.label}"
    where = f"{word} {one.place}" if one.place else ""
    return shorten(f"[{found.rule}] {found.call or 'exit'}{where}: {found.sentence}", _WIDE)


def _finding(one: ClientFinding) -> Iterator[str]:
    found = one.finding
    yield headline(one)
    if one.code:
        yield f"  answered   {one.code} {code_name(one.code)}"
    if found.need is not None or found.given is not None:
        expected, given = numbers(found.rule, found.need, found.given)
        yield f"  numbers    expected {expected}, given {given}"
    yield f"  rule       {every_rule()[found.rule].title}"
    yield f"  cure       {shorten(found.cure, _WIDE)}"
    if one.count > 1:
        yield f"  times      {one.count:,}"
    yield from _stack(one.label, one.stack)
    if one.other:
        yield from _stack(one.other, one.other_stack)


def numbers(rule: str, need: int | None, given: int | None) -> tuple[str, str]:
    """What was expected and what was given, in words."""
    if rule == _ALIGNMENT:  # of which a finding has the remainder
        return f"a multiple of {_number(need)}", f"one that is {_number(given)} past it"
    return _number(need), _number(given)


def _number(value: int | None) -> str:
    return "nothing" if value is None else f"{value:,}"


def _stack(label: str, stack: Stack) -> Iterator[str]:
    own = [frame for frame in stack if frame.line] or list(stack)  # what the program can change
    for number, frame in enumerate(own[:_FRAMES]):
        head = label if number == 0 else ""
        source = f"  {frame.source}" if frame.source else ""
        name = f"{frame.function} " if frame.function and frame.line else ""
        yield f"  {head:<10} {printable(shorten(f'{name}{frame.place}{source}', 200))}"


def render_json(report: ClientReport) -> str:
    """One JSON object of `qnnmem.check-client/1`."""
    return write_json(
        {
            "schema": SCHEMA,
            "verdict": verdict(report),
            "passes": report.passes,
            "command": list(report.command),
            "mode": report.profile.mode.value,
            "hw_version": report.profile.hw_version.word,
            "alignment": {
                "start": report.profile.start_alignment,
                "size": report.profile.size_alignment,
            },
            "exit_code": report.exit_code,
            "ended_by": report.ended_by or None,
            "timed_out": report.timed_out,
            "last_call": report.last_call or None,
            "calls": report.calls,
            "failed_calls": report.failed,
            "suppressed": report.suppressed,
            "left_out": report.left_out,
            "not_checked": [asdict(one) for one in report.not_checked],
            "timeline": [asdict(one) for one in report.timeline],
            "findings": [_as_values(one) for one in report.findings],
        }
    )


def _as_values(one: ClientFinding) -> dict[str, Any]:
    found = one.finding
    return {
        "rule": found.rule,
        "title": every_rule()[found.rule].title,
        "sentence": found.sentence,
        "call": found.call,
        "code": one.code,
        "buffer": found.buffer,
        "address": found.address,
        "need": found.need,
        "given": found.given,
        "cure": found.cure,
        "place": one.place,
        "stack": _frames(one.stack),
        "other": None
        if not one.other
        else {"what": one.other, "place": one.other_place, "stack": _frames(one.other_stack)},
        "process": one.process,
        "count": one.count,
    }


def _frames(stack: Stack) -> list[dict[str, Any]]:
    return [
        {
            "function": frame.function,
            "file": frame.file,
            "line": frame.line,
            "module": frame.module,
            "offset": frame.offset,
        }
        for frame in stack
    ]
