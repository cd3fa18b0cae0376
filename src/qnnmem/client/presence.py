"""Whether a process is still the one that was looked into before.

Its number may be another's now, and a process can become another program (`exec`). The memory that
was opened then is that of the old one, and nothing can be read in it any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from qnnmem.client.memory import ClientMemory, Unreadable
from qnnmem.client.wire import TurnedAway

MOST_PROCESSES = 256  # of one run, ended ones too


@dataclass(frozen=True, slots=True)
class Presence:
    """Memory of a process, and where it has its program from beginning to end; 0: not known."""

    memory: ClientMemory
    address: int

    def is_there(self) -> bool:
        """Not where the process has ended, or has become another program."""
        try:
            return not self.address or bool(self.memory.read(self.address, 1))
        except Unreadable:
            return False


def presence(memory: ClientMemory) -> Presence:
    """Of a process as it is now."""
    maps = (one for one in memory.mappings() if one.readable and one.path == memory.program)
    return Presence(memory, next((one.start for one in maps), 0))


class LookedInto(Protocol):
    """A process, its memory opened."""

    @property
    def memory(self) -> ClientMemory:
        """Its memory."""

    def is_there(self) -> bool:
        """Not where it has ended, or has become another program."""


One = TypeVar("One", bound=LookedInto)


class KnownProcesses(Generic[One]):
    """Processes that have said hello, by number; a number may be another process's later."""

    def __init__(self) -> None:
        self._now: dict[int, One] = {}
        self._gone: list[One] = []  # whose numbers others have now
        self._lock = threading.Lock()

    def find(self, pid: int, look_into: Callable[[], One]) -> One:
        """The process with this number, looked into when it is a new one."""
        with self._lock:
            found = self._now.get(pid)
            if found is not None and not found.is_there():
                self._gone.append(found)
                found = None
            if found is None:
                if len(self._now) + len(self._gone) >= MOST_PROCESSES:
                    raise TurnedAway(f"{MOST_PROCESSES:,} processes of one program")
                try:
                    found = self._now[pid] = look_into()
                except OSError as exc:
                    why = (exc.strerror or str(exc)).lower()
                    raise TurnedAway(f"a process cannot be looked into ({why})") from exc
            return found

    def now(self) -> tuple[One, ...]:
        """Those that have their numbers still."""
        with self._lock:
            return tuple(self._now.values())

    def close(self) -> None:
        """Look into none any more; only when nobody uses their memory."""
        for one in (*self.now(), *self._gone):
            one.memory.close()
