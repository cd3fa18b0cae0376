"""Memory that one context has registered: byte ranges of files, each file mapped once.

Each backend has its own requirements for descriptors and its own error codes. This module contains
the part of `QnnMem_register` and `QnnMem_deRegister` that is the same for all backends:

    register    all descriptors or none; tensors in one file share its mapping
    deregister  every registered handle, even if another handle is not registered
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from qnnmem.errors import Fault, UsageError
from qnnmem.qnn.enums import DataType, HtpMemType, MemRegisterType
from qnnmem.text import quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAMED = 4  # tensors named in a sentence
FileId = tuple[int, int]  # device and inode: an fd may be closed and its number reused
Descriptor = TypeVar("Descriptor")


@dataclass(frozen=True, slots=True)
class SharedFile:
    """An open file descriptor, the identity of its file, and the file's size."""

    fd: int
    id: FileId
    size: int


@dataclass(frozen=True, slots=True)
class SharedRange:
    """The range of a shared file that holds a tensor."""

    file: SharedFile
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class MemDescription:
    """A tensor's location: the members of `Qnn_MemDescriptor_t` and of HTP's descriptor."""

    dimensions: tuple[int, ...]
    data_type: DataType
    fd: int
    mem_type: int = MemRegisterType.ION
    htp_type: int = HtpMemType.SHARED_BUFFER  # for CUSTOM
    total_size: int = 0  # for CUSTOM, which requires it: bytes of the whole buffer
    offset: int = 0  # for CUSTOM; refused with ION, which has no offset


@dataclass(frozen=True, eq=False, slots=True)
class MappedBytes:
    """A range of a shared file and its mapped bytes."""

    fd: int
    file: FileId
    offset: int
    view: memoryview


@dataclass(frozen=True, eq=False, slots=True)
class MemHandle(MappedBytes):
    """`Qnn_MemHandle_t`: one tensor's bytes in a shared file."""

    size: int
    mapped: mmap.mmap

    @property
    def array(self) -> NDArray[Any]:
        """The bytes as a NumPy array, without a copy."""
        import numpy

        try:
            return numpy.frombuffer(self.view, numpy.uint8)
        except ValueError as exc:
            raise UsageError("this memory handle was deregistered") from exc

    @property
    def is_freed(self) -> bool:
        """True if the file descriptor was closed, or now belongs to another file."""
        try:
            status = os.fstat(self.fd)
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self.file

    @property
    def is_shortened(self) -> bool:
        """True if the file has become too short for the tensor, so that access would crash."""
        return self.mapped.size() < self.offset + self.size


class RegisteredMemory:
    """The handles of one context, in the order of their registration."""

    def __init__(self) -> None:
        self._handles: list[MemHandle] = []

    def __contains__(self, handle: object) -> bool:
        return any(known is handle for known in self._handles)

    @property
    def handles(self) -> tuple[MemHandle, ...]:
        """All registered handles."""
        return tuple(self._handles)

    @property
    def mapped_bytes(self) -> int:
        """Total size of all mappings in bytes."""
        mappings = {id(handle.mapped): handle.mapped for handle in self._handles}
        return sum(map(len, mappings.values()))

    def in_file(self, file: SharedFile) -> tuple[MemHandle, ...]:
        """Return the handles of tensors in one file."""
        return tuple(handle for handle in self._handles if handle.file == file.id)

    def register(
        self,
        descriptors: Iterable[Descriptor],
        check: Callable[[Descriptor], SharedRange],
    ) -> list[MemHandle]:
        """Return a handle for each descriptor; if `check` or a mapping fails, register none.

        Raise Fault for a file that cannot be mapped.
        """
        before = len(self._handles)
        try:
            for descriptor in descriptors:
                self._handles.append(self._map(check(descriptor)))
        except BaseException:
            for handle in self._handles[before:]:
                self._release(handle)
            raise
        return self._handles[before:]

    def deregister(self, handles: Iterable[object]) -> int:
        """Deregister every registered handle; return how many handles were not registered."""
        unknown = 0
        for handle in handles:
            if isinstance(handle, MemHandle) and handle in self:
                self._release(handle)
            else:
                unknown += 1
        return unknown

    def _map(self, place: SharedRange) -> MemHandle:
        """Return the handle of a tensor; a file is mapped once, so each byte has one address."""
        file = place.file
        known = (handle.mapped for handle in self.in_file(file))
        mapped = next((mapping for mapping in known if len(mapping) >= file.size), None)
        if mapped is None:
            try:
                mapped = mmap.mmap(file.fd, file.size)
            except (OSError, ValueError, OverflowError) as exc:  # a folder, or not writable
                raise Fault(f"fd {file.fd} cannot be mapped: {exc}") from exc
        view = memoryview(mapped)[place.offset : place.offset + place.size]
        return MemHandle(file.fd, file.id, place.offset, view, place.size, mapped)

    def _release(self, handle: MemHandle) -> None:
        self._handles.remove(handle)
        with suppress(BufferError):  # still in use: unmapped with the last view
            handle.view.release()
        if all(other.mapped is not handle.mapped for other in self._handles):
            with suppress(BufferError):
                handle.mapped.close()


def shared_file(fd: int) -> SharedFile:
    """Return the file of a descriptor; raise Fault if it is closed or empty."""
    try:
        status = os.fstat(fd)
    except (OSError, TypeError, OverflowError) as exc:
        raise Fault("is not open") from exc
    if status.st_size == 0:
        raise Fault("has no bytes to map")
    return SharedFile(fd, (status.st_dev, status.st_ino), status.st_size)


def tensor_bytes(dimensions: Sequence[int], data_type: int) -> int | None:
    """Return the size of a tensor in bytes; None for a type without a size."""
    if data_type not in set(DataType) or not DataType(data_type).bits:
        return None
    return DataType(data_type).nbytes(math.prod(dimensions))


def mixed_sentence(graph: str, tensors: Sequence[tuple[str, int]], *, is_shared: bool) -> str:
    """Return a sentence about tensors that were prepared for one memory type but use another.

    `is_shared` is True if the execution used memory handles.
    """
    names = ", ".join(quote(name) for name, _ in tensors[:_NAMED])
    more = f" and {len(tensors) - _NAMED:,} more" if len(tensors) > _NAMED else ""
    subject = f"tensors of graph {quote(graph)} ({names}{more})"
    size = f"{sum(number for _, number in tensors):,} bytes"
    if is_shared:
        return (
            f"{subject} were prepared raw but executed with memory handles: {size} are reserved "
            "and never used"
        )
    return (
        f"{subject} were prepared for memory handles but executed raw: {size} are reserved in "
        "the first execution and copied in each"
    )
