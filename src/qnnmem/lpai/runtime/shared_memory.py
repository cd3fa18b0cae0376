"""`QnnMem`: buffers that application and accelerator share, registered once, never copied."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from qnnmem.lpai.rules import finding
from qnnmem.lpai.runtime.backend import Backend, shown
from qnnmem.lpai.runtime.descriptors import MemDescriptor, MemInfoCustom
from qnnmem.qnn.enums import DataType, MemRegisterType

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, slots=True)
class MemHandle:
    """`Qnn_MemHandle_t`: one tensor's bytes in a shared buffer."""

    fd: int
    offset: int
    size: int
    array: NDArray[Any]
    mapped: mmap.mmap
    file: tuple[int, int]  # device and inode: an fd may be closed and its number used again

    @property
    def is_shortened(self) -> bool:
        """Whether the file lost bytes: touching them would end the process."""
        return self.mapped.size() < self.offset + self.size


class SharedMemory:
    """What a context has registered."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._handles: list[MemHandle] = []

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[MemHandle]:
        """All descriptors or none."""
        if not isinstance(descriptors, list | tuple):
            self._fail(8000, "M2", "a list of memory descriptors is expected")
        made: list[MemHandle] = []
        for descriptor in descriptors:
            made.append(self._map(descriptor, [*self._handles, *made]))
        self._handles += made
        return made

    def deregister(self, handles: Iterable[MemHandle]) -> None:
        """Every valid handle goes, even if another is invalid."""
        if not isinstance(handles, list | tuple):
            self._fail(8000, "M2", "a list of handles is expected", "QnnMem_deRegister")
        unknown = 0
        for handle in handles:
            if handle in self._handles:
                self._handles.remove(handle)
            else:
                unknown += 1
        if unknown:
            self._fail(
                8001, "M2", f"{unknown} handles are not registered here", "QnnMem_deRegister"
            )

    def __contains__(self, handle: object) -> bool:
        return handle in self._handles

    def _map(self, descriptor: MemDescriptor, known: list[MemHandle]) -> MemHandle:
        import numpy

        if not isinstance(descriptor, MemDescriptor):
            self._fail(8000, "M2", "a memory descriptor is expected")
        self._check_type(descriptor.mem_type)
        info, size = descriptor.custom_info, self._size(descriptor)
        is_place = isinstance(info, MemInfoCustom) and isinstance(info.fd, int)
        if not (is_place and _whole(info.offset)):
            self._fail(8000, "M2", "the descriptor does not say which fd and offset")
        file, room = self._file(info.fd)
        siblings = [handle for handle in known if handle.file == file]
        self._check_range(info, size, room, siblings)
        mapped = self._mapped(info.fd, room, siblings)
        array = numpy.frombuffer(mapped, numpy.uint8)[info.offset : info.offset + size]
        return MemHandle(info.fd, info.offset, size, array, mapped, file)

    def _mapped(self, fd: int, room: int, siblings: list[MemHandle]) -> mmap.mmap:
        """Memory of a file; the same bytes have one address, so that overlaps can be seen."""
        for other in siblings:
            if len(other.mapped) >= room:
                return other.mapped
        try:
            return mmap.mmap(fd, room)
        except (OSError, ValueError, OverflowError) as exc:  # a folder, or not open for writing
            self._fail(8003, "M2", f"fd {fd} cannot be mapped: {exc}")

    def _check_type(self, kind: int) -> None:
        if not isinstance(kind, int):
            self._fail(8000, "M2", f"{shown(kind)} is not a kind of memory")
        if kind not in self._backend.profile.register_types:
            name = MemRegisterType(kind).name if kind in set(MemRegisterType) else f"{kind:#x}"
            mode = self._backend.profile.mode.value
            self._fail(8005, "M4", f"memory of type {name} cannot be registered in {mode} mode")

    def _size(self, descriptor: MemDescriptor) -> int:
        dimensions = descriptor.dimensions
        if not (isinstance(dimensions, list | tuple) and _whole(*dimensions)):
            self._fail(8000, "M2", "the dimensions of the descriptor are not sizes")
        if not isinstance(descriptor.data_type, int):
            self._fail(8000, "M2", f"data type {shown(descriptor.data_type)} is no number")
        elements = math.prod(dimensions)
        if descriptor.data_type not in set(DataType) or not DataType(descriptor.data_type).bits:
            self._fail(8000, "M2", f"data type {shown(descriptor.data_type)} has no size")
        return DataType(descriptor.data_type).nbytes(elements)

    def _file(self, fd: int) -> tuple[tuple[int, int], int]:
        """Which file it is, and how many bytes it has."""
        try:
            found = os.fstat(fd)
        except (OSError, TypeError, OverflowError) as exc:
            self._fail(8003, "M2", f"fd {shown(fd)} is not open: {exc}")
        if found.st_size == 0:
            self._fail(8003, "M2", f"fd {fd} has no bytes that could be mapped")
        return (found.st_dev, found.st_ino), found.st_size

    def _check_range(
        self, info: MemInfoCustom, size: int, room: int, siblings: list[MemHandle]
    ) -> None:
        end = info.offset + size
        if end > room:
            sentence = (
                f"bytes {info.offset:,} to {end:,} of fd {info.fd} are {end - room:,} past its end"
            )
            self._fail(8003, "M2", sentence, need=end, given=room)
        align = self._backend.profile.start_alignment
        if info.offset % align:
            off = info.offset % align
            sentence = f"offset {info.offset:,} is {off} past a multiple of {align}"
            self._fail(8004, "M3", sentence, need=align, given=off)
        for other in siblings:
            if other.offset == info.offset and other.size == size:
                sentence = (
                    f"bytes {info.offset:,} to {end:,} of fd {info.fd} are registered already"
                )
                self._fail(8002, "M1", sentence)

    def _fail(
        self,
        code: int,
        rule: str,
        sentence: str,
        call: str = "QnnMem_register",
        need: int | None = None,
        given: int | None = None,
    ) -> NoReturn:
        self._backend.fail(code, finding(rule, sentence, call=call, need=need, given=given))


def _whole(*values: object) -> bool:
    return all(type(v) is int and 0 <= v < 1 << 63 for v in values)
