"""What goes on while one waits: a bar where the terminal may be steered, else a plain line."""

from __future__ import annotations

import io
import sys

import pytest

from qnnmem.cli.progress import ProgressBar


class Screen(io.StringIO):
    """A terminal that keeps what it is told."""

    def isatty(self) -> bool:
        """Say yes."""
        return True


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says nothing of colour."""
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def watch(monkeypatch: pytest.MonkeyPatch) -> str:
    """What is shown of work that takes longer than a second."""
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
    """No colour, no cursor: one line that says what is going on."""
    monkeypatch.setenv(name, value)
    shown = watch(monkeypatch)
    assert "\x1b" not in shown
    assert shown.startswith("note: planning")
    assert shown.count("\n") == 1


@pytest.mark.usefixtures("_plain")
def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is taken away at the end."""
    assert "\x1b[?25l" in watch(monkeypatch)


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer is not even started."""
    made = io.StringIO()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ProgressBar("planning") as bar:
        assert not bar._timer.is_alive()
    assert made.getvalue() == ""
