"""The log of a run: the lines of qnn-net-run, explanations, and durations of API calls.

The lines that the real tool would print go to one stream, warnings and diagnostics to another, so
that scripts can parse the lines of the tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter_ns

from qnnmem.errors import QnnError
from qnnmem.finding import Finding
from qnnmem.qnn.enums import LogLevel

Line = Callable[[str], None]

LEVELS = {level.name.lower(): level for level in LogLevel}
PROFILE_NAME = "qnn-profiling-data_0.log"
CODE = "<code>"  # in a failure text: stands for the code that the failed call returned

_WORDS = {LogLevel.WARN: "WARNING"}
# The explanation of an error shows its reason; the log of a device shows only its code.
_CODE_AND_REASON = re.compile(r"(\w+ \([0-9]+\))(?: \[\w+\])?: ")

# Limit on single calls that are listed, so that an endless run does not fill memory.
_MAX_LISTED = 10_000


class Console:
    """The two streams of a run; `level` is the most detailed level that is logged."""

    def __init__(self, level: LogLevel, out: Line, err: Line) -> None:
        self.level = level
        self._out, self._err = out, err
        self._start = monotonic()

    def say(self, text: str) -> None:
        """Print a line of the real tool, whatever the log level."""
        self._out(text)

    def log(self, level: LogLevel, text: str) -> None:
        """Print a log line if its level is enabled."""
        if level <= self.level:
            elapsed_ms = (monotonic() - self._start) * 1000
            self._out(f"{elapsed_ms:.1f}ms [{_WORDS.get(level, level.name)}] {text}")

    def backend_log(self, level: LogLevel, text: str) -> None:
        """Log a line of the backend; if it is an error, log only the code.

        The reason of an error is printed later.
        """
        if level is LogLevel.INFO and self.level < LogLevel.DEBUG:
            return  # the documentation shows lines about the TCM pool only with --log_level debug
        match = _CODE_AND_REASON.match(text) if level is LogLevel.ERROR else None
        self.log(level, match[1] if match else text)

    def warn(self, sentence: str) -> None:
        """Print a warning; it does not affect the results."""
        self._err(f"warning: {sentence}")

    def note(self, text: str) -> None:
        """Print an explanation."""
        self._err(text)

    def explain(self, found: Finding) -> None:
        """Print a finding: the rule's id, what happened, and the cure."""
        cure = f"; {found.cure}" if found.cure else ""
        self._err(f"[{found.rule}] {found.sentence}{cure}")

    @contextmanager
    def failing_with(self, *texts: str) -> Iterator[None]:
        """Log the tool's texts for a QnnError raised in the block, and re-raise it."""
        try:
            yield
        except QnnError as exc:
            for text in texts:
                self.log(LogLevel.ERROR, text.replace(CODE, str(exc.code)))
            raise


class ApiTimes:
    """Durations of calls, by API function, for a file in qnnmem's own format."""

    def __init__(self, level: str | None) -> None:
        self._level = level
        # By name: the number of calls, then total, minimum and maximum in ns.
        self._totals: dict[str, tuple[int, int, int, int]] = {}
        self._single: list[tuple[str, int]] = []

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure the duration of the block, and record it as one call of `name`."""
        start = perf_counter_ns()
        try:
            yield
        finally:
            self.add(name, perf_counter_ns() - start)

    def report(self, producer: str) -> str:
        """Return the text of the file of durations, in microseconds."""
        lines = [f"# {producer}: time per API call in microseconds; the format is qnnmem's own"]
        lines.append(
            f"{'api':<32} {'calls':>8} {'total':>12} {'average':>10} {'min':>10} {'max':>10}"
        )
        for name, (calls, total, low, high) in self._totals.items():
            numbers = (total / calls, low, high)
            shown = " ".join(f"{ns / 1000:>10.1f}" for ns in numbers)
            lines.append(f"{name:<32} {calls:>8} {total / 1000:>12.1f} {shown}")
        if self._level == "detailed":
            lines += ["", "# all calls in order"]
            lines += [f"{name:<32} {ns / 1000:.1f}" for name, ns in self._single]
            if len(self._single) == _MAX_LISTED:
                lines.append(f"# calls after the first {_MAX_LISTED} are not listed")
        return "\n".join(lines) + "\n"

    def add(self, name: str, duration: int) -> None:
        """Add one call with its duration in nanoseconds."""
        calls, total, low, high = self._totals.get(name, (0, 0, duration, duration))
        low, high = min(low, duration), max(high, duration)
        self._totals[name] = (calls + 1, total + duration, low, high)
        if len(self._single) < _MAX_LISTED:
            self._single.append((name, duration))
