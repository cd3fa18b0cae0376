from __future__ import annotations

import json
from functools import cache

import pytest
from click.testing import CliRunner

from qnnmem.cli.screen import shown
from qnnmem.cli.verbs import qnnmem
from qnnmem.contract.rules import rules
from qnnmem.errors import UsageError
from qnnmem.lpai.profiles import choices
from qnnmem.report.lpai import with_options


@cache
def output(*arguments: str) -> str:
    """Return the output of `qnnmem lpai` with these arguments."""
    return CliRunner().invoke(qnnmem, ["lpai", *arguments], catch_exceptions=False).output


@pytest.mark.parametrize("columns", [50, 80, 120])
@pytest.mark.parametrize("command", ["choices", "rules", "selftest"])
def test_text_is_wrapped_to_the_terminal(command: str, columns: int) -> None:
    """No output line is wider than the terminal, and no word is lost."""
    text = output(command)
    broken = shown(text, columns, colour=False)
    assert max(map(len, broken.splitlines())) <= columns
    assert broken.split() == text.split()


def test_choices_begin_with_how_many_there_are() -> None:
    """The first line counts the choices, and every choice follows with its id."""
    text = output("choices")
    assert text.startswith(f"{len(choices())} choices ")
    assert [key for key in choices() if f"\n  {key}\n" not in text] == []


def test_a_choice_that_cannot_be_changed_offers_no_change() -> None:
    """Only choices with an override print a line that says how to change them."""
    changeable = sum(choice.override != "none" for choice in choices().values())
    assert output("choices").count("    Change: ") == changeable


def test_choices_as_json_hold_the_whole_table() -> None:
    """The JSON of `choices` holds every choice with its override."""
    values = json.loads(output("choices", "--json"))
    assert values["schema"] == "qnnmem.lpai-choices/1"
    assert {c["id"]: c["override"] for c in values["choices"]} == {
        choice.id: with_options(choice).override for choice in choices().values()
    }


def test_rules_are_a_table_with_a_line_for_each() -> None:
    """In the table of rules, every rule id begins a line."""
    starts = {line.split()[0] for line in output("rules").splitlines()[3:] if line[0] != " "}
    assert starts == set(rules())


@pytest.mark.parametrize("word", ["R3", "r3"])
def test_one_rule_is_explained(word: str) -> None:
    """`lpai rules R3` prints the rule, the names of its codes and a remedy."""
    text = output("rules", word)
    assert text.startswith(f"R3: {rules()['R3'].title}\n")
    assert "QNN_GRAPH_ERROR_INVALID_ARGUMENT (6000)" in text
    assert "what to do" in text


def test_one_rule_as_json_names_its_codes() -> None:
    """The JSON of one rule lists each code with its name."""
    values = json.loads(output("rules", "R5", "--json"))
    assert values["schema"] == "qnnmem.lpai-rules/1"
    assert [rule["id"] for rule in values["rules"]] == ["R5"]
    assert values["rules"][0]["codes"] == [
        {"code": 6023, "name": "QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED"}
    ]


def test_an_unknown_rule_is_bad_usage() -> None:
    """An unknown rule is refused, and the message says how to list all rules."""
    with pytest.raises(UsageError, match="'Q9' is not a rule; `qnnmem lpai rules` lists all"):
        output("rules", "Q9")


def test_a_rule_about_programs_is_explained_where_it_is_asked_for() -> None:
    """`lpai rules C5` is refused, but the refusal explains rule C5 of check-client."""
    with pytest.raises(UsageError, match=r"C5 .*check-client.*not on the stack.*make it static"):
        output("rules", "c5")
