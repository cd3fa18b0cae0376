"""Memory that the application owns and the runtime uses: its address, size and whether it is gone.

The bytes stay mapped as long as the runtime refers to them, so that a buffer freed too early is a
finding and not a crash. That the owner let go of it shows in two ways: a heap buffer was freed, or
nothing but the runtime refers to the Python object (or to anything it is a view of) any more. Parts
of one block are judged together: the block is there as long as the application holds the block or
any of its parts.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from qnnmem.errors import UsageError
from qnnmem.lpai.runtime.heap import HeapBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ClientBuffer:
    """The application's bytes: any object with the buffer protocol, or a heap buffer."""

    __slots__ = ("__weakref__", "_base", "_group", "_heap", "address", "array", "readonly", "size")

    def __init__(self, memory: Any) -> None:
        import numpy

        self._heap = memory if isinstance(memory, HeapBuffer) else None
        try:
            view = memoryview(memory.view if self._heap is not None else memory)
            view = view.cast("B") if view.nbytes else memoryview(b"")
            if _holds_objects(memory) or _holds_objects(view.obj):
                raise TypeError  # raw bytes there would be taken for pointers
        except (TypeError, ValueError, BufferError, NotImplementedError) as exc:
            raise UsageError(
                f"a {type(memory).__name__} cannot be used as memory; give an object with the "
                "buffer protocol in one piece, such as a numpy array, a bytearray or an mmap"
            ) from exc
        self.readonly = view.readonly
        self.array: NDArray[Any] = numpy.frombuffer(view, numpy.uint8)
        self._base = self.array.base  # slices of the array, ours or not, do not count as owners
        self._group: WeakSet[ClientBuffer] | None = None
        self.size = self.array.size
        self.address: int = self.array.__array_interface__["data"][0]

    @property
    def is_released(self) -> bool:
        """Whether the owner has let go of the memory."""
        if self._heap is not None:
            return self._heap.freed
        others = len(self._group) - 1 if self._group is not None else 0
        most = _HELD_BY_ONE + others  # the usual answer, quickly: more than all of ours together
        if any(sys.getrefcount(owner[0]) > most for owner in _owners(self._base)):
            return False
        with _registry:
            together = {self, *(self._group or ())}
        return not _held([buffer._base for buffer in together])

    def watch(self) -> ClientBuffer:
        """Count the runtime's own reference when another part of the same block is judged."""
        if self._heap is None:
            *_, root = (id(owner[0]) for owner in _owners(self._base))
            with _registry:
                self._group = _groups.setdefault(root, WeakSet())
                self._group.add(self)
        return self

    @property
    def heap(self) -> HeapBuffer | None:
        """The heap buffer behind it, if it is one."""
        return self._heap

    def overlaps(self, other: ClientBuffer) -> bool:
        """Whether the two share a byte."""
        ends = self.address + self.size, other.address + other.size
        return self.address < ends[1] and other.address < ends[0]


def _owners(memory: Any) -> Iterator[list[Any]]:
    """The object behind a buffer, then what that is a view of, and so on.

    Each comes alone in a list: a list adds one reference that is known, a variable of the caller
    would add one that depends on the version of Python.
    """
    box = [memory]
    while box[0] is not None:
        if isinstance(box[0], memoryview):
            # All memoryviews of one export share a managed buffer, slices of slices included.
            yield gc.get_referents(box[0])
        else:
            yield box
        box = [_behind(box[0])]


def _behind(memory: Any) -> Any:
    if isinstance(memory, memoryview):
        return memory.obj
    lent = getattr(memory, "_objects", None)  # what an array of ctypes was made from
    return (
        next(iter(lent.values()), None) if isinstance(lent, dict) else getattr(memory, "base", None)
    )


def _holds_objects(memory: Any) -> bool:
    return bool(getattr(getattr(memory, "dtype", None), "hasobject", False))


def _held(bases: list[Any]) -> bool:
    """Whether anybody but these views, which are all of one block, holds any part of it."""
    holders = _holders(bases)
    return any(
        sys.getrefcount(owner[0]) > _HELD_BY_ONE + len(holders[id(owner[0])]) - 1
        for base in bases
        for owner in _owners(base)
    )


def _holders(bases: list[Any]) -> dict[int, set[int]]:
    """What refers to each object among the views; ids only, because a variable would count."""
    found: dict[int, set[int]] = {}
    for base in bases:
        above = id(base)
        for owner in _owners(base):
            found.setdefault(id(owner[0]), set()).add(above)
            above = id(owner[0])
    return found


def _calibrate() -> int:
    """How many references one view accounts for, measured on an object that nothing else holds."""
    owners = _owners(memoryview(bytearray(1)))
    next(owners)
    return sys.getrefcount(next(owners)[0])


_HELD_BY_ONE = _calibrate()

# By the object at the bottom of what they are views of. A group goes with its last buffer.
_groups: WeakValueDictionary[int, WeakSet[ClientBuffer]] = WeakValueDictionary()
_registry = Lock()
