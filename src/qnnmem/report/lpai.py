"""The LPAI contract as text and JSON: its rules, the choices where it is silent, the self-test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from textwrap import wrap
from typing import Any

from qnnmem.errors import Setting
from qnnmem.lpai.choices import Choice
from qnnmem.lpai.rules import Rule
from qnnmem.lpai.selftest import RuleResult
from qnnmem.qnn.codes import code_name
from qnnmem.report.flags import flag
from qnnmem.report.schema import write_json

RULES_SCHEMA = "qnnmem.lpai-rules/1"
CHOICES_SCHEMA = "qnnmem.lpai-choices/1"
SELFTEST_SCHEMA = "qnnmem.lpai-selftest/1"

_ANSWER = 11  # width of the column with codes: two of them
_MARKS = {
    "D": "documented",
    "P": "seen in public client code",
    "I": "inferred from documented facts",
    "C": "our choice, see `qnnmem lpai choices`",
}


def rules_json(rules: Sequence[Rule]) -> str:
    """Rules with the names of their codes."""
    return write_json({"schema": RULES_SCHEMA, "rules": [_rule_values(rule) for rule in rules]})


def rules_text(rules: Sequence[Rule], width: int) -> str:
    """A table with a line for each rule."""
    return _text(_rule_table(rules, width))


def rule_text(rule: Rule, width: int) -> str:
    """Everything about one rule."""
    return _text(_rule_lines(rule, width))


def choices_json(choices: Sequence[Choice]) -> str:
    """Every field of every choice."""
    values = [asdict(with_options(one)) for one in choices]
    return write_json({"schema": CHOICES_SCHEMA, "choices": values})


def choices_text(choices: Sequence[Choice], width: int) -> str:
    """Choices by section: what is done, why, and how to change it."""
    return _text(_choice_lines([with_options(one) for one in choices], width))


def with_options(choice: Choice) -> Choice:
    """The choice with settings of `prepare` in the words of the command line."""

    def option(found: re.Match[str]) -> str:
        return f"prepare {flag(Setting(found[1]))}"

    return replace(choice, override=re.sub(r"PrepareOptions\.(\w+)", option, choice.override))


def selftest_json(results: Sequence[RuleResult]) -> str:
    """How the cases of each rule went."""
    rules = [asdict(one) | {"as_expected": one.as_expected} for one in results]
    return write_json({"schema": SELFTEST_SCHEMA, "rules": rules})


def selftest_text(results: Sequence[RuleResult], width: int) -> str:
    """The verdict, then a line for each rule."""
    return _text(_selftest_lines(results, width))


def _rule_values(rule: Rule) -> dict[str, Any]:
    codes = [{"code": code, "name": code_name(code)} for code in rule.codes]
    return asdict(rule) | {"codes": codes}


def _rule_table(rules: Sequence[Rule], width: int) -> Iterator[str]:
    yield from _wrapped(f"{len(rules)} rules; `qnnmem lpai rules ID` explains one", 0, width)
    yield ""
    yield f"{'id':<4}  {'answer':<{_ANSWER}}  rule"
    for rule in rules:
        answer = ", ".join(map(str, rule.codes)) or "finding"
        titles, answers = _wrapped(rule.title, 8 + _ANSWER, width), wrap(answer, _ANSWER)
        for name, code, title in zip_longest([rule.id], answers, titles, fillvalue=""):
            yield f"{name:<4}  {code:<{_ANSWER}}  {title.lstrip()}".rstrip()


def _rule_lines(rule: Rule, width: int) -> Iterator[str]:
    yield from _wrapped(f"{rule.id}: {rule.title}", 0, width)
    yield ""
    codes = [f"{code_name(code)} ({code})" for code in rule.codes]
    rows = (
        ("documented", rule.consequence),
        ("answered here", ", ".join(codes) or "a finding, no QNN code"),
        ("known from", _MARKS[rule.mark]),
        ("source", rule.source),
        ("what to do", rule.cure),
    )
    for word, text in rows:
        first, *more = _wrapped(text, 13, width)
        yield f"{word:<11}  {first.lstrip()}"
        yield from more


def _choice_lines(choices: Sequence[Choice], width: int) -> Iterator[str]:
    changeable = sum(choice.override != "none" for choice in choices)
    first = f"{len(choices)} choices where public material is silent; {changeable} can be changed"
    yield from _wrapped(first, 0, width)
    section = ""
    for choice in choices:
        if choice.section != section:
            section = choice.section
            yield from ("", section.upper() if section.islower() else section)
        yield from ("", f"  {choice.id}")
        for word, text in (("", choice.what), ("Why: ", choice.why)):
            yield from _wrapped(word + text, 4, width)
        if choice.override != "none":
            yield from _wrapped(f"Change: {choice.override}", 4, width)


def _selftest_lines(results: Sequence[RuleResult], width: int) -> Iterator[str]:
    count = sum(one.keeping + one.breaking for one in results)
    wrong = sum(len(one.failures) for one in results)
    verdict = f"{wrong} did not go as expected" if wrong else "all as expected"
    yield from _wrapped(f"{len(results)} rules, {count} cases: {verdict}", 0, width)
    yield ""
    yield f"{'id':<4}  {'kept':>4}  {'broken':>6}  {'verdict':<7}  rule"
    for one in results:
        first, *more = _wrapped(one.title, 29, width)
        word = "ok" if one.as_expected else "FAILED"
        cells = f"{one.rule:<4}  {one.keeping:>4}  {one.breaking:>6}  {word:<7}"
        yield f"{cells}  {first.lstrip()}"
        yield from more
        for failure in one.failures:
            yield from _wrapped(f"{failure.title}: {failure.reason}", 6, width)
    yield ""
    yield from _wrapped(
        "kept: cases in which a client keeps the rule and everything works; broken: cases in which "
        "it does not and is told so, with the right code, and the graph is as before",
        0,
        width,
    )


def _wrapped(text: str, indent: int, width: int) -> list[str]:
    space = " " * indent
    return wrap(
        text,
        width,
        initial_indent=space,
        subsequent_indent=space,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _text(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"
