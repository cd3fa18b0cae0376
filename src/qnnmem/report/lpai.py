"""Render the LPAI contract: rules, choices, self-test, and faults in config files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from qnnmem.errors import Setting
from qnnmem.flags import flag
from qnnmem.results.lint import ConfigFinding, LintResult
from qnnmem.results.lpai import Choice, Rule, RuleResult
from qnnmem.text import counted, shorten

_MARKS = {
    "D": "documented",
    "P": "seen in public client code",
    "I": "inferred from documented facts",
    "C": "our choice, see `qnnmem lpai choices`",
}


def rules_text(rules: Sequence[Rule]) -> str:
    """Render a table with a line for each rule."""
    return _text(_rule_table(rules))


def rule_text(rule: Rule) -> str:
    """Render all fields of one rule."""
    return _text(_rule_lines(rule))


def choices_text(choices: Sequence[Choice]) -> str:
    """Render choices by section, each with its reason and the way to change it."""
    return _text(_choice_lines(choices))


def with_options(choice: Choice) -> Choice:
    """Return the choice with `PrepareOptions` fields written as command-line options."""

    def option(found: re.Match[str]) -> str:
        return f"prepare {flag(Setting(found[1]))}"

    return replace(choice, override=re.sub(r"PrepareOptions\.(\w+)", option, choice.override))


def selftest_text(results: Sequence[RuleResult]) -> str:
    """Render the self-test: the verdict, then a line for each rule."""
    return _text(_selftest_lines(results))


def _rule_table(rules: Sequence[Rule]) -> Iterator[str]:
    yield f"{counted(len(rules), 'rule')}; `qnnmem lpai rules ID` explains one"
    yield ""
    yield "id    rule, and the codes returned if it is broken:"
    for rule in rules:
        answer = ", ".join(map(str, rule.codes)) or "a finding"
        yield f"{rule.id:<4}  {rule.title} ({answer})"


def _rule_lines(rule: Rule) -> Iterator[str]:
    yield f"{rule.id}: {rule.title}"
    yield ""
    codes = [f"{one.name} ({one.code})" for one in rule.named_codes]
    rows = (
        ("documented", rule.consequence),
        ("returned here", ", ".join(codes) or "a finding, no QNN code"),
        ("known from", _MARKS[rule.mark]),
        ("source", rule.source),
        ("what to do", rule.cure),
    )
    yield from (f"{word:<13}  {text}" for word, text in rows)


def _choice_lines(choices: Sequence[Choice]) -> Iterator[str]:
    changeable = sum(choice.override != "none" for choice in choices)
    yield (
        f"{len(choices)} choices where public documents leave the behaviour open; "
        f"{changeable} can be changed"
    )
    section = ""
    for choice in choices:
        if choice.section != section:
            section = choice.section
            yield from ("", f"{section}:")
        yield from ("", f"  {choice.id}", f"    {choice.what}", f"    Why: {choice.why}")
        if choice.override != "none":
            yield f"    Change: {choice.override}"


def _selftest_lines(results: Sequence[RuleResult]) -> Iterator[str]:
    count = sum(one.keeping + one.breaking for one in results)
    wrong = sum(len(one.failures) for one in results)
    verdict = f"{wrong} failed" if wrong else "all as expected"
    yield f"{counted(len(results), 'rule')}, {counted(count, 'case')}: {verdict}"
    yield ""
    yield f"{'id':<4}  {'kept':>4}  {'broken':>6}  {'verdict':<7}  rule"
    for one in results:
        word = "ok" if one.as_expected else "FAILED"
        cells = f"{one.rule:<4}  {one.keeping:>4}  {one.breaking:>6}  {word:<7}"
        yield f"{cells}  {one.title}"
        yield from (f"      {failure.title}: {failure.reason}" for failure in one.failures)
    yield ""
    yield (
        "note: in kept cases the client follows the rule and everything works; in broken "
        "cases it breaks the rule, gets the right code, and the graph is unchanged"
    )


def _text(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


_WIDE = 200  # columns for paths


def lint_text(report: LintResult) -> str:
    """Render the verdict, then one line for each finding; names from files are made printable."""
    return "\n".join([verdict(report), *_lines(report)]) + "\n"


def verdict(report: LintResult) -> str:
    """Return one line: "fine", or how many errors and warnings there are."""
    read = [file for file in report.files if file.unreadable is None]
    errors, warnings = report.errors, report.warnings
    if not errors and not warnings:
        verdict = f"fine: {', '.join(shorten(file.path, _WIDE) for file in read[:5])}"
        return verdict + (f" and {len(read) - 5} more" if len(read) > 5 else "")
    numbers = ((errors, "error"), (warnings, "warning"))
    parts = [counted(number, noun) for number, noun in numbers if number]
    strict = "; with --strict, warnings fail too" if report.strict and not errors else ""
    return f"{', '.join(parts)} in {counted(len(read), 'file')}{strict}"


def _lines(report: LintResult) -> Iterator[str]:
    for file in report.files:
        if file.named_by is not None and any(f.file == file.path for f in report.findings):
            yield f"{shorten(file.path, _WIDE)}: named by {shorten(file.named_by, _WIDE)}"
        yield from (_line(finding) for finding in report.findings if finding.file == file.path)


def _line(finding: ConfigFinding) -> str:
    where = shorten(finding.file, _WIDE)
    if finding.line is not None:
        where += f":{finding.line}:{finding.column}"
    about = f"{finding.key}: " if finding.key else ""
    text = f"{finding.severity.value}: {about}{finding.sentence}; {finding.cure}"
    return f"{where}: {shorten(text, 600)}"
