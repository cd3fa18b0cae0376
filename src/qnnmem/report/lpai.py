"""Render the LPAI contract: rules, choices, self-test, and faults in config files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from qnnmem.errors import Setting
from qnnmem.flags import flag
from qnnmem.report.table import as_text
from qnnmem.results.lint import ConfigFinding, LintResult
from qnnmem.results.lpai import Choice, Rule, RuleResult
from qnnmem.text import counted, shorten

_MARKS = {
    "D": "documented",
    "P": "seen in public client code",
    "I": "inferred from documented facts",
    "C": "our choice, see `qnnmem lpai choices`",
}


def with_options(choice: Choice) -> Choice:
    """Return the choice with `PrepareOptions` fields written as command-line options."""

    def option(match: re.Match[str]) -> str:
        return f"prepare {flag(Setting(match[1]))}"

    return replace(choice, override=re.sub(r"PrepareOptions\.(\w+)", option, choice.override))


@as_text
def rules_text(rules: Sequence[Rule]) -> Iterator[str]:
    """Render a table with a line for each rule."""
    yield f"{counted(len(rules), 'rule')}; `qnnmem lpai rules ID` explains one"
    yield ""
    yield "id    rule, and the codes returned if it is broken:"
    for rule in rules:
        answer = ", ".join(map(str, rule.codes)) or "a finding"
        yield f"{rule.id:<4}  {rule.title} ({answer})"


@as_text
def rule_text(rule: Rule) -> Iterator[str]:
    """Render all fields of one rule."""
    yield f"{rule.id}: {rule.title}"
    yield ""
    codes = [f"{code.name} ({code.code})" for code in rule.named_codes]
    rows = (
        ("documented", rule.consequence),
        ("returned here", ", ".join(codes) or "a finding, no QNN code"),
        ("known from", _MARKS[rule.mark]),
        ("source", rule.source),
        ("what to do", rule.cure),
    )
    yield from (f"{word:<13}  {text}" for word, text in rows)


@as_text
def choices_text(choices: Sequence[Choice]) -> Iterator[str]:
    """Render choices by section, each with its reason and the way to change it."""
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


@as_text
def selftest_text(results: Sequence[RuleResult]) -> Iterator[str]:
    """Render the self-test: the verdict, then a line for each rule."""
    count = sum(result.keeping + result.breaking for result in results)
    wrong = sum(len(result.failures) for result in results)
    verdict = f"{wrong} failed" if wrong else "all as expected"
    yield f"{counted(len(results), 'rule')}, {counted(count, 'case')}: {verdict}"
    yield ""
    yield f"{'id':<4}  {'kept':>4}  {'broken':>6}  {'verdict':<7}  rule"
    for result in results:
        word = "ok" if result.as_expected else "FAILED"
        cells = f"{result.rule:<4}  {result.keeping:>4}  {result.breaking:>6}  {word:<7}"
        yield f"{cells}  {result.title}"
        yield from (f"      {failure.title}: {failure.reason}" for failure in result.failures)
    yield ""
    yield (
        "note: in kept cases, the client follows the rule, and all calls must succeed; in broken "
        "cases, it breaks the rule, must get the code of the rule, and the graph must not change"
    )


_WIDE = 200  # columns for paths


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


@as_text
def lint_text(report: LintResult) -> Iterator[str]:
    """Render the verdict, then one line for each finding; names from files are made printable."""
    yield verdict(report)
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
