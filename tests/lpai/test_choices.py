from __future__ import annotations

import re
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from qnnmem.contract.rules import rules
from qnnmem.lpai.prepare_options import PrepareOptions
from qnnmem.lpai.profiles import ALIGNMENTS, Profile, choices
from qnnmem.lpai.runtime.heap import Heap, TcmPool
from qnnmem.qnn.codes import codes

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lpai-choices.md"
EVERY = tuple(choices().values())


def test_a_choice_says_what_why_and_how_to_change_it() -> None:
    """A choice states what, why and how to change it, in full sentences."""
    for choice in EVERY:
        assert choice.section, choice.id
        assert choice.what.endswith("."), choice.id
        assert choice.why.endswith("."), choice.id
        assert choice.override, choice.id


@pytest.mark.parametrize("kind", [Profile, PrepareOptions])
def test_a_choice_names_only_fields_that_exist(kind: Any) -> None:
    """The text on how to change a choice names only existing fields."""
    for choice in EVERY:
        named = re.findall(rf"\b{kind.__name__}\.(\w+)", choice.override)
        assert set(named) <= {field.name for field in fields(kind)}, choice.id


@pytest.mark.parametrize("kind", [TcmPool, Heap])
def test_a_choice_names_only_parameters_that_exist(kind: type) -> None:
    """The text on how to change a choice names only existing parameters."""
    known = set(signature(kind).parameters)
    for choice in EVERY:
        for arguments in re.findall(rf"{kind.__name__}\(([^)]*)\)", choice.override):
            assert set(re.findall(r"(\w+)=", arguments)) <= known, choice.id


def test_a_choice_names_only_rules_and_codes_that_exist() -> None:
    """Each rule id and each code in a choice exists."""
    for choice in EVERY:
        assert set(re.findall(r"\b[RTXMHBPL]\d+\b", choice.what)) <= set(rules()), choice.id
        named = {int(n) for n in re.findall(r"returns? (\d{4,5})\b", choice.what)}
        assert named <= set(codes()), choice.id


def test_the_page_has_every_choice() -> None:
    """The reference page lists every choice with its text."""
    there = set(PAGE.read_text("utf-8").splitlines())
    assert {f"- `{choice.id}`: {choice.what}" for choice in EVERY} <= there


def test_sections_are_not_torn_apart() -> None:
    """Choices of one section are listed together."""
    sections = [choice.section for choice in choices().values()]
    changes = [a for a, b in zip(sections, [*sections[1:], ""], strict=True) if a != b]
    assert len(changes) == len(set(changes))


def test_the_alignment_choice_states_the_profiles() -> None:
    """The alignments in the text equal those in the code."""
    what = choices()["alignment-values"].what
    for name in ("conservative", "v4-era"):
        start, size = ALIGNMENTS[name]
        assert f"{name} ({start}/{size})" in what
    assert f"start alignment of {ALIGNMENTS['default'][0]} " in what
