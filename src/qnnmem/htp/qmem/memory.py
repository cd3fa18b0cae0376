"""`QnnMem` of the HTP backend, emulated: buffers that application and DSP share.

The buffers are real shared memory of this machine. The library's build for x86 has no memory
registration, so the answers are ours; codes and order of checks follow the public headers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from qnnmem.errors import Fault
from qnnmem.finding import Finding
from qnnmem.htp.qmem.rules import broken
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import DataType, MemRegisterType
from qnnmem.qnn.enums import HtpMemType as HtpMemType
from qnnmem.qnn.shared_memory import (
    MemHandle,
    RegisteredMemory,
    SharedFile,
    SharedRange,
    shared_file,
    tensor_bytes,
)
from qnnmem.units import round_up

# ONNX Runtime's QNN provider aligns its blocks so; no public page gives the backend's own number.
ALIGNMENT = 64
PAGE = 4096  # smallest unit in which memory is mapped to the DSP
_REGISTER, _DEREGISTER, _FREE = "QnnMem_register", "QnnMem_deRegister", "QnnContext_free"


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
class HtpMemDescriptor:
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


class MemRegistry:
    """What one context has registered; `room` is what its process domain has left, if known."""

    def __init__(self, room: int | None = None, alignment: int = ALIGNMENT) -> None:
        self._room, self._alignment = room, alignment
        self._memory = RegisteredMemory()
        self._alive = True
        self.findings: list[Finding] = []  # everything refused or reported, in order

    def __contains__(self, handle: object) -> bool:
        return handle in self._memory

    @property
    def mapped_bytes(self) -> int:
        """Bytes of process domain that registered buffers take."""
        return self._memory.mapped_bytes

    def register(self, descriptors: Sequence[HtpMemDescriptor]) -> list[MemHandle]:
        """Register all or none."""
        if not self._alive:
            self.fail(8001, broken("Q5", "the context is freed", _REGISTER))
        if not descriptors:
            self.fail(8000, broken("Q6", "there is no descriptor", _REGISTER))
        try:
            return self._memory.register(descriptors, self._check)
        except Fault as exc:
            self.fail(8003, broken("Q2", str(exc), _REGISTER))

    def deregister(self, handles: Sequence[MemHandle]) -> None:
        """Let every valid handle go, even if another is not valid."""
        for handle in handles:
            if handle in self._memory and handle.is_freed:
                self._report_freed(handle, _DEREGISTER)
        unknown = self._memory.deregister(handles)
        if unknown:
            what = f"{unknown} of {len(handles)} handles are not registered here"
            self.fail(8001, broken("Q5", what, _DEREGISTER))

    def free(self) -> tuple[Finding, ...]:
        """Free the context; what is still registered is a leak."""
        leaked = self._memory.handles
        for handle in leaked:
            if handle.is_freed:
                self._report_freed(handle, _FREE)
            what = f"{handle.size:,} bytes at offset {handle.offset:,} of fd {handle.fd}"
            sentence = f"{what} are still registered when the context is freed"
            self.findings.append(broken("Q9", sentence, _FREE))
        self._memory.deregister(leaked)
        self._alive = False
        return tuple(self.findings)

    def fail(self, code: int, finding: Finding) -> NoReturn:
        """Refuse a call."""
        self.findings.append(finding)
        raise qnn_error(code, finding)

    def _report_freed(self, handle: MemHandle, call: str) -> None:
        what = f"fd {handle.fd} was closed while {handle.size:,} bytes of it were registered"
        self.findings.append(broken("Q8", what, call))

    def _check(self, given: HtpMemDescriptor) -> SharedRange:
        self._check_form(given)
        self._check_type(given)
        size = self._size(given)
        offset = given.offset if given.mem_type == MemRegisterType.CUSTOM else 0
        try:
            file = shared_file(given.fd)
        except Fault as exc:
            self.fail(8003, broken("Q2", f"fd {given.fd} {exc}", _REGISTER))
        self._check_place(given, offset, size, file.size)
        if any(one.offset == offset for one in self._memory.in_file(file)):
            what = f"offset {offset:,} of fd {given.fd} is registered already"
            self.fail(8002, broken("Q1", what, _REGISTER))
        self._check_room(file)
        return SharedRange(file, offset, size)

    def _check_form(self, given: HtpMemDescriptor) -> None:
        if not isinstance(given, HtpMemDescriptor):
            self.fail(8000, broken("Q6", "this is not a memory descriptor", _REGISTER))
        numbers = (given.data_type, given.fd, given.mem_type, given.htp_type)
        sizes = (given.total_size, given.offset, *given.dimensions)
        if not all(isinstance(number, int) for number in (*numbers, *sizes)):
            self.fail(8000, broken("Q6", "a field of the descriptor is not a number", _REGISTER))

    def _check_type(self, given: HtpMemDescriptor) -> None:
        if given.mem_type not in (MemRegisterType.ION, MemRegisterType.CUSTOM):
            what = f"memory of type {given.mem_type} cannot be registered with the HTP backend"
            self.fail(8005, broken("Q4", what, _REGISTER))
        custom = given.mem_type == MemRegisterType.CUSTOM
        if custom and given.htp_type != HtpMemType.SHARED_BUFFER:
            what = f"HTP memory of type {given.htp_type} is not for inputs and outputs"
            self.fail(8005, broken("Q4", what, _REGISTER))

    def _size(self, given: HtpMemDescriptor) -> int:
        """Bytes of the tensor; a scalar has to be described as one dimension of 1."""
        if not given.dimensions or not all(0 < size < 1 << 40 for size in given.dimensions):
            shape = "x".join(map(str, given.dimensions[:8])) or "of no dimension"
            what = f"the shape {shape} does not name every dimension"
            self.fail(8004, broken("Q3", what, _REGISTER))
        size = tensor_bytes(given.dimensions, given.data_type)
        if size is None:
            what = f"data type {given.data_type:#x} has no size"
            self.fail(8000, broken("Q6", what, _REGISTER))
        return size

    def _check_place(self, given: HtpMemDescriptor, offset: int, size: int, room: int) -> None:
        if offset < 0 or offset % self._alignment:
            what = f"offset {offset:,} is not a multiple of {self._alignment}"
            self.fail(8004, broken("Q3", what, _REGISTER, need=self._alignment, given=offset))
        if given.mem_type == MemRegisterType.CUSTOM:
            if given.total_size > room:
                what = f"the descriptor says {given.total_size:,} bytes, fd {given.fd} has {room:,}"
                self.fail(8004, broken("Q3", what, _REGISTER, need=given.total_size, given=room))
            room = given.total_size
        if offset + size > room:
            what = f"{size:,} bytes at offset {offset:,} end {offset + size - room:,} past the end"
            self.fail(8004, broken("Q3", what, _REGISTER, need=offset + size, given=room))

    def _check_room(self, file: SharedFile) -> None:
        """A file takes process domain once, however many tensors are in it."""
        if self._room is None or self._memory.in_file(file):
            return
        need, left = round_up(file.size, PAGE), self._room - self.mapped_bytes
        if need > left:
            what = f"fd {file.fd} needs {need:,} bytes of process domain"
            what += f", {max(0, left):,} are left"
            self.fail(8003, broken("Q2", what, _REGISTER, need=need, given=self._room))
