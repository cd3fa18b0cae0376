"""Memory that the application owns and the runtime uses: its address, size and whether it is gone.

A lease keeps the bytes mapped, so that a buffer freed too early is a finding and not a crash. That
the owner let go of it shows in two ways: a heap buffer was freed, or nobody but the lease refers to
the Python object (or to anything it is a view of) any more.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qnnmem.errors import UsageError
from qnnmem.lpai.heap import HeapBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Lease:
    """Bytes of somebody else: any object with the buffer protocol, or a heap buffer."""

    __slots__ = ("_heap", "address", "array", "readonly", "size")

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
                f"a {type(memory).__name__} is no memory; give an object with the buffer protocol "
                "in one piece, such as a numpy array, a bytearray or an mmap"
            ) from exc
        self.readonly = view.readonly
        self.array: NDArray[Any] = numpy.frombuffer(view, numpy.uint8)
        self.size = self.array.size
        self.address: int = self.array.__array_interface__["data"][0]

    @property
    def is_released(self) -> bool:
        """Whether the owner has let go of the memory."""
        if self._heap is not None:
            return self._heap.freed
        return not any(_others_hold(owner) for owner in _owners(self.array.base))

    @property
    def heap(self) -> HeapBuffer | None:
        """The heap buffer behind it, if it is one."""
        return self._heap

    def overlaps(self, other: Lease) -> bool:
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


def _others_hold(box: list[Any]) -> bool:
    return sys.getrefcount(box[0]) > _HELD_BY_US


def _calibrate() -> int:
    """How many references this module itself accounts for, measured on an object of nobody else."""
    owners = _owners(memoryview(bytearray(1)))
    next(owners)
    return sys.getrefcount(next(owners)[0])


_HELD_BY_US = _calibrate()
