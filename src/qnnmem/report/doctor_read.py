"""What was read to come to a diagnosis, as the outputs need it."""

from __future__ import annotations

# Lines of healthy runs that look like failures: entry, title, how often they were seen.
Harmless = tuple[str, str, int]


class Read:
    """The logs and how much they were; what was wrong with them.

    A plain class: defining a named tuple took 7 % of the instructions for a small log.
    """

    __slots__ = ("bytes", "files", "incidents", "lines", "noise", "notes", "seconds")

    def __init__(
        self,
        files: tuple[str, ...],
        lines: int,
        size: int,
        seconds: float,
        incidents: int,
        noise: tuple[Harmless, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> None:
        self.files, self.lines, self.bytes, self.seconds = files, lines, size, seconds
        self.incidents, self.noise, self.notes = incidents, noise, notes
