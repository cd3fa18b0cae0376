"""The rules of `kb/words.toml` hold in their own examples, and engines find what they read."""

from __future__ import annotations

import pytest

from qnnmem.doctor.logs import words
from qnnmem.doctor.logs.reading import FAILING, NAMES, OURS

RULES = words.rules("")


@pytest.mark.parametrize("rule", RULES, ids=[f"{n}-{one.name}" for n, one in enumerate(RULES)])
def test_a_rule_holds_in_its_examples(rule: words.WordRule) -> None:
    """Each line of `match`, none of `nomatch`; a rule without either proves nothing."""
    assert rule.match
    assert rule.nomatch
    assert [line for line in rule.match if not rule.search(line.encode())] == []
    assert [line for line in rule.nomatch if rule.search(line.encode())] == []


def test_texts_are_in_small_letters() -> None:
    """Lines are searched in small letters."""
    for texts in (OURS, NAMES, FAILING):
        assert all(text == text.lower() for text in texts)
        assert len(set(texts)) == len(texts)


def test_names_are_words_of_qnn() -> None:
    """What makes a long log one of QNN does so for a short one."""
    assert [name for name in NAMES if not words.rule("qnn").search(b" " + name + b" ")] == []
