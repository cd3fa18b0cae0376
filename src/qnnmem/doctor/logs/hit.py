"""Type of a log line that matches a template."""

from __future__ import annotations

import msgspec

Values = tuple[int | str, ...]


class Hit(msgspec.Struct, frozen=True, gc=False):
    """Log line with the templates that it matches."""

    offset: int  # offset of the line's first byte
    number: int  # line number from 1, counted from the start of reading
    pid: int | None
    time: float | None
    text: bytes
    found: list[tuple[int, Values]]
    opens: bool = True  # True: one of them makes an incident
