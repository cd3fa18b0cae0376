"""Whether a process is still the one that was looked into before.

Its number may be another's now, and a process can become another program (`exec`). The memory that
was opened then is that of the old one, and nothing can be read in it any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.client.memory import ClientMemory, Unreadable


@dataclass(frozen=True, slots=True)
class Presence:
    """Memory of a process, and an address where it has something from its beginning to its end."""

    memory: ClientMemory
    address: int

    def is_there(self) -> bool:
        """Not where the process has ended, or has become another program."""
        try:
            self.memory.read(self.address, 1)
        except Unreadable:
            return False
        return True


def presence(memory: ClientMemory) -> Presence:
    """Of a process as it is now: its lowest mapping is that of the program."""
    return Presence(memory, next((one.start for one in memory.mappings() if one.readable), 0))
