"""Several workers that take turns: one that is lost costs no result, only the time to redo it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from qnnmem.errors import WorkerError

_MOST_LOST = 2  # in a row: then a worker is left out
_MOST_TRIES = 3  # of one task, on workers that were sound before


class Closable(Protocol):
    """What a slot holds."""

    def close(self) -> None:
        """Give back what it holds."""
        ...


S = TypeVar("S", bound=Closable)
T = TypeVar("T")


@dataclass(slots=True)
class _Slot(Generic[S]):
    """One worker, made when it is first needed and again after it was lost."""

    make: Callable[[], S]
    made: S | None = None
    lost: int = 0  # times in a row

    def worker(self) -> S:
        if self.made is None:
            self.made = self.make()
        return self.made

    def close(self) -> None:
        made, self.made = self.made, None
        if made is not None:
            made.close()


class Slots(Generic[S]):
    """Workers for tasks of several threads, each with one task at a time."""

    def __init__(self, makers: Sequence[Callable[[], S]]) -> None:
        self._slots = [_Slot(make) for make in makers]
        self._free = list(self._slots)
        self._sound = len(self._slots)
        self._turn = threading.Condition()
        self._why = WorkerError("no worker is there")

    @property
    def count(self) -> int:
        """How many there are, those left out not counted."""
        return self._sound

    def use(self, task: Callable[[S], T]) -> T:
        """Have a task done by any worker; WorkerError when it is lost with every one that tries."""
        tries = 0
        while True:
            slot = self._take()
            was_sound = slot.lost == 0
            try:
                done = task(slot.worker())
            except WorkerError as exc:
                with suppress(Exception):
                    slot.close()
                slot.lost += 1
                self._give_back(slot, exc)
                # Of a worker that was lost before, the task is not suspected.
                tries += was_sound
                if tries >= min(_MOST_TRIES, 2 * len(self._slots)):
                    raise
            except BaseException:
                self._give_back(slot)
                raise
            else:
                slot.lost = 0
                self._give_back(slot)
                return done

    def close(self) -> None:
        """End all workers, also those at work."""
        for slot in self._slots:
            slot.close()

    def _take(self) -> _Slot[S]:
        """A free worker, one that was never lost first."""
        with self._turn:
            while self._sound and not self._free:
                self._turn.wait()
            if not self._sound:
                raise self._why
            self._free.sort(key=lambda slot: slot.lost)
            return self._free.pop(0)

    def _give_back(self, slot: _Slot[S], why: WorkerError | None = None) -> None:
        with self._turn:
            if why is not None and slot.lost >= _MOST_LOST:
                self._sound -= 1
                self._why = why
            else:
                self._free.append(slot)
            self._turn.notify_all()
