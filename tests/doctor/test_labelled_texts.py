"""Labelled logs and messages, diagnosed as they are.

The doctor was trained on them, so this test detects regressions; `tools/train_doctor.py
--evaluate` measures new logs.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
from labelled_texts import Answer, Text, counted, of_doctor, read_texts
from seeds import share

from qnnmem.doctor.kb.knowledge import built_in

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

EACH = 6  # one of this many texts is tested


@cache
def texts() -> list[Text]:
    """Return a fixed share of the labelled texts."""
    return share(read_texts(), EACH)


@cache
def answers() -> dict[int, Answer]:
    """Return the doctor's answer for each text."""
    return {at: of_doctor(one, built_in()) for at, one in enumerate(texts())}


@pytest.mark.parametrize(
    ("row", "least"),
    [
        ("correct cause", 0.9),
        ("correct cause among the first three", 0.96),
        ("memory or not: correct", 0.9),
        ("correct cause at high confidence", 0.98),
        ("good runs: no failure reported", 0.95),
        ("other programs: no failure reported", 0.98),
    ],
)
def test_known_logs_stay_right(row: str, least: float) -> None:
    """The share of right answers reaches a minimum for each question."""
    right, asked = counted(texts(), answers())[row]
    assert right >= least * asked


def test_few_known_failures_are_passed_over() -> None:
    """At most 2 % of the failures with a QNN word are called healthy or foreign."""
    row = "failures: called healthy or foreign"
    lost, asked = counted(texts(), answers())[row]
    assert lost <= 0.02 * asked


def test_few_sides_of_messages_are_wrong() -> None:
    """At most 4 % of the messages get the wrong side; undecided is allowed."""
    told = [
        answers()[at].memory is (one.side == "memory")
        for at, one in enumerate(texts())
        if one.origin == "message" and one.side and answers()[at].memory is not None
    ]
    assert told.count(False) <= 0.04 * len(told)
    assert len(told) >= 100


def test_good_messages_alarm_hardly_anybody() -> None:
    """At most 5 % of the healthy messages raise an incident."""
    healthy = [
        answers()[at].alarmed
        for at, one in enumerate(texts())
        if one.origin == "message" and one.outcome == "healthy"
    ]
    assert sum(healthy) <= 0.05 * len(healthy)


def test_each_text_stands_there_once() -> None:
    """Each labelled text outside of logs is unique."""
    every = [one.text for one in read_texts() if one.origin != "log"]
    assert len(set(every)) == len(every)
