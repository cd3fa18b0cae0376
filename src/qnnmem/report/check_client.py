"""A program checked against the contract, as text with the verdict first."""

from __future__ import annotations

from collections.abc import Iterator

from qnnmem.programs.check.findings import CALLED
from qnnmem.programs.ledger import listed
from qnnmem.qnn.codes import code_name
from qnnmem.results.programs import ClientFinding, ClientResult, Stack
from qnnmem.text import counted, printable, shorten

_WIDE = 400
_ALIGNMENT = "R3"
_FRAMES = 8  # of a stack that the text shows


def _timeline(report: ClientResult) -> Iterator[str]:
    """The most that the program held at QNN at once."""
    if report.timeline:
        contexts = max(one.contexts for one in report.timeline)
        most = max(report.timeline, key=lambda one: one.registered_bytes)
        size = counted(most.registered_bytes, "byte")
        yield (
            f"held at most: {counted(contexts, 'context')}, {size} of "
            f"pools, kept binaries and registered memory (after call {most.call:,}, {most.what})"
        )


def render_text(report: ClientResult) -> str:
    """Verdict, then every finding with its places."""
    return "\n".join([report.verdict, *_lines(report)]) + "\n"


def _lines(report: ClientResult) -> Iterator[str]:
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
    rules = [one.rule for one in report.findings if not one.rule.startswith("C")]
    if rules:  # those of programs alone say all they have
        yield ""
        yield f"next: what a rule says: qnnmem lpai rules {rules[0]}"


def headline(one: ClientFinding) -> str:
    """Rule, call, place and what happened, in one line."""
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
    yield from _stack(one.label, one.stack)
    if one.other is not None:
        yield from _stack(one.other.what, one.other.stack)


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
