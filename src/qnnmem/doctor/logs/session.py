"""Sessions: groups of related lines from one process.

Two hits of a process are in one session if they are at most `NEAR` bytes apart, or at most `REACH`
bytes and `GAP` seconds apart. The distance in bytes counts first: clocks jump, and quiet logs
are short. For lines that name no process, the limit is `CLOSE` bytes; otherwise all failures in a
long log could become one incident. Joining neighbours gives the same sessions wherever a log was
cut, because every field is a sum, a minimum or a maximum.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from qnnmem.doctor.logs.header import is_chosen, lines_of
from qnnmem.doctor.logs.line import Hit, Values

CLOSE = 8 << 10
NEAR = 64 << 10
REACH = 1 << 20
GAP = 5.0

# Number of lines per template from which a captured number is stored. A pool counts 32 allocations:
# with more lines, some allocations were freed without a line, and the sum is meaningless.
_MAX_COUNTED = 64
_MAX_TEXT = 1000
_SWEEP = REACH // 2  # a log may consist of sessions: remove closed ones early


class Sighting(msgspec.Struct, gc=False):
    """Line template that occurs in a session: how often, and the first matching line."""

    times: int
    offset: int
    line: int  # number of the line in its part
    part: int
    text: bytes
    values: Values  # captured values
    # Only for a template whose numbers are summed: offset and captured number of its first lines.
    counted: list[tuple[int, int]] = []
    calm: bool = False  # only in lines at info or debug level, which open no incident


class LogSession(msgspec.Struct):
    """Session: matching lines of one process; it can grow until it is closed."""

    pid: int | None
    first: int  # offset of the first line
    last: int  # offset of the last line
    first_time: float | None
    last_time: float | None
    seen: dict[int, Sighting] = {}  # by template number
    # Last line, preferably one that opens an incident: whether it does, offset, part and number.
    until: tuple[bool, int, int, int] = (False, -1, 0, 0)
    crowded: bool = False  # for a session without a process: several processes failed nearby
    context: bytes = b""  # a short log, without the lines of other processes

    @property
    def reach(self) -> int:
        """Maximum distance, in bytes, at which a further line can join."""
        return NEAR if self.last_time is None else REACH

    def join(self, other: LogSession) -> None:
        """Merge into `self` a session of the same process, or one attributed to that process."""
        for template, theirs in other.seen.items():
            mine = self.seen.get(template)
            if mine is None:
                self.seen[template] = theirs
            else:
                times = mine.times + theirs.times
                counted = sorted(mine.counted + theirs.counted)[:_MAX_COUNTED]
                first = mine if mine.offset <= theirs.offset else theirs
                first.times, first.counted = times, counted
                first.calm = mine.calm and theirs.calm
                self.seen[template] = first
        if other.last >= self.last:
            self.last = other.last
            self.last_time = other.last_time if other.last_time is not None else self.last_time
        self.until = max(self.until, other.until)
        if other.first < self.first:
            self.first, self.first_time = other.first, other.first_time

    def shift(self, offset: int, number: int, part: int) -> None:
        """Convert the positions of a session from its range to the whole log."""
        self.first += offset
        self.last += offset
        opens, at, _, last = self.until
        self.until = (opens, at + offset, part, last + number)
        for sighting in self.seen.values():
            sighting.offset += offset
            sighting.line += number
            sighting.part = part
            sighting.counted = [(at + offset, count) for at, count in sighting.counted]


def _together(session: LogSession, offset: int, after: float | None) -> bool:
    gap, before = offset - session.last, session.last_time
    if gap <= CLOSE or session.pid is None:
        return gap <= CLOSE
    if gap <= NEAR:
        return True
    return gap <= REACH and before is not None and after is not None and abs(after - before) <= GAP


class SessionGrouper:
    """Groups hits into sessions and returns closed sessions; hits must come in order of offset."""

    def __init__(self, counting: Container[int] = ()) -> None:
        self._counting = counting  # templates whose numbers are summed
        self._open: dict[int | None, LogSession] = {}
        self._closed: list[LogSession] = []
        self.sweep = _SWEEP  # offset from which `closed` is worth calling

    def add(self, hit: Hit, offset: int, part: int, base: int) -> None:
        """Add a hit after all hits so far; `offset` counts from the start of the first part."""
        pid = hit.pid or None  # kernel lines belong to the lines without a process
        time, opens, number, counting = hit.time, hit.opens, base + hit.number, self._counting
        session = self._open.get(pid)
        if session is None or (
            offset - session.last > CLOSE and not _together(session, offset, time)
        ):
            if session is not None:
                self._closed.append(session)
            session = self._open[pid] = LogSession(pid, offset, offset, time, time)
        seen = session.seen
        for template, values in hit.found:
            known = seen.get(template)
            if known is None:
                text = hit.text[:_MAX_TEXT]
                known = seen[template] = Sighting(1, offset, number, part, text, values)
                known.calm = not opens
            else:
                known.times += 1
                if opens:
                    known.calm = False
            if template in counting and len(known.counted) < _MAX_COUNTED:
                known.counted.append((offset, int(values[0])))
        session.last = offset
        if opens or not session.until[0]:
            session.until = (opens, offset, part, number)
        if time is not None:
            session.last_time = time

    def put(self, session: LogSession) -> None:
        """Add a session from a range; it must start after all sessions of its process so far."""
        mine = self._open.get(session.pid)
        if mine is not None and _together(mine, session.first, session.first_time):
            mine.join(session)
            return
        if mine is not None:
            self._closed.append(mine)
        self._open[session.pid] = session

    @property
    def open(self) -> Iterable[LogSession]:
        """Sessions that can still grow, and closed sessions that have not been returned yet."""
        return (*self._open.values(), *self._closed)

    def closed(self, offset: int) -> list[LogSession]:
        """Remove and return the sessions that no line at or after `offset` can join."""
        if offset < self.sweep:
            return []
        self.sweep = offset + _SWEEP
        over = [s for s in self._open.values() if offset - s.last > s.reach]
        for session in over:
            del self._open[session.pid]
        # A closed session without a process waits until every process that fails near it is known.
        over += [s for s in self._closed if s.pid or offset - s.last > NEAR]
        self._closed = [s for s in self._closed if not s.pid and offset - s.last <= NEAR]
        return over

    def finish(self, log: bytes = b"") -> list[LogSession]:
        """Remove and return all remaining sessions; `log` is the whole log if it is short."""
        over = [*self._open.values(), *self._closed]
        for session in over:
            own = lines_of(log, session.pid)
            session.context = session.context or (own if is_chosen(own) else b"")
        self._open.clear()
        self._closed = []
        return over
