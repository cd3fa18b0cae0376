"""Whether a process is still the one that was looked into before.

Its number may be another's now, and a process can become another program (`exec`). The memory that
was opened then is that of the old one, and nothing can be read in it any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.client.memory import ClientMemory, Unreadable


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
