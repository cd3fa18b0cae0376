"""Which process a session without one belongs to.

Kernel lines and program output carry no process id. Where exactly one process failed close by, they
are about it: the kernel says why a mapping failed, the program only that it did. Nothing is decided
before everything that could touch a session is known, so the answer does not depend on when it is
asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qnnmem.doctor.logs.session import NEAR, LogSession


class Attribution:
    """Gives sessions without a process to the one process that failed close by.

    Closed sessions are held back until their neighbours are known.
    """

    def __init__(self) -> None:
        # Each with its first and last offset before anything joined it.
        self._named: list[tuple[int, int, LogSession]] = []
        self._nameless: list[LogSession] = []

    def put(
        self, closed: Iterable[LogSession], still_open: Iterable[LogSession]
    ) -> Iterator[LogSession]:
        """Takes closed sessions; hands out those that are settled."""
        for session in closed:
            if session.pid:
                self._named.append((session.first, session.last, session))
            else:
                self._nameless.append(session)
        growing = list(still_open)
        yield from self._settle_nameless([s.first for s in growing if s.pid])
        waiting = [s.first for s in growing if not s.pid]
        waiting += [s.first for s in self._nameless]
        yield from self._hand_out(min(waiting, default=None))

    def _settle_nameless(self, growing: list[int]) -> Iterator[LogSession]:
        """Joins each to its one neighbour; without one it stands for itself."""
        left = []
        for session in sorted(self._nameless, key=lambda s: s.first):
            if any(first <= session.last + NEAR for first in growing):
                left.append(session)  # a process that is still growing may reach it
                continue
            near = [
                other
                for first, last, other in self._named
                if first - session.last <= NEAR and session.first - last <= NEAR
            ]
            if len(near) == 1:
                near[0].join(session)
            else:
                yield session
        self._nameless = left

    def _hand_out(self, earliest: int | None) -> Iterator[LogSession]:
        """Named sessions that no nameless one can join any more."""
        left = []
        for row in sorted(self._named, key=lambda row: row[0]):
            if earliest is not None and earliest <= row[1] + NEAR:
                left.append(row)
            else:
                yield row[2]
        self._named = left
