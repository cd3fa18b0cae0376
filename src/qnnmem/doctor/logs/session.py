"""Lines of one process that belong together.

Two hits of a process are of one session when at most `NEAR` bytes lie between them, or at most
`REACH` bytes and `GAP` seconds: clocks jump, and quiet logs are short. Joining neighbours gives the
same sessions however a log was cut, because every field is a sum, a minimum or a maximum.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from qnnmem.doctor.logs.scanner import Hit

    Mark = list[Any]

NEAR = 64 << 10
REACH = 1 << 20
GAP = 5.0

# A template's first line in a session: times seen, offset, line number, part, text, values.
TIMES, OFFSET, NUMBER, PART, TEXT, VALUES = range(6)

_MAX_TEXT = 1000


class Session:
    """What was seen of one process, while it is still growing."""

    __slots__ = ("first", "first_time", "last", "last_time", "pid", "seen", "until")

    def __init__(self, pid: int | None, offset: int, time: float | None) -> None:
        self.pid = pid
        self.first = self.last = offset
        self.first_time = self.last_time = time
        self.seen: dict[int, Mark] = {}
        # Of the last line, those that open incidents first: offset, part and number.
        self.until: tuple[bool, int, int, int] = (False, -1, 0, 0)

    def add(self, hit: Hit, offset: int, part: int, base: int) -> None:
        """Takes a hit that is later than all before."""
        number = base + hit.number
        for template, values in hit.found:
            mark = self.seen.get(template)
            if mark is None:
                text = hit.text[:_MAX_TEXT]
                self.seen[template] = [1, offset, number, part, text, values]
            else:
                mark[TIMES] += 1
        self.last = offset
        self.until = max(self.until, (hit.opens, offset, part, number))
        if hit.time is not None:
            self.last_time = hit.time

    def join(self, other: Session) -> None:
        """Takes all that one more session of the same process has."""
        for template, mark in other.seen.items():
            mine = self.seen.get(template)
            if mine is None:
                self.seen[template] = mark
            else:
                times = mine[TIMES] + mark[TIMES]
                self.seen[template] = mine if mine[OFFSET] <= mark[OFFSET] else mark
                self.seen[template][TIMES] = times
        if other.last >= self.last:
            self.last = other.last
            self.last_time = other.last_time if other.last_time is not None else self.last_time
        self.until = max(self.until, other.until)
        if other.first < self.first:
            self.first, self.first_time = other.first, other.first_time

    def shift(self, offset: int, number: int, part: int) -> None:
        """Moves a session to where its range lies in the whole log."""
        self.first += offset
        self.last += offset
        opens, at, _, last = self.until
        self.until = (opens, at + offset, part, last + number)
        for mark in self.seen.values():
            mark[OFFSET] += offset
            mark[NUMBER] += number
            mark[PART] = part


def _together(gap: int, before: float | None, after: float | None) -> bool:
    if gap <= NEAR:
        return True
    return gap <= REACH and before is not None and after is not None and abs(after - before) <= GAP


class Sessions:
    """Groups what comes in order of offset; hands out what can no longer grow."""

    def __init__(self) -> None:
        self._open: dict[int | None, Session] = {}
        self._closed: list[Session] = []
        self._swept = 0

    def add(self, hit: Hit, offset: int, part: int, base: int) -> None:
        """Takes a hit; `offset` counts from the start of all parts."""
        session = self._open.get(hit.pid)
        if session is None or not _together(offset - session.last, session.last_time, hit.time):
            if session is not None:
                self._closed.append(session)
            session = self._open[hit.pid] = Session(hit.pid, offset, hit.time)
        session.add(hit, offset, part, base)

    def put(self, session: Session) -> None:
        """Takes a session of a range, later than those before of its process."""
        mine = self._open.get(session.pid)
        if mine is not None and _together(
            session.first - mine.last, mine.last_time, session.first_time
        ):
            mine.join(session)
            return
        if mine is not None:
            self._closed.append(mine)
        self._open[session.pid] = session

    @property
    def open(self) -> Iterable[Session]:
        """Sessions that may still grow."""
        return self._open.values()

    def closed(self, offset: int) -> list[Session]:
        """Sessions that nothing at or after this offset can join."""
        if offset - self._swept < REACH:
            return []
        self._swept = offset
        over = [s for s in self._open.values() if offset - s.last > REACH]
        for session in over:
            del self._open[session.pid]
        over += self._closed
        self._closed = []
        return over

    def finish(self) -> list[Session]:
        """All that is left."""
        over = [*self._open.values(), *self._closed]
        self._open.clear()
        self._closed = []
        return over
