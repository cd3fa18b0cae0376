"""Texts that a regular expression requires: a line without them cannot match."""

from __future__ import annotations

import re

import pytest
from labelled_texts import read_texts

from qnnmem.doctor.kb.required import alternatives, required
from qnnmem.doctor.logs import words

EVERY = 8  # one of this many labelled lines is tried, as whole expressions are slow

KNOWN: dict[str, set[str]] = {
    r"\bfail(?:s|ed)?\b": {"fail"},
    r"\bnot (?:found|installed)\b": {"found", "installed"},
    r"[0-9]+ ?ms": {"ms"},
    r"errors?": {"error"},
    r"(?:err)?or|and": {"or", "and"},
    r"(?<!not )(?!un)done": {"done"},
    r"a[]|x]b+c": {"c"},
    r"x{0,3}yz{2}": {"yz"},
    r"say \x27hi\x27\.": {"say 'hi'."},
    r"(?P<one>ab) (?P=one)": {"ab"},
    r"\(\|\)": {"(|)"},
}


@pytest.mark.parametrize("pattern", KNOWN)
def test_the_longest_fixed_piece_is_required(pattern: str) -> None:
    """The longest fixed text is required, or one text per alternative."""
    assert set(required(pattern) or ()) == KNOWN[pattern]


@pytest.mark.parametrize("pattern", [r"\w+", "a?", "(?:ab|[0-9]+)", "[ab]c?", "."])
def test_nothing_is_known_of_an_expression_without_a_fixed_piece(pattern: str) -> None:
    """An expression without fixed text requires nothing, so every line is tried."""
    assert required(pattern) is None


def test_an_expression_is_split_at_its_own_choices_only() -> None:
    """An expression is split only at its top-level alternatives."""
    assert alternatives(r"a(?:b|c)|[|]\||d") == ["a(?:b|c)", r"[|]\|", "d"]


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """Return lines of labelled texts in lower case."""
    every = dict.fromkeys(line for text in read_texts() for line in text.text.lower().splitlines())
    return [line.encode("utf-8", "replace") for line in list(every)[::EVERY]]


@pytest.mark.parametrize("rule", words.rules(""), ids=lambda rule: rule.name)
def test_a_rule_finds_what_its_whole_expression_finds(
    rule: words.WordRule, lines: list[bytes]
) -> None:
    """A rule finds and removes the same as its whole expression, in every labelled line."""
    whole = re.compile("|".join(one.pattern for one in rule.any).encode())
    for line in lines:
        assert rule.search(line) == bool(whole.search(line)), line
        assert rule.removed(line) == whole.sub(b" ", line), line
