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
import robust_logs


@cache
def answers() -> list[fresh_logs.Answer]:
    """Ask the doctor about each."""
    return [fresh_logs.answer(log, built_in()) for log in fresh_logs.read_fresh()]


def test_no_cause_is_named_wrongly() -> None:
    """Undecided is allowed, a confident error is not."""
    wrong = [one.log.id for one in answers() if not all(right for _, right in one.named)]
    assert wrong == []


def test_what_was_looked_at_stays_right() -> None:
    """No failing log is passed over, and nine of ten causes and sides are told."""
    seen = [one for one in answers() if not one.log.frozen]
    grades = Counter((one.log.decidable, one.grade) for one in seen)
    failing = [one.log.id for one in seen if one.grade == "silent"]
    assert failing == []
    for kind in ("cause", "memory_only"):
        asked = sum(count for (one, _), count in grades.items() if one == kind)
        assert grades[kind, "right"] >= 0.9 * asked, kind
    assert grades["healthy", "wrong"] == 0


def test_each_log_stands_there_once() -> None:
    """A log that repeats another would count twice."""
    logs = fresh_logs.read_fresh()
    assert len({log.id for log in logs}) == len({log.text for log in logs}) == len(logs)
    ids = [log.id for log in (*robust_logs.failing_logs(), *robust_logs.healthy_logs())]
    assert len(set(ids)) == len(ids)


def test_a_part_stays_frozen() -> None:
    """Of each kind of failing log enough that nobody has looked at."""
    frozen = Counter(log.decidable for log in fresh_logs.read_fresh() if log.frozen)
    assert frozen["cause"] >= 30
    assert frozen["memory_only"] >= 18
    assert frozen["no"] >= 15


def test_the_page_shows_these_numbers() -> None:
    """Of both parts; the frozen one is nowhere else."""
    page = generalise.PAGE.read_text("utf-8")
    for line in fresh_logs.tables(answers()):
        assert line in page, "run python tools/generalise.py"
