"""`qnnmem lpai`: the LPAI memory contract: rules, choices, the self-test, a client in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli.export_c import export_c
from qnnmem.cli.help import VerbGroup
from qnnmem.cli.options import result_options
from qnnmem.errors import UsageError

if TYPE_CHECKING:
    from qnnmem.results.lpai import Rule


@click.group(cls=VerbGroup)
def lpai() -> None:
    """The LPAI memory contract: its rules, what is chosen where it is silent, a client in C."""


lpai.add_command(export_c)


@lpai.command("choices")
@result_options("qnnmem.lpai-choices/1")
def choices_command(as_json: bool, output: str | None, force: bool) -> None:
    """List what is chosen where public material is silent.

    Each choice says what this runtime does, why, and how to change it.

    Exit codes: 0 listed, 2 bad usage.
    """
    from qnnmem.lpai.choices import choices
    from qnnmem.report.lpai import choices_text, with_options
    from qnnmem.results.lpai import ChoicesResult
    from qnnmem.results.schema import encode

    every = tuple(map(with_options, choices().values()))
    text = encode(ChoicesResult(choices=every)) if as_json else choices_text(every)
    _show(text, output, force)


@lpai.command("rules")
@click.argument("rule_id", required=False, metavar="[ID]")
@result_options("qnnmem.lpai-rules/1")
def rules_command(rule_id: str | None, as_json: bool, output: str | None, force: bool) -> None:
    """List the rules of the contract, or explain one of them.

    ID is a rule as messages name it, e.g. R3.

    Exit codes: 0 shown, 2 no such rule.
    """
    from qnnmem.contract.rules import rules
    from qnnmem.report.lpai import rule_text, rules_text
    from qnnmem.results.lpai import RulesResult
    from qnnmem.results.schema import encode

    chosen = tuple(rules().values()) if rule_id is None else (_rule(rule_id),)
    if as_json:
        text = encode(RulesResult(rules=chosen))
    elif rule_id is None:
        text = rules_text(chosen)
    else:
        text = rule_text(chosen[0])
    _show(text, output, force)


@lpai.command("selftest")
@result_options("qnnmem.lpai-selftest/1")
def selftest_command(as_json: bool, output: str | None, force: bool) -> int:
    """Keep and break every rule on purpose and see that the runtime notices.

    Needs no files and no network. Exit codes: 0 all as expected, 1 not.
    """
    from qnnmem.lpai.selftest import cases, run_cases
    from qnnmem.report.lpai import selftest_text
    from qnnmem.results.lpai import SelftestResult
    from qnnmem.results.schema import encode

    results = run_cases(cases())
    text = encode(SelftestResult(rules=results)) if as_json else selftest_text(results)
    _show(text, output, force)
    return 0 if all(rule.as_expected for rule in results) else 1


def _rule(rule_id: str) -> Rule:
    from qnnmem.contract.rules import LPAI, PROGRAM, rules

    about_programs = rules(PROGRAM).get(rule_id.upper())
    if about_programs is not None:
        raise UsageError(
            f"{about_programs.id} is a rule of `qnnmem check-client` about programs, not of the "
            f"contract: {about_programs.title.rstrip('.')}",
            cure=about_programs.cure,
        )
    rule = rules(LPAI).get(rule_id.upper())
    if rule is None:
        raise UsageError(f"'{rule_id[:40]}' is not a rule; `qnnmem lpai rules` lists all of them")
    return rule


def _show(text: str, output: str | None, force: bool) -> None:
    from pathlib import Path

    from qnnmem.cli.output import write

    write(text, None if output is None else Path(output), force)
