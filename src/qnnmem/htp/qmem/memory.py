"""`QnnMem` of the HTP backend, emulated: buffers that application and DSP share.

The buffers are real shared memory of this machine. The library's build for x86 has no memory
registration, so the answers are ours; codes and order of checks follow the public headers.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn

from qnnmem.errors import QnnError
from qnnmem.htp.qmem.rules import broken
from qnnmem.qnn.enums import DataType, MemRegisterType
from qnnmem.qnn.finding import Finding, qnn_error
from qnnmem.units import round_up

# ONNX Runtime's QNN provider aligns its blocks so; no public page gives the backend's own number.
ALIGNMENT = 64
PAGE = 4096  # smallest unit in which memory is mapped to the DSP
_REGISTER, _DEREGISTER, _FREE = "QnnMem_register", "QnnMem_deRegister", "QnnContext_free"


class HtpMemType(IntEnum):
    """`QnnHtpMem_Type_t`: what a custom descriptor of the HTP backend is about."""

    QURT = 0
    SHARED_BUFFER = 1
    WEIGHTS_BUFFER = 2
    SHARED_SPILLFILL_BUFFER = 3


class SharedBuffer:
    """Memory that an application shares: a file descriptor, and its bytes at an address."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = _anonymous_file()
        try:
            os.ftruncate(self.fd, round_up(max(size, 1), PAGE))
            self._mapped = mmap.mmap(self.fd, round_up(max(size, 1), PAGE))
        except BaseException:
            os.close(self.fd)
            raise
        self.view = memoryview(self._mapped)

    def close(self) -> None:
        """Free it; to do so while it is registered is a mistake that the registry reports."""
        if self.fd >= 0:
            self.view.release()
            self._mapped.close()
            os.close(self.fd)
            self.fd = -1


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("qnnmem", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


@dataclass(frozen=True, slots=True)
class MemDescriptor:
    """`Qnn_MemDescriptor_t`: where a tensor's bytes lie.

    ION is one buffer for one tensor. CUSTOM with SHARED_BUFFER puts many tensors into one buffer of
    `total_size` bytes, each at its own `offset`.
    """

    dimensions: tuple[int, ...]
    data_type: DataType
    fd: int
    mem_type: int = MemRegisterType.ION
    htp_type: int = HtpMemType.SHARED_BUFFER  # of CUSTOM
    total_size: int = 0  # of CUSTOM
    offset: int = 0  # of CUSTOM


@dataclass(frozen=True, eq=False, slots=True)
class MemHandle:
    """`Qnn_MemHandle_t`: one tensor's bytes in a shared buffer."""

    fd: int
    offset: int
    size: int
    file: tuple[int, int]  # device and inode: a number may be closed and used again
    view: memoryview

    @property
    def is_freed(self) -> bool:
        """Whether the application closed the buffer."""
        try:
            found = os.fstat(self.fd)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self.file

    @property
    def is_shortened(self) -> bool:
        """Whether the buffer lost bytes: touching them would end the process."""
        return os.fstat(self.fd).st_size < self.offset + self.size


@dataclass(slots=True)
class _Mapping:
    """A file in the process domain, once for all tensors in it."""

    mapped: mmap.mmap
    handles: int = 0


class MemRegistry:
    """What one context has registered; `room` is what its process domain has left, if known."""

    def __init__(self, room: int | None = None, alignment: int = ALIGNMENT) -> None:
        self._room, self._alignment = room, alignment
        self._handles: list[MemHandle] = []
        self._files: dict[tuple[int, int], _Mapping] = {}
        self._alive = True
        self.findings: list[Finding] = []  # everything refused or reported, in order

    def __contains__(self, handle: object) -> bool:
        return handle in self._handles

    @property
    def mapped_bytes(self) -> int:
        """Bytes of process domain that registered buffers take."""
        return sum(len(one.mapped) for one in self._files.values())

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[MemHandle]:
        """Register all or none."""
        if not self._alive:
            self.fail(8001, broken("Q5", "the context is freed", _REGISTER))
        if not descriptors:
            self.fail(8000, broken("Q6", "there is no descriptor", _REGISTER))
        before = list(self._handles)
        try:
            for descriptor in descriptors:
                self._handles.append(self._handle(descriptor))
        except QnnError:
            for handle in [one for one in self._handles if one not in before]:
                self._release(handle)
            raise
        return self._handles[len(before) :]

    def deregister(self, handles: Sequence[MemHandle]) -> None:
        """Let every valid handle go, even if another is not valid."""
        dead = [handle for handle in handles if handle not in self._handles]
        for handle in handles:
            if handle in self._handles:
                if handle.is_freed:
                    self._report_freed(handle, _DEREGISTER)
                self._release(handle)
        if dead:
            what = f"{len(dead)} of {len(handles)} handles are not registered here"
            self.fail(8001, broken("Q5", what, _DEREGISTER))

    def free(self) -> tuple[Finding, ...]:
        """Free the context; what is still registered is a leak."""
        leaked = list(self._handles)
        for handle in leaked:
            if handle.is_freed:
                self._report_freed(handle, _FREE)
            what = f"{handle.size:,} bytes at offset {handle.offset:,} of fd {handle.fd}"
            sentence = f"{what} are still registered when the context is freed"
            self.findings.append(broken("Q9", sentence, _FREE))
            self._release(handle)
        self._alive = False
        return tuple(self.findings)

    def fail(self, code: int, finding: Finding) -> NoReturn:
        """Refuse a call."""
        self.findings.append(finding)
        raise qnn_error(code, finding)

    def _report_freed(self, handle: MemHandle, call: str) -> None:
        what = f"fd {handle.fd} was closed while {handle.size:,} bytes of it were registered"
        self.findings.append(broken("Q8", what, call))

    def _handle(self, given: MemDescriptor) -> MemHandle:
        self._check_form(given)
        self._check_type(given)
        size = self._size(given)
        offset = given.offset if given.mem_type == MemRegisterType.CUSTOM else 0
        file, room = self._file(given.fd)
        self._check_place(given, offset, size, room)
        if any(one.file == file and one.offset == offset for one in self._handles):
            what = f"offset {offset:,} of fd {given.fd} is registered already"
            self.fail(8002, broken("Q1", what, _REGISTER))
        mapped = self._map(given.fd, file, room)
        return MemHandle(given.fd, offset, size, file, memoryview(mapped)[offset : offset + size])

    def _check_form(self, given: MemDescriptor) -> None:
        if not isinstance(given, MemDescriptor):
            self.fail(8000, broken("Q6", "that is no memory descriptor", _REGISTER))
        numbers = (given.data_type, given.fd, given.mem_type, given.htp_type)
        sizes = (given.total_size, given.offset, *given.dimensions)
        if not all(isinstance(number, int) for number in (*numbers, *sizes)):
            self.fail(8000, broken("Q6", "a field of the descriptor is no number", _REGISTER))

    def _check_type(self, given: MemDescriptor) -> None:
        if given.mem_type not in (MemRegisterType.ION, MemRegisterType.CUSTOM):
            what = f"memory of type {given.mem_type} cannot be registered with the HTP backend"
            self.fail(8005, broken("Q4", what, _REGISTER))
        custom = given.mem_type == MemRegisterType.CUSTOM
        if custom and given.htp_type != HtpMemType.SHARED_BUFFER:
            what = f"HTP memory of type {given.htp_type} is not for inputs and outputs"
            self.fail(8005, broken("Q4", what, _REGISTER))

    def _size(self, given: MemDescriptor) -> int:
        """Bytes of the tensor; a scalar has to be described as one dimension of 1."""
        if not given.dimensions or not all(0 < size < 1 << 40 for size in given.dimensions):
            shape = "x".join(map(str, given.dimensions[:8])) or "of no dimension"
            what = f"the shape {shape} does not name every dimension"
            self.fail(8004, broken("Q3", what, _REGISTER))
        if given.data_type not in set(DataType) or not DataType(given.data_type).bits:
            what = f"data type {given.data_type:#x} has no size"
            self.fail(8000, broken("Q6", what, _REGISTER))
        return DataType(given.data_type).nbytes(math.prod(given.dimensions))

    def _file(self, fd: int) -> tuple[tuple[int, int], int]:
        """Which file it is, and how many bytes it has."""
        try:
            found = os.fstat(fd)
        except (OSError, OverflowError):
            self.fail(8003, broken("Q2", f"fd {fd} is not open", _REGISTER))
        if found.st_size == 0:
            self.fail(8003, broken("Q2", f"fd {fd} has no bytes to map", _REGISTER))
        return (found.st_dev, found.st_ino), found.st_size

    def _check_place(self, given: MemDescriptor, offset: int, size: int, room: int) -> None:
        if offset < 0 or offset % self._alignment:
            what = f"offset {offset:,} is no multiple of {self._alignment}"
            self.fail(8004, broken("Q3", what, _REGISTER, need=self._alignment, given=offset))
        if given.mem_type == MemRegisterType.CUSTOM:
            if given.total_size > room:
                what = f"the descriptor says {given.total_size:,} bytes, fd {given.fd} has {room:,}"
                self.fail(8004, broken("Q3", what, _REGISTER, need=given.total_size, given=room))
            room = given.total_size
        if offset + size > room:
            what = f"{size:,} bytes at offset {offset:,} end {offset + size - room:,} past the end"
            self.fail(8004, broken("Q3", what, _REGISTER, need=offset + size, given=room))

    def _map(self, fd: int, file: tuple[int, int], room: int) -> mmap.mmap:
        """Memory of a file, which is mapped once however many tensors are in it."""
        if file not in self._files:
            need, left = round_up(room, PAGE), self._room
            if left is not None and self.mapped_bytes + need > left:
                what = f"fd {fd} needs {need:,} bytes of process domain"
                what += f", {max(0, left - self.mapped_bytes):,} are left"
                self.fail(8003, broken("Q2", what, _REGISTER, need=need, given=left))
            try:
                self._files[file] = _Mapping(mmap.mmap(fd, room))
            except (OSError, ValueError, OverflowError) as exc:
                what = f"fd {fd} cannot be mapped: {exc}"
                self.fail(8003, broken("Q2", what, _REGISTER))
        self._files[file].handles += 1
        return self._files[file].mapped

    def _release(self, handle: MemHandle) -> None:
        self._handles.remove(handle)
        handle.view.release()
        owner = self._files[handle.file]
        owner.handles -= 1
        if owner.handles == 0:
            del self._files[handle.file]
            with suppress(BufferError):  # someone still looks at it: it goes with the last view
                owner.mapped.close()
