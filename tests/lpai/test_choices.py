from __future__ import annotations

import re
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

from qnnmem.contract.rules import rules
from qnnmem.lpai.prepare_options import PrepareOptions
from qnnmem.lpai.profiles import ALIGNMENTS, Profile, choices
from qnnmem.lpai.runtime.heap import Heap, TcmPool
from qnnmem.qnn.codes import codes
from qnnmem.results.lpai import Choice

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lpai-choices.md"
every_choice = pytest.mark.parametrize("choice", choices().values(), ids=lambda c: c.id)


@every_choice
def test_a_choice_says_what_why_and_how_to_change_it(choice: Choice) -> None:
    """A choice states what, why and how to change it, in full sentences."""
    assert choice.section
    assert choice.what.endswith(".")
    assert choice.why.endswith(".")
    assert choice.override


@every_choice
def test_a_choice_names_only_fields_that_exist(choice: Choice) -> None:
    """The text on how to change a choice names only existing fields."""
    for kind in (Profile, PrepareOptions):
        named = re.findall(rf"\b{kind.__name__}\.(\w+)", choice.override)
        assert set(named) <= {field.name for field in fields(kind)}


@every_choice
def test_a_choice_names_only_parameters_that_exist(choice: Choice) -> None:
    """The text on how to change a choice names only existing parameters."""
    for kind in (TcmPool, Heap):
        for arguments in re.findall(rf"{kind.__name__}\(([^)]*)\)", choice.override):
            assert set(re.findall(r"(\w+)=", arguments)) <= set(signature(kind).parameters)


@every_choice
def test_a_choice_names_only_rules_and_codes_that_exist(choice: Choice) -> None:
    """Each rule id and each code in a choice exists."""
    assert set(re.findall(r"\b[RTXMHBPL]\d+\b", choice.what)) <= set(rules())
    assert {int(n) for n in re.findall(r"returns? (\d{4,5})\b", choice.what)} <= set(codes())


@every_choice
def test_the_page_has_every_choice(choice: Choice) -> None:
    """The reference page lists every choice with its text."""
    assert f"- `{choice.id}`: {choice.what}" in PAGE.read_text("utf-8").splitlines()


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
