"""Handles that are alive: what each stands for, which handle owns it, and where it was freed.

A key names one handle of one process. The table knows nothing of QNN: programs under check, watched
programs and the emulated `QnnMem` keep their handles in one each.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Freed = TypeVar("Freed")


class HandleTable(Generic[Key, Value, Freed]):
    """Living handles by key, and the latest that were freed.

    `Freed` is what is kept of a handle that is gone, e.g. the line that freed it.
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
        """Go through keys and values; handles may come and go meanwhile."""
        return iter(tuple(self._alive.items()))

    def values(self) -> tuple[Value, ...]:
        """Return what all living handles stand for."""
        return tuple(self._alive.values())

    def get(self, key: Key) -> Value | None:
        """Return what a living handle stands for."""
        return self._alive.get(key)

    def add(self, key: Key, value: Value, owner: Key | None = None) -> None:
        """Keep a new handle; a key that was freed before is alive again."""
        self._drop(key)
        self._freed.pop(key, None)
        self._alive[key] = value
        if owner is not None:
            self._owner[key] = owner
            self._owned.setdefault(owner, {})[key] = None

    def free(self, key: Key, freed: Freed | None = None) -> Value | None:
        """Drop a handle and return its object; None if it is not alive.

        What belongs to it stays alive until it is freed itself.
        """
        gone = self._drop(key)
        if gone is not None and freed is not None:
            self._freed[key] = freed
            if len(self._freed) > self._most_freed:
                del self._freed[next(iter(self._freed))]
        return gone

    def freed(self, key: Key) -> Freed | None:
        """Return the record of a freed handle."""
        return self._freed.get(key)

    def owned(self, key: Key) -> tuple[Key, ...]:
        """Return the living handles that belong to one, alive or not."""
        return tuple(self._owned.get(key, ()))

    def disown(self, key: Key) -> tuple[Key, ...]:
        """Return the living handles that belong to one, and let them belong to none."""
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
