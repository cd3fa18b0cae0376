"""The verbs: options in, result out, for the command line and for the workbench."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from qnnmem.planner import Progress


class ProgressListener(Protocol):
    """Receives the progress of a verb: a progress bar on a terminal, a status line on the page."""

    def __call__(self, progress: Progress, /) -> None:
        """Take a progress report of the planner."""
        ...

    def say(self, doing: str, /) -> None:
        """Receive the current step."""
        ...

    def note(self, line: str, /) -> None:
        """Take a remark that is not part of the result."""
        ...


class VerbCall(NamedTuple):
    """The caller of a verb, as far as the verb needs to know it."""

    listener: ProgressListener
    words: tuple[str, ...] = ()  # the command as it would be typed, without the program's name
    flags: frozenset[str] | None = None  # options of the verb, for remedies that can be pasted
