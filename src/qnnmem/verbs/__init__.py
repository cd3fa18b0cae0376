"""What each verb does: options in, result out, for the command line and for the workbench."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from qnnmem.planner import Progress


class ProgressListener(Protocol):
    """Receives what a verb is doing: a progress bar on a terminal, a status line on the page."""

    def __call__(self, progress: Progress, /) -> None:
        """Take a progress report of the planner."""
        ...

    def say(self, doing: str, /) -> None:
        """Receive the current step."""
        ...

    def note(self, line: str, /) -> None:
        """Take a remark that is no part of the result."""
        ...


class VerbCall(NamedTuple):
    """What a verb knows of the door that called it."""

    listener: ProgressListener
    words: tuple[str, ...] = ()  # the command as it would be typed, without the program's name
    flags: frozenset[str] | None = None  # options of the verb, for remedies that can be pasted
