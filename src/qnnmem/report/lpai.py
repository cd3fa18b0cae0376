"""The LPAI contract as text: its rules, the choices where it is silent, the self-test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from qnnmem.contract.rules import Rule
from qnnmem.errors import Setting
from qnnmem.flags import flag
from qnnmem.qnn.codes import code_name
from qnnmem.results.lpai import Choice, DescribedRule, RuleCode, RuleResult, RulesResult
from qnnmem.text import counted

_MARKS = {
    "D": "documented",
    "P": "seen in public client code",
    "I": "inferred from documented facts",
    "C": "our choice, see `qnnmem lpai choices`",
}


def rules_result(rules: Sequence[Rule]) -> RulesResult:
    """Rules with the names of their codes."""
    return RulesResult(rules=tuple(map(_described, rules)))


def _described(rule: Rule) -> DescribedRule:
    return DescribedRule(
        id=rule.id,
        title=rule.title,
        consequence=rule.consequence,
        codes=tuple(RuleCode(code, code_name(code)) for code in rule.codes),
        mark=rule.mark,
        source=rule.source,
        cure=rule.cure,
    )


def rules_text(rules: Sequence[Rule]) -> str:
    """A table with a line for each rule."""
    return _text(_rule_table(rules))


def rule_text(rule: Rule) -> str:
    """Everything about one rule."""
    return _text(_rule_lines(rule))


def choices_text(choices: Sequence[Choice]) -> str:
    """Choices by section: what is done, why, and how to change it."""
    return _text(_choice_lines(choices))


def with_options(choice: Choice) -> Choice:
    """The choice with settings of `prepare` in the words of the command line."""

    def option(found: re.Match[str]) -> str:
        return f"prepare {flag(Setting(found[1]))}"

    return replace(choice, override=re.sub(r"PrepareOptions\.(\w+)", option, choice.override))


def selftest_text(results: Sequence[RuleResult]) -> str:
    """The verdict, then a line for each rule."""
    return _text(_selftest_lines(results))


def _rule_table(rules: Sequence[Rule]) -> Iterator[str]:
    yield f"{counted(len(rules), 'rule')}; `qnnmem lpai rules ID` explains one"
    yield ""
    yield "id    rule, and the codes that answer who breaks it:"
    for rule in rules:
        answer = ", ".join(map(str, rule.codes)) or "a finding"
        yield f"{rule.id:<4}  {rule.title} ({answer})"


def _rule_lines(rule: Rule) -> Iterator[str]:
    yield f"{rule.id}: {rule.title}"
    yield ""
    codes = [f"{code_name(code)} ({code})" for code in rule.codes]
    rows = (
        ("documented", rule.consequence),
        ("answered here", ", ".join(codes) or "a finding, no QNN code"),
        ("known from", _MARKS[rule.mark]),
        ("source", rule.source),
        ("what to do", rule.cure),
    )
    yield from (f"{word:<13}  {text}" for word, text in rows)


def _choice_lines(choices: Sequence[Choice]) -> Iterator[str]:
    changeable = sum(choice.override != "none" for choice in choices)
    yield f"{len(choices)} choices where public material is silent; {changeable} can be changed"
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
    verdict = f"{wrong} did not go as expected" if wrong else "all as expected"
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
        "note: kept are cases in which a client keeps the rule and everything works; broken are "
        "cases in which it does not and is told so, with the right code, and the graph is as before"
    )


def _text(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"
