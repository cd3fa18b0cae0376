"""`qnnmem lpai`: the LPAI memory contract: rules, choices where it is silent, and the self-test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from qnnmem.errors import UsageError

if TYPE_CHECKING:
    from qnnmem.lpai.choices import Choice
    from qnnmem.lpai.rules import Rule
    from qnnmem.lpai.selftest import Row

_ANSWER = 11  # width of the column with codes: two of them
_MARKS = {
    "D": "documented",
    "P": "seen in public client code",
    "I": "inferred from documented facts",
    "C": "our choice, see `qnnmem lpai choices`",
}


@click.group()
def lpai() -> None:
    """The LPAI memory contract: its rules, and what is chosen where it is silent."""


@lpai.command("choices")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def choices_command(as_json: bool) -> None:
    """List what is chosen where public material is silent.

    Each choice says what this runtime does, why, and how to change it.
    """
    from dataclasses import asdict

    from qnnmem.lpai.choices import choices

    every = list(choices().values())
    if as_json:
        _show_json("qnnmem.lpai-choices/1", "choices", [asdict(choice) for choice in every])
    else:
        _show(_choice_lines(every))


@lpai.command("rules")
@click.argument("rule_id", required=False, metavar="[ID]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def rules_command(rule_id: str | None, as_json: bool) -> None:
    """List the rules of the contract, or explain one of them.

    ID is a rule as messages name it, e.g. R3.
    """
    from qnnmem.lpai.rules import rules

    chosen = list(rules().values()) if rule_id is None else [_rule(rule_id)]
    if as_json:
        _show_json("qnnmem.lpai-rules/1", "rules", [_rule_values(rule) for rule in chosen])
    else:
        _show(_rule_table(chosen) if rule_id is None else _rule_lines(chosen[0]))


@lpai.command("selftest")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def selftest_command(as_json: bool) -> int:
    """Keep and break every rule on purpose and see that the runtime notices.

    Needs no files and no network. Exit codes: 0 all as expected, 1 not.
    """
    from qnnmem.lpai.selftest import cases, run_cases

    rows = run_cases(cases())
    if as_json:
        _show_json("qnnmem.lpai-selftest/1", "rules", [_row_values(row) for row in rows])
    else:
        _show(_selftest_lines(rows))
    return 0 if all(row.as_expected for row in rows) else 1


def _rule(rule_id: str) -> Rule:
    from qnnmem.lpai.rules import rules

    rule = rules().get(rule_id.upper())
    if rule is None:
        raise UsageError(f"'{rule_id[:40]}' is not a rule; `qnnmem lpai rules` lists all of them")
    return rule


def _choice_lines(every: list[Choice]) -> Iterator[str]:
    changeable = sum(choice.override != "none" for choice in every)
    first = f"{len(every)} choices where public material is silent; {changeable} can be changed"
    yield from _wrapped(first, 0)
    section = ""
    for choice in every:
        if choice.section != section:
            section = choice.section
            yield from ("", section.upper() if section.islower() else section)
        yield from ("", f"  {choice.id}")
        for word, text in (("", choice.what), ("Why: ", choice.why)):
            yield from _wrapped(word + text, 4)
        if choice.override != "none":
            yield from _wrapped(f"Change: {choice.override}", 4)


def _rule_table(every: list[Rule]) -> Iterator[str]:
    from itertools import zip_longest
    from textwrap import wrap

    yield from _wrapped(f"{len(every)} rules; `qnnmem lpai rules ID` explains one", 0)
    yield ""
    yield f"{'id':<4}  {'answer':<{_ANSWER}}  rule"
    for rule in every:
        answer = ", ".join(map(str, rule.codes)) or "finding"
        titles, answers = _wrapped(rule.title, 8 + _ANSWER), wrap(answer, _ANSWER)
        for name, code, title in zip_longest([rule.id], answers, titles, fillvalue=""):
            yield f"{name:<4}  {code:<{_ANSWER}}  {title.lstrip()}".rstrip()


def _rule_lines(rule: Rule) -> Iterator[str]:
    from qnnmem.qnn.codes import code_name

    yield from _wrapped(f"{rule.id}: {rule.title}", 0)
    yield ""
    codes = [f"{code_name(code)} ({code})" for code in rule.codes]
    rows = (
        ("public word", rule.consequence),
        ("answer here", ", ".join(codes) or "a finding, no QNN code"),
        ("known how", _MARKS[rule.mark]),
        ("source", rule.source),
        ("what to do", rule.cure),
    )
    for word, text in rows:
        first, *more = _wrapped(text, 13)
        yield f"{word:<11}  {first.lstrip()}"
        yield from more


def _rule_values(rule: Rule) -> dict[str, object]:
    from dataclasses import asdict

    from qnnmem.qnn.codes import code_name

    codes = [{"code": code, "name": code_name(code)} for code in rule.codes]
    return asdict(rule) | {"codes": codes}


def _selftest_lines(rows: tuple[Row, ...]) -> Iterator[str]:
    count = sum(row.keeping + row.breaking for row in rows)
    wrong = sum(len(row.failures) for row in rows)
    verdict = f"{wrong} went otherwise" if wrong else "all as expected"
    yield from _wrapped(f"{len(rows)} rules, {count} cases: {verdict}", 0)
    yield ""
    yield f"{'id':<4}  {'kept':>4}  {'broken':>6}  {'verdict':<7}  rule"
    for row in rows:
        first, *more = _wrapped(row.title, 29)
        word = "ok" if row.as_expected else "FAILED"
        cells = f"{row.rule:<4}  {row.keeping:>4}  {row.breaking:>6}  {word:<7}"
        yield f"{cells}  {first.lstrip()}"
        yield from more
        for failure in row.failures:
            yield from _wrapped(f"{failure.title}: {failure.reason}", 6)
    yield ""
    yield from _wrapped(
        "kept: cases in which a client keeps the rule and everything works; broken: cases in which "
        "it does not and is told so, with the right code, and the graph is as before",
        0,
    )


def _row_values(row: Row) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(row) | {"as_expected": row.as_expected}


def _wrapped(text: str, indent: int) -> list[str]:
    from shutil import get_terminal_size
    from textwrap import wrap

    # Long lines are hard to read, so a wide terminal is not filled.
    width = min(100, max(40, get_terminal_size().columns - 1))
    space = " " * indent
    return wrap(
        text,
        width,
        initial_indent=space,
        subsequent_indent=space,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _show(lines: Iterator[str]) -> None:
    from qnnmem.cli.output import write

    write("\n".join(lines) + "\n", None, force=False)


def _show_json(schema: str, key: str, values: list[dict[str, object]]) -> None:
    import json

    from qnnmem.cli.output import write

    write(json.dumps({"schema": schema, key: values}, indent=2) + "\n", None, force=False)
