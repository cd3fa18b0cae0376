"""The labelled texts of the doctor, and reproducible training."""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

# Found but not imported, as the import takes two seconds.
if find_spec("sklearn") is None:
    pytest.skip("sklearn trains the model", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import train_doctor
from labelled_texts import Answer, Text, counted, fold_of, read_texts
from train_doctor import Fits, Matrix, answering_with, fit, packed

from qnnmem.doctor import cause_model
from qnnmem.doctor.cause_model import CauseModel

SMALL, ROWS = 160, 500
texts_of_tree = cache(read_texts)


def test_every_class_has_texts() -> None:
    """The texts cover failing, healthy and foreign logs, and both sides."""
    texts = texts_of_tree()
    outcomes = Counter(text.outcome for text in texts)
    assert outcomes["failing"] > outcomes["healthy"] > 300
    assert outcomes["foreign"] > 300
    assert {text.side for text in texts} == {"memory", "other", ""}


def test_a_repository_is_in_one_fold() -> None:
    """All texts of a repository are in one fold, and so are messages that repeat its lines."""
    texts = texts_of_tree()
    for folds in (2, 8):
        places: dict[str, set[int]] = {}
        for text in texts:
            places.setdefault(text.group, set()).add(fold_of(text, folds))
        assert all(len(one) == 1 for one in places.values())
    shared = [text for text in texts if text.origin == "message" and text.group != text.text]
    assert shared


def test_the_same_texts_give_the_same_bytes() -> None:
    """Training twice on the same texts gives the same bytes."""
    made = []
    for _ in range(2):
        every = read_texts()
        texts = every[:: len(every) // SMALL]
        made.append(packed(fit(texts, Matrix(texts), range(len(texts)), ROWS)))
    assert made[0] == made[1]
    assert CauseModel(made[0]).header.rows == ROWS


def test_the_doctor_asks_the_model_of_a_fold() -> None:
    """While a fold is evaluated, the doctor uses the fold's model, then the stored model again."""
    other = CauseModel(resources.files("qnnmem.doctor.kb").joinpath(cause_model.FILE).read_bytes())
    other.header = msgspec.structs.replace(other.header, thresholds={"side": 9.0})
    with answering_with(other):
        assert cause_model.threshold("side") == 9.0
    assert cause_model.threshold("side") < 1


def test_a_part_is_evaluated() -> None:
    """Trained on two eighths of the repositories, the doctor reaches its minimum on another."""
    texts = [one for one in texts_of_tree() if fold_of(one, 8) in range(3)]
    found = train_doctor.evaluate(Fits(texts, Matrix(texts), 8, 7 * ROWS), (0,))
    rows = {name: counted(texts, found[name]) for name in train_doctor.COLUMNS}
    for row, least in (
        ("correct cause", 0.7),
        ("correct cause at high confidence", 0.95),
        ("other programs: no failure reported", 0.85),
    ):
        right, asked = rows["together"][row]
        assert right >= least * asked, row
    assert "| correct cause |" in "\n".join(train_doctor.report(texts, found))


def test_counts_are_of_logs_alone() -> None:
    """Messages and foreign texts do not count in the shares of logs."""
    log = Text("r", "x", "failing", "memory", ("mem_vtcm",), "graph", True, "log")
    texts = [log, log._replace(origin="message"), log._replace(outcome="foreign", origin="foreign")]
    right = Answer(True, ("mem_vtcm",), ("mem_vtcm",), True, True)
    rows = counted(texts, dict.fromkeys(range(3), right))
    for row in "correct cause", "memory or not: correct", "correct cause at high confidence":
        assert rows[row] == (1, 1), row
    assert rows["other programs: no failure reported"] == (0, 1)
