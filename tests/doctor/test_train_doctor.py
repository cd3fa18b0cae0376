"""The labelled texts of the doctor, and that training on them gives the same bytes each time."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import train_doctor
from train_doctor import Answer, Matrix, Text, fit, fold_of, of_both, packed, read_texts

from qnnmem.doctor.cause_model import CauseModel, Guess

HEAT = dict.fromkeys(train_doctor.HEADS, 1.0)
SMALL, ROWS = 120, 500


def test_every_class_has_texts() -> None:
    """Failures, good runs and other programs; both sides."""
    texts = read_texts()
    outcomes = Counter(text.outcome for text in texts)
    assert outcomes["failing"] > outcomes["healthy"] > 300
    assert outcomes["foreign"] > 300
    assert {text.side for text in texts} == {"memory", "other", ""}


def test_a_repository_is_in_one_fold() -> None:
    """And a message that repeats a line of a log is in the fold of that log."""
    texts = read_texts()
    for folds in (2, 8):
        places: dict[str, set[int]] = {}
        for text in texts:
            places.setdefault(text.group, set()).add(fold_of(text, folds))
        assert all(len(one) == 1 for one in places.values())
    shared = [text for text in texts if text.origin == "message" and text.group != text.text]
    assert shared


def test_the_same_texts_give_the_same_bytes() -> None:
    """Also when they are read again; the weights are those that inference reads."""
    made = []
    for _ in range(2):
        every = read_texts()
        texts = every[:: len(every) // SMALL]
        made.append(packed(fit(texts, Matrix(texts), range(len(texts)), ROWS), HEAT, {}))
    assert made[0] == made[1]
    assert CauseModel(made[0]).header.rows == ROWS


def _guess(cause: str, odds: float, failing: float, memory: float) -> Guess:
    causes = {cause: odds, "timeout": 1 - odds}
    outcomes = {"failing": failing, "healthy": 1 - failing, "foreign": 0.0}
    sides = {"memory": memory, "other": 1 - memory}
    return Guess(outcomes, sides, causes, {"init": 1.0}, {"cause": 1.0, "open": 0.0}, ())


LIMITS = {"failing": 0.8, "cause_low": 0.6, "side": 0.7}
OPEN = Answer(True, (), (), None, False)


@pytest.mark.parametrize(
    ("doctor", "made", "causes", "memory"),
    [
        # The doctor's cause outranks the model's.
        (
            OPEN._replace(causes=("signing",), memory=False),
            _guess("skel_missing", 0.9, 0.9, 0.1),
            ("signing",),
            False,
        ),
        (OPEN, _guess("skel_missing", 0.9, 0.9, 0.1), ("skel_missing",), False),
        # Below the threshold only a side; without a failure nothing.
        (OPEN, _guess("mem_vtcm", 0.5, 0.9, 0.99), (), True),
        (OPEN, _guess("mem_vtcm", 0.9, 0.5, 0.99), (), None),
        (OPEN._replace(alarmed=False), _guess("mem_vtcm", 0.9, 0.9, 0.99), (), None),
        # A cause of the other side than a template told is not named.
        (OPEN._replace(memory=False), _guess("mem_vtcm", 0.9, 0.9, 0.99), (), False),
    ],
)
def test_what_the_model_adds(
    doctor: Answer, made: Guess, causes: tuple[str, ...], memory: bool | None
) -> None:
    """Only where the doctor names no cause, and only what it is sure of."""
    both = of_both(doctor, made, LIMITS)
    assert (both.causes, both.memory) == (causes, memory)


def test_counts_are_of_logs_alone() -> None:
    """A message is no log, and a foreign text has no cause."""
    log = Text("r", "x", "failing", "memory", ("mem_vtcm",), "graph", True, "log")
    texts = [log, log._replace(origin="message"), log._replace(outcome="foreign", origin="foreign")]
    right = Answer(True, ("mem_vtcm",), ("mem_vtcm",), True, True)
    rows = train_doctor.counted(texts, dict.fromkeys(range(3), right))
    assert rows["cause"] == rows["side"] == rows["high confidence right"] == (1, 1)
    assert rows["foreign quiet"] == (0, 1)
