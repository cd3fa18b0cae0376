"""How long each call into the backend takes; the format of the file is our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

FILE_NAME = "qnn-profiling-data_0.log"

# Single calls that are listed; an endless run must not fill memory with its own measurements.
_MAX_LISTED = 10_000


class ApiTimes:
    """Durations by API function."""

    def __init__(self, level: str | None) -> None:
        self._level = level
        self._totals: dict[str, list[int]] = {}  # calls, total, shortest, longest in ns
        self._single: list[tuple[str, int]] = []

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measures the block as one call of `name`."""
        start = perf_counter_ns()
        try:
            yield
        finally:
            self._add(name, perf_counter_ns() - start)

    def report(self, producer: str) -> str:
        """All of it as text, the shortest unit being a microsecond."""
        lines = [f"# {producer}: time per API call in microseconds; this format is its own"]
        lines.append(
            f"{'api':<32} {'calls':>8} {'total':>12} {'average':>10} {'min':>10} {'max':>10}"
        )
        for name, (calls, total, low, high) in self._totals.items():
            numbers = (total / calls, low, high)
            shown = " ".join(f"{ns / 1000:>10.1f}" for ns in numbers)
            lines.append(f"{name:<32} {calls:>8} {total / 1000:>12.1f} {shown}")
        if self._level == "detailed":
            lines += ["", "# every call in order"]
            lines += [f"{name:<32} {ns / 1000:.1f}" for name, ns in self._single]
            if len(self._single) == _MAX_LISTED:
                lines.append(f"# later calls than these {_MAX_LISTED} are not listed")
        return "\n".join(lines) + "\n"

    def _add(self, name: str, duration: int) -> None:
        found = self._totals.setdefault(name, [0, 0, duration, duration])
        found[0] += 1
        found[1] += duration
        found[2], found[3] = min(found[2], duration), max(found[3], duration)
        if len(self._single) < _MAX_LISTED:
            self._single.append((name, duration))
