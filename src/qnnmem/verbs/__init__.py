"""Verbs implement the commands: each takes options and returns a result.

The command line and the workbench call the verbs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from qnnmem.units import format_size

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


def progress_words(progress: Progress) -> str:
    """Return a progress report of the planner in one line."""
    best, bound = format_size(progress.peak), format_size(progress.lower_bound)
    return f"{progress.doing}; best so far {best}, lower bound {bound}"


class VerbCall(NamedTuple):
    """Context of a call to a verb: progress listener, typed command, options of the verb."""

    listener: ProgressListener
    words: tuple[str, ...] = ()  # the typed command without the program's name
    flags: frozenset[str] | None = None  # options of the verb, for suggested commands
