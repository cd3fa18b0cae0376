"""Logs from threads that no entry was written from."""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from pathlib import Path

from qnnmem.doctor.kb.knowledge import built_in

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import fresh_logs
import generalise


@cache
def answers() -> list[fresh_logs.Answer]:
    """Ask the doctor about each."""
    return [fresh_logs.answer(log, built_in()) for log in fresh_logs.read_fresh()]


def test_no_cause_is_named_wrongly() -> None:
    """Undecided is allowed, a confident error is not."""
    wrong = [one.log.id for one in answers() if not all(right for _, right in one.named)]
    assert wrong == []


def test_what_was_looked_at_stays_right() -> None:
    """No failing log is passed over, and four of five causes are named."""
    seen = [one for one in answers() if not one.log.frozen]
    grades = Counter((one.log.decidable, one.grade) for one in seen)
    failing = [one.log.id for one in seen if one.grade == "silent"]
    assert failing == []
    causes = sum(count for (kind, _), count in grades.items() if kind == "cause")
    assert grades["cause", "right"] >= 0.8 * causes
    assert grades["healthy", "wrong"] == 0


def test_the_page_shows_these_numbers() -> None:
    """Of both parts; the frozen one is nowhere else."""
    page = generalise.PAGE.read_text("utf-8")
    for line in fresh_logs.tables(answers()):
        assert line in page, "run python tools/generalise.py"
