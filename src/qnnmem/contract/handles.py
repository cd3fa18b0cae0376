"""Live handles: the object of each handle, its owner, and a record of freed handles.

A key names one handle of one process. The table does not depend on QNN: checked programs, watched
programs and the emulated `QnnMem` each use a table for their handles.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Freed = TypeVar("Freed")


class HandleTable(Generic[Key, Value, Freed]):
    """Live handles by key, and the latest freed handles.

    `Freed` is the type of the record stored for a freed handle, e.g. a source line.
    """

    def __init__(self, most_freed: int = 65_536) -> None:
        self._alive: dict[Key, Value] = {}
        self._owner: dict[Key, Key] = {}
        self._owned: dict[Key, dict[Key, None]] = {}
        self._freed: dict[Key, Freed] = {}
        self._most_freed = most_freed

    def __contains__(self, key: object) -> bool:
        return key in self._alive

    def __len__(self) -> int:
        return len(self._alive)

    def __iter__(self) -> Iterator[tuple[Key, Value]]:
        """Iterate over a snapshot of keys and values; handles can be added or freed meanwhile."""
        return iter(tuple(self._alive.items()))

    def values(self) -> tuple[Value, ...]:
        """Return the objects of all live handles."""
        return tuple(self._alive.values())

    def get(self, key: Key) -> Value | None:
        """Return the object of a live handle; None if the handle is not alive."""
        return self._alive.get(key)

    def add(self, key: Key, value: Value, owner: Key | None = None) -> None:
        """Add a new handle; its key can be that of a freed handle."""
        self._drop(key)
        self._freed.pop(key, None)
        self._alive[key] = value
        if owner is not None:
            self._owner[key] = owner
            self._owned.setdefault(owner, {})[key] = None

    def free(self, key: Key, freed: Freed | None = None) -> Value | None:
        """Remove a handle and return its object; return None if the handle is not alive.

        Handles that this handle owns stay alive until they are freed themselves.
        """
        gone = self._drop(key)
        if gone is not None and freed is not None:
            self._freed[key] = freed
            if len(self._freed) > self._most_freed:
                del self._freed[next(iter(self._freed))]
        return gone

    def freed(self, key: Key) -> Freed | None:
        """Return the record of a freed handle; None if the table has no record of this handle."""
        return self._freed.get(key)

    def owned(self, key: Key) -> tuple[Key, ...]:
        """Return the live handles that a handle owns, even if the owner is already freed."""
        return tuple(self._owned.get(key, ()))

    def disown(self, key: Key) -> tuple[Key, ...]:
        """Return the live handles that a handle owns, and leave them without an owner."""
        parts = tuple(self._owned.pop(key, ()))
        for part in parts:
            self._owner.pop(part, None)
        return parts

    def _drop(self, key: Key) -> Value | None:
        owner = self._owner.pop(key, None)
        if owner is not None:
            siblings = self._owned.get(owner, {})
            siblings.pop(key, None)
            if not siblings:
                self._owned.pop(owner, None)
        return self._alive.pop(key, None)
