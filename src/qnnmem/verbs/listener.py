"""How a verb reports progress and side notes to the door that called it."""

from __future__ import annotations

from typing import Protocol

from qnnmem.planner import Progress


class ProgressListener(Protocol):
    """Receives what a verb is doing: a progress bar on a terminal, a status line on the page."""

    def __call__(self, progress: Progress, /) -> None:
        """Take a progress report of the planner."""
        ...

    def say(self, doing: str, /) -> None:
        """Take what is under way."""
        ...

    def note(self, line: str, /) -> None:
        """Take a remark that is no part of the result."""
        ...
