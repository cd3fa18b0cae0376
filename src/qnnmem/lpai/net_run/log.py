"""What a run prints: the lines of qnn-net-run, and beside them our own explanations.

The transcript goes to one stream, with the words of the real tool. Warnings and diagnostics of ours
go to another, so that a script that reads the transcript finds what it knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from qnnmem.errors import QnnError
from qnnmem.qnn.enums import LogLevel
from qnnmem.qnn.finding import Finding

Line = Callable[[str], None]

LEVELS = {level.name.lower(): level for level in LogLevel}
CODE = "<code>"  # in a failure text: the code that the failing call returned

_WORDS = {LogLevel.WARN: "WARNING"}
# The reason behind a code goes to the stream of explanations; the log of a device has the code.
_CODE_AND_REASON = re.compile(r"(\w+ \([0-9]+\))(?: \[\w+\])?: ")


class Console:
    """The two streams of a run; `level` is the most detailed one that is logged."""

    def __init__(self, level: LogLevel, out: Line, err: Line) -> None:
        self.level = level
        self._out, self._err = out, err
        self._start = monotonic()

    def say(self, text: str) -> None:
        """A line of the tool itself, whatever the level."""
        self._out(text)

    def log(self, level: LogLevel, text: str) -> None:
        """A line of the log, if its level is wanted."""
        if level <= self.level:
            elapsed_ms = (monotonic() - self._start) * 1000
            self._out(f"{elapsed_ms:.1f}ms [{_WORDS.get(level, level.name)}] {text}")

    def backend_log(self, level: LogLevel, text: str) -> None:
        """A line of the backend's log: an error shows its code, the reason is explained later."""
        match = _CODE_AND_REASON.match(text) if level is LogLevel.ERROR else None
        self.log(level, match[1] if match else text)

    def warn(self, sentence: str) -> None:
        """Something the user should know that changes no result."""
        self._err(f"warning: {sentence}")

    def note(self, text: str) -> None:
        """A line of explanation."""
        self._err(text)

    def explain(self, found: Finding) -> None:
        """A broken rule: its id, what happened, what to do."""
        cure = f"; {found.cure}" if found.cure else ""
        self._err(f"[{found.rule}] {found.sentence}{cure}")

    @contextmanager
    def failing_with(self, *texts: str) -> Iterator[None]:
        """Log the tool's own words for a failure inside the block, then let it pass."""
        try:
            yield
        except QnnError as exc:
            for text in texts:
                self.log(LogLevel.ERROR, text.replace(CODE, str(exc.code)))
            raise
