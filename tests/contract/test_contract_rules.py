from __future__ import annotations

import re
from pathlib import Path

import pytest

from qnnmem.contract.rules import LPAI, PROGRAM, QMEM, finding, rules
from qnnmem.contract.rules import every_rule as every_rule_of_all
from qnnmem.lpai.profiles import choices
from qnnmem.qnn.codes import UNKNOWN, code_name
from qnnmem.results.lpai import Rule

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lpai-rules.md"
SOURCES = sorted((Path(__file__).parents[2] / "src" / "qnnmem" / "lpai").rglob("*.py"))
ANSWER = re.compile(r'\b_?fail\(\s*(\d+),\s*(?:finding\(\s*)?"([A-Z]\d+)"')
every_rule = pytest.mark.parametrize("rule", rules().values(), ids=lambda rule: rule.id)


def test_the_whole_contract_is_there() -> None:
    """The table has the documented rules and those about TCM, sanitiser, sharing and binaries."""
    wanted = {f"R{n}" for n in range(1, 21)} | {f"T{n}" for n in range(1, 7)}
    wanted |= {f"X{n}" for n in range(1, 9)} | {f"L{n}" for n in range(1, 5)}
    wanted |= {f"M{n}" for n in range(1, 5)} | {"B1"}
    assert wanted - set(rules()) == set()


@every_rule
def test_a_rule_is_a_sentence_with_source_and_cure(rule: Rule) -> None:
    """The title and the consequence of a rule are sentences; the cure is the end of a sentence."""
    assert rule.title.endswith(".")
    assert rule.consequence.endswith(".")
    assert rule.source
    assert rule.cure
    assert not rule.cure.endswith(".")


@every_rule
def test_a_rule_answers_with_codes_of_qnn(rule: Rule) -> None:
    """Every code of a rule has a name, and every rule states how its answer is known."""
    assert UNKNOWN not in map(code_name, rule.codes)
    assert rule.mark in {"D", "P", "I", "C"}


@every_rule
def test_a_code_of_our_choice_is_among_the_choices(rule: Rule) -> None:
    """A rule with an undocumented code is listed in the table of choices."""
    if rule.mark == "C":
        texts = " ".join(choice.what for choice in choices().values())
        has_choice = f"rule-{rule.id}" in choices() or f"({rule.id})" in texts
        assert has_choice or rule.id in {"X1", "X2", "X3", "X6"}


def test_the_checks_without_a_choice_of_their_own_share_one() -> None:
    """X1 to X6 share one entry in the table of choices."""
    assert "X1 to X6" in choices()["sanitiser"].what


@every_rule
def test_the_page_has_every_rule(rule: Rule) -> None:
    """The page lists each rule with the title and codes of the table."""
    codes = ", ".join(map(str, rule.codes))
    assert f"| {rule.id} | {rule.title} | {codes}".rstrip() in PAGE.read_text("utf-8")


def test_the_runtime_answers_with_the_codes_of_the_table() -> None:
    """Each code that the source pairs with a rule is a code of that rule in the table."""
    found = {
        (rule, int(code))
        for source in SOURCES
        for code, rule in ANSWER.findall(source.read_text("utf-8"))
    }
    assert found
    assert {(rule, code) for rule, code in found if code not in rules()[rule].codes} == set()


def test_a_finding_takes_cure_and_source_from_its_rule() -> None:
    """A finding takes its cure and source from the rule."""
    found = finding("R4", "scratch is too small", buffer="scratch", need=128, given=64)
    assert (found.rule, found.need, found.given) == ("R4", 128, 64)
    assert (found.cure, found.source) == (rules()["R4"].cure, rules()["R4"].source)


def test_a_finding_may_know_a_better_cure() -> None:
    """A specific cure replaces the cure of the rule."""
    assert finding("R4", "too small", cure="allocate 128 bytes").cure == "allocate 128 bytes"


@pytest.mark.parametrize("table", [LPAI, QMEM, PROGRAM])
def test_every_table_is_whole(table: str) -> None:
    """Every rule has a title, a source, a cure and known codes; ids are unique over all tables."""
    for rule in rules(table).values():
        assert rule.title.endswith(".")
        assert rule.source
        assert rule.cure
        assert UNKNOWN not in map(code_name, rule.codes)
        assert every_rule_of_all()[rule.id] is rule
    assert len(every_rule_of_all()) == sum(len(rules(one)) for one in (LPAI, QMEM, PROGRAM))
