from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
from seeds import share

from qnnmem.doctor.kb.knowledge import Knowledge, built_in

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import doctor_cases  # noqa: E402 - in the path set above
from doctor_cases import Case, embedded, grade, incidents, plainly  # noqa: E402
from doctor_log import STYLES  # noqa: E402
from left_out import Base  # noqa: E402

CASES = doctor_cases.read_cases()
NOISY = share(list(enumerate(CASES)), 5)
NOISE_LINES = 1000
FEW_LINES = 100  # for the styles that are not tested at full length


@cache
def knowledge() -> Knowledge:
    """Return the knowledge base, read once."""
    return built_in()


@cache
def base() -> Base:
    """Return the base of sources, built once."""
    return Base(CASES)


def by_id(case: Case) -> str:
    """Return the id of a case."""
    return case.id


def settled(case: Case, log: bytes) -> str:
    """Return the grade; a wrong answer with low confidence is tolerated."""
    found = incidents(log, knowledge())
    given = grade(case, found)
    sure = [one for one in found if one.confidence != "low"]
    return "right" if given == "right" or grade(case, sure) != "wrong" else given


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_stored_log_is_diagnosed(case: Case) -> None:
    """A stored log gets its expected verdict; a healthy log gets no confident incident."""
    assert settled(case, plainly(case)) == "right"


def test_most_stored_logs_are_right_without_allowance() -> None:
    """At least 90 % of the stored logs are right without tolerating guesses."""
    grades = [grade(case, incidents(plainly(case), knowledge())) for case in CASES]
    assert grades.count("right") >= 0.9 * len(grades)


def test_last_lines_do_not_mislead() -> None:
    """With only the last 8 lines, at most 2 % of the logs are diagnosed wrongly."""
    wrong = [case.id for case in CASES if settled(case, plainly(case.last(8))) != "right"]
    assert len(wrong) <= 0.02 * len(CASES), wrong


@pytest.mark.parametrize(("number", "case"), NOISY, ids=[one.id for _, one in NOISY])
def test_noise_changes_nothing(number: int, case: Case) -> None:
    """A failure inside a busy log of any style gets the same verdict as alone."""
    lines = dict.fromkeys(STYLES, FEW_LINES) | {STYLES[number % len(STYLES)]: NOISE_LINES}
    grades = {style: settled(case, embedded(case, style, count)) for style, count in lines.items()}
    assert grades == dict.fromkeys(STYLES, "right")


@pytest.mark.parametrize("style", STYLES)
def test_noise_alone_is_healthy(style: str) -> None:
    """Noise without a failure gives no incident."""
    quiet = Case("quiet", "generated", "healthy", "init", "benign_noise", False, ())
    assert incidents(embedded(quiet, style, 5 * NOISE_LINES), knowledge()) == []


def test_a_source_left_out_takes_its_own_templates_along() -> None:
    """Without a source, templates that only this source supports are not used."""
    source = max({case.source for case in CASES}, key=base().dropped)
    gone = {line for line, sources in base().supporters.items() if sources == {source}}
    left = {line for lines in base().without(source).anchors.values() for line in lines}
    assert gone
    assert not gone & left
