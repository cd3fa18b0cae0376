"""Progress: a bar on terminals that accept control codes, otherwise a plain line."""

from __future__ import annotations

import io
import sys

import pytest

from qnnmem.cli.progress import ProgressBar


class Screen(io.StringIO):
    """A fake terminal that records its output."""

    def isatty(self) -> bool:
        """Return true."""
        return True


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove every variable about colour from the environment."""
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def watch(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the output for work that takes longer than a second."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with ProgressBar("planning\x1b[31m") as bar:
        bar._start()  # as the timer does
        bar.say("trying")
    return screen.getvalue()


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize(
    ("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("CLICOLOR", "0")]
)
def test_a_terminal_without_colour_is_not_steered(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal without colour gets one plain line without control codes."""
    monkeypatch.setenv(name, value)
    shown = watch(monkeypatch)
    assert "\x1b" not in shown
    assert shown.startswith("note: planning")
    assert shown.count("\n") == 1


@pytest.mark.usefixtures("_plain")
def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets a bar, which hides the cursor."""
    assert "\x1b[?25l" in watch(monkeypatch)


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets no progress, and the timer is not started."""
    made = io.StringIO()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ProgressBar("planning") as bar:
        assert not bar._timer.is_alive()
    assert made.getvalue() == ""
