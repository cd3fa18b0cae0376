"""The rules of `kb/words.toml`: their examples, and their texts."""

from __future__ import annotations

import pytest

from qnnmem.doctor.logs import words
from qnnmem.doctor.logs.reading import FAILING, NAMES, OURS, may_name_qnn

RULES = words.rules("")


@pytest.mark.parametrize("rule", RULES, ids=[f"{n}-{one.name}" for n, one in enumerate(RULES)])
def test_a_rule_holds_in_its_examples(rule: words.WordRule) -> None:
    """Each rule matches its `match` lines and none of its `nomatch` lines."""
    assert rule.match
    assert rule.nomatch
    assert [line for line in rule.match if not rule.search(line.encode())] == []
    assert [line for line in rule.nomatch if rule.search(line.encode())] == []


def test_texts_are_in_small_letters() -> None:
    """The rules' texts are unique and in lower case, as lines are searched in lower case."""
    for texts in (OURS, NAMES, FAILING):
        assert all(text == text.lower() for text in texts)
        assert len(set(texts)) == len(texts)


def test_names_are_words_of_qnn() -> None:
    """Every QNN name also matches a rule for short logs."""
    assert [name for name in NAMES if not may_name_qnn(b" " + name + b" ")] == []
