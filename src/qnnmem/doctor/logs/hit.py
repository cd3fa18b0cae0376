"""A line of a log that matches a template."""

from __future__ import annotations

import msgspec

Values = tuple[int | str, ...]


class Hit(msgspec.Struct, frozen=True, gc=False):
    """A line with templates that match it."""

    offset: int  # of the line's first byte
    number: int  # of the line, from 1, counted from where reading began
    pid: int | None
    time: float | None
    text: bytes
    found: list[tuple[int, Values]]
    opens: bool = True  # whether one of them makes an incident
