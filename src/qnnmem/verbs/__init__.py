"""Verbs implement the commands: each takes options and returns a result.

The command line and the workbench call them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from qnnmem.planner import Progress


class ProgressListener(Protocol):
    """Receives the progress of a verb, e.g. a progress bar or a status line."""

    def __call__(self, progress: Progress, /) -> None:
        """Receive a progress report of the planner."""
        ...

    def say(self, doing: str, /) -> None:
        """Receive a description of the current step."""
        ...

    def note(self, line: str, /) -> None:
        """Receive a remark that is not part of the result."""
        ...


class VerbCall(NamedTuple):
    """Context of a call to a verb: progress listener, words typed by the user, known options."""

    listener: ProgressListener
    words: tuple[str, ...] = ()  # the typed command without the program's name
    flags: frozenset[str] | None = None  # options of the verb, for suggested commands
