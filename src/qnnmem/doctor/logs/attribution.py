"""Attribution of sessions without a process id to the process that they concern.

Kernel lines and program output have no process id. If exactly one process failed nearby, these
lines are about that process: the kernel gives the reason for a failed mapping, the program reports
only the failure. A session is attributed only when all sessions near it are known, so the result
does not depend on when it is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qnnmem.doctor.logs.session import NEAR, LogSession


class Attribution:
    """Assigns each session without a process to the only process that failed nearby.

    Closed sessions are stored until their neighbours are known. Storage does not grow with the log.
    Two neighbours are enough to know that a session is not joined to any process. All sessions that
    wait for the same growing session are merged into one.
    """

    def __init__(self) -> None:
        # Sessions with their first and last offset before other sessions were joined to them.
        self._named: list[tuple[int, int, LogSession]] = []
        self._nameless: list[LogSession] = []
        # Sessions to join to a growing session when it closes, by its process and first offset.
        self._owed: dict[tuple[int | None, int], LogSession] = {}

    def put(
        self, closed: Iterable[LogSession], still_open: Iterable[LogSession]
    ) -> Iterator[LogSession]:
        """Take newly closed sessions; yield the sessions that can no longer change."""
        for session in closed:
            if session.pid:
                self._named.append((session.first, session.last, session))
                if owed := self._owed.pop((session.pid, session.first), None):
                    session.join(owed)
            else:
                self._nameless.append(session)
        named: list[LogSession] = []
        nameless: list[LogSession] = []
        for session in still_open:
            (named if session.pid else nameless).append(session)
        yield from self._settle_nameless(named)
        for session in nameless:
            session.crowded = session.crowded or len(self._near(session, named)[0]) > 1
        waiting = [s.first for s in (*nameless, *self._nameless) if not s.crowded]
        yield from self._hand_out(min(waiting, default=None))

    def _near(
        self, session: LogSession, growing: Iterable[LogSession]
    ) -> tuple[list[LogSession], bool]:
        """Return up to two neighbours that have a process, and whether another might still come."""
        near = []
        for first, last, other in self._named:
            if first - session.last <= NEAR and session.first - last <= NEAR:
                near.append(other)
                if len(near) > 1:
                    return near, False
        undecided = False
        for other in growing:
            if other.first - session.last <= NEAR:
                if session.first - other.last > NEAR:
                    undecided = True
                else:
                    near.append(other)
        return near[:2], undecided

    def _settle_nameless(self, growing: list[LogSession]) -> Iterator[LogSession]:
        """Join sessions without a process to their only neighbour; yield those with none or two."""
        left = []
        for session in sorted(self._nameless, key=lambda s: s.first):
            near, undecided = ([], False) if session.crowded else self._near(session, growing)
            if undecided and len(near) < 2:
                left.append(session)  # a growing process may reach it
            elif len(near) != 1:
                yield session
            else:
                self._give(session, near[0], growing)
        self._nameless = left

    def _give(self, session: LogSession, to: LogSession, growing: list[LogSession]) -> None:
        """Join a session to the session `to`, but only once `to` is closed."""
        if not any(to is other for other in growing):
            to.join(session)
            return
        owed = self._owed.setdefault((to.pid, to.first), session)
        if owed is not session:
            owed.join(session)

    def _hand_out(self, earliest: int | None) -> Iterator[LogSession]:
        """Yield sessions of processes to which no session without a process can be joined later."""
        left = []
        for row in sorted(self._named, key=lambda row: row[0]):
            if earliest is not None and earliest <= row[1] + NEAR:
                left.append(row)
            else:
                yield row[2]
        self._named = left
