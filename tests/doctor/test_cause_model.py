"""The learned model: its file, and its limits."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

from qnnmem.doctor import cause_model
from qnnmem.doctor.cause_model import CauseModel, Guess, features, guess, normal
from qnnmem.doctor.kb.entry import CAUSES, is_memory

DATA = resources.files("qnnmem.doctor.kb").joinpath(cause_model.FILE).read_bytes()


def test_the_file_is_small() -> None:
    """The model file is smaller than 1 MB, as every wheel holds it."""
    assert len(DATA) < 1_000_000


def test_classes_are_those_of_the_doctor() -> None:
    """Every class of the model is a cause or an outcome that the doctor knows."""
    heads = CauseModel(DATA).header.heads
    assert tuple(heads) == cause_model.HEADS
    assert set(heads["cause"].classes) <= set(CAUSES)
    assert set(heads["outcome"].classes) == {"failing", "healthy", "foreign"}


@pytest.mark.parametrize("bad", [b"", b"{}", DATA[:-1], DATA + b"x", b"\x00" * 100])
def test_a_broken_file_is_refused(bad: bytes) -> None:
    """A truncated or damaged model file is refused."""
    with pytest.raises(ValueError, match=r"."):
        CauseModel(bad)


def test_probabilities_add_up_and_the_likeliest_is_first() -> None:
    """The probabilities of every head add up to one and are sorted."""
    made = guess('dlopen failed: library "libQnnHtpV75Skel.so" not found')
    for odds in (made.outcomes, made.sides, made.causes, made.stages, made.decides):
        values = list(odds.values())
        assert abs(sum(values) - 1) < 1e-9
        assert values == sorted(values, reverse=True)


def test_it_says_why() -> None:
    """The model names the words of the line with the largest weight."""
    made = guess('dlopen failed: library "libQnnHtpV75Skel.so" not found')
    assert made.cause == "skel_missing"
    assert "skel" in made.words
    assert not is_memory(made.cause)


@pytest.mark.parametrize("text", ["", " ", "\x00\x00", "1" * 10_000, "é" * 5000, "a" * 50_000])
def test_any_text_is_answered(text: str) -> None:
    """Empty, long and meaningless texts get an answer."""
    assert isinstance(guess(text), Guess)


def test_times_processes_and_folders_do_not_count() -> None:
    """Times, processes and folders do not change the features of a line."""
    one = "01-02 03:04:05.678  1234  5678 E /data/app/one/libQnnHtp.so: map failed"
    other = "11-12 13:14:15.999   987   654 E /home/me/two/x/libQnnHtp.so: map failed"
    assert features(one) == features(other)
    assert "data" not in normal(one)


def test_numpy_is_not_needed() -> None:
    """The model runs without NumPy, whose import takes longer than reading a small log."""
    code = (
        "import sys; from qnnmem.doctor.cause_model import guess; guess('QNN failed');"
        "sys.exit('numpy' in sys.modules or 'sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
