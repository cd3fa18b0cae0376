"""The bytes that living graphs and contexts hold: what is handed over next must lie beside them.

In C all of it is often cut from one block by offset, and one wrong offset makes two things share
bytes. Who shares what is looked up here; what that means is for the rules.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from qnnmem.lpai.runtime.client_buffer import ClientBuffer


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory that must not be used for anything else."""

    what: str  # "scratch", "persistent" or "binary"
    owner: str  # name of the graph; empty for a binary
    buffer: ClientBuffer
    holder: Holder

    @property
    def label(self) -> str:
        """For a sentence about it."""
        return f"{self.what} of graph {self.owner[:80]!r}" if self.owner else f"a {self.what}"


class Holder(Protocol):
    """A graph or a context."""

    def holdings(self) -> Iterable[Holding]:
        """What it holds now; nothing once its context is freed."""

    def lends(self, start: int, end: int) -> bool:
        """Whether these bytes of its scratch are an input or output that it told the place of."""


class _Holders:
    """Everybody who holds memory, and a number that changes whenever somebody's memory does."""

    def __init__(self) -> None:
        self._all: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._lock = Lock()
        self.version = 0

    def changed(self, holder: Holder) -> None:
        """Look at what this one holds from now on."""
        with self._lock:
            self._all.add(holder)
            self.version += 1

    def touching(self, buffer: ClientBuffer) -> Iterator[Holding]:
        """Whatever shares a byte with a buffer."""
        with self._lock:
            everybody = list(self._all)
        for holder in everybody:
            yield from (held for held in holder.holdings() if held.buffer.overlaps(buffer))


holders = _Holders()
