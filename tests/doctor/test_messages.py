"""Messages of one line in people's own words."""

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
def grades() -> Counter[tuple[bool, str, str]]:
    """How many of each kind went how."""
    return Counter(
        (one.held_out, one.side, grade) for one, grade in fresh_logs.graded_messages(built_in())
    )


def test_sides_are_told() -> None:
    """Nine of ten of those that were looked at, eight of ten of the others; few are wrong."""
    for held_out, least in ((False, 0.9), (True, 0.8)):
        asked = [
            (grade, count)
            for (held, side, grade), count in grades().items()
            if held is held_out and side in ("memory", "other")
        ]
        every = sum(count for _, count in asked)
        assert sum(count for grade, count in asked if grade == "right") >= least * every
        assert sum(count for grade, count in asked if grade == "wrong") <= 0.05 * every


def test_good_news_alarms_nobody() -> None:
    """Sizes, counts of no errors and things that are loaded; one in ten that nobody looked at."""
    for held_out, most in ((False, 0.0), (True, 0.1)):
        told: Counter[str] = Counter()
        for (held, side, grade), count in grades().items():
            if held is held_out and side == "healthy":
                told[grade] += count
        assert told["wrong"] <= most * told.total()


def test_no_message_stands_there_twice() -> None:
    """A message that is learned from would not be held out."""
    texts = [one.text for one in fresh_logs.read_messages()]
    assert len(set(texts)) == len(texts)


def test_the_page_shows_these_numbers() -> None:
    """Of both parts."""
    page = generalise.PAGE.read_text("utf-8")
    for line in fresh_logs.messages(built_in()):
        assert line in page, "run python tools/generalise.py"
