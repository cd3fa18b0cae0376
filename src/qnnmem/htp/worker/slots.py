"""Several workers that take turns: one that is lost costs no result, only the time to redo it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from qnnmem.errors import WorkerError

_MOST_UNMADE = 2  # failures in a row to start a worker: then it is left out
_MOST_LOST = 3  # tasks in a row with which a worker was lost: then it is left out
_MOST_TRIES = 3  # of one task: then the task is at fault


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
    unmade: int = 0  # times in a row
    lost: set[object] = field(default_factory=set)  # tasks since the last that went well

    @property
    def is_sound(self) -> bool:
        """Whether it is worth another try."""
        return self.unmade < _MOST_UNMADE and len(self.lost) < _MOST_LOST

    def worker(self) -> S:
        if self.made is None:
            self.unmade += 1
            self.made = self.make()
            self.unmade = 0
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
        tries, name = 0, object()
        while True:
            slot = self._take()
            try:
                done = task(slot.worker())
            except WorkerError as exc:
                if slot.made is not None:  # else the task has not even begun
                    tries += 1
                    slot.lost.add(name)
                with suppress(Exception):
                    slot.close()
                self._give_back(slot, exc)
                if tries >= _MOST_TRIES:
                    raise
            except BaseException:
                self._give_back(slot)
                raise
            else:
                slot.lost.clear()
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
            self._free.sort(key=lambda slot: (slot.unmade, len(slot.lost)))
            return self._free.pop(0)

    def _give_back(self, slot: _Slot[S], why: WorkerError | None = None) -> None:
        with self._turn:
            if why is not None and not slot.is_sound:
                self._sound -= 1
                self._why = why
            else:
                self._free.append(slot)
            self._turn.notify_all()
