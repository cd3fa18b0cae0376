"""`QnnMem` of the HTP backend, emulated: buffers shared between application and DSP.

The buffers are real shared memory of this machine. The library's build for x86 has no memory
registration, so qnnmem emulates it; codes and order of checks follow the public headers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, NoReturn, Protocol
from weakref import WeakSet, WeakValueDictionary

from qnnmem.arguments import expect
from qnnmem.caller import caller_line
from qnnmem.contract.handles import HandleTable
from qnnmem.contract.leaks import Resource, note_freed_twice, of_process
from qnnmem.contract.rules import FindingLog, finding
from qnnmem.errors import Fault
from qnnmem.finding import Finding
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import DataType, MemRegisterType
from qnnmem.qnn.enums import HtpMemType as HtpMemType
from qnnmem.qnn.shared_memory import (
    FileId,
    MemDescription,
    MemHandle,
    RegisteredMemory,
    SharedFile,
    SharedRange,
    shared_file,
    tensor_bytes,
)
from qnnmem.text import quote
from qnnmem.units import round_up

# Alignment of ONNX Runtime's QNN provider; the backend's own number is not public.
ALIGNMENT = 64
PAGE = 4096  # smallest unit in which memory is mapped to the DSP
MAX_KEPT = 1000  # deregistered handles that are remembered
_STILL_REGISTERED = "still registered when the context is freed"
_REGISTER, _DEREGISTER, _FREE = "QnnMem_register", "QnnMem_deRegister", "QnnContext_free"


class SharedBuffer:
    """Shared memory of an application: a file descriptor and its mapped bytes."""

    _living: ClassVar[WeakValueDictionary[FileId, SharedBuffer]] = WeakValueDictionary()

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
        self.freed_at = ""  # the Python line that freed the buffer
        self.file = shared_file(self.fd).id
        self._watchers: list[Callable[[FileId], None]] = []
        self._living[self.file] = self

    @property
    def is_freed(self) -> bool:
        """True if the buffer was freed."""
        return self.fd < 0

    @classmethod
    def watch(cls, file: FileId, registry: MemRegistry) -> None:
        """Notify a registry when the buffer with this file is freed."""
        buffer = cls._living.get(file)
        if buffer is not None:
            buffer.when_freed(registry.buffer_freed)

    def when_freed(self, tell: Callable[[FileId], None]) -> None:
        """Register a callback to run when the buffer is freed."""
        if tell not in self._watchers:
            self._watchers.append(tell)

    def close(self) -> None:
        """Free the buffer; registries that still use it record a finding."""
        if self.fd < 0:
            return
        self.freed_at = caller_line()
        for tell in self._watchers:
            tell(self.file)
        self._watchers.clear()
        with suppress(BufferError):  # an array of the client still refers to its bytes
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
class HtpMemDescriptor(MemDescription):
    """`Qnn_MemDescriptor_t`: the location of a tensor's bytes.

    ION is one buffer for one tensor. CUSTOM with SHARED_BUFFER puts many tensors into one buffer of
    `total_size` bytes, each at its own `offset`.
    """

    @classmethod
    def inside(
        cls, buffer: SharedBuffer, dimensions: Sequence[int], data_type: DataType, offset: int
    ) -> HtpMemDescriptor:
        """Return the descriptor of a tensor at an offset of a shared buffer."""
        return cls(
            tuple(dimensions) or (1,),  # a scalar
            data_type,
            buffer.fd,
            MemRegisterType.CUSTOM,
            HtpMemType.SHARED_BUFFER,
            buffer.size,
            offset,
        )


def packed_offsets(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return an aligned offset for each tensor in one buffer, and the size of the buffer."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += round_up(size, ALIGNMENT)
    return offsets, end


class MemRegistry:
    """Registered memory of one context.

    `room` is the free space of its process domain, if known. `siblings` are the registries of all
    contexts of the backend, including this one.
    """

    def __init__(
        self,
        room: int | None = None,
        alignment: int = ALIGNMENT,
        siblings: list[MemRegistry] | None = None,
        owner: Resource | None = None,
    ) -> None:
        self._room, self._alignment = room, alignment
        self._context = owner or Resource("context", "Q13", "the context")
        self._memory = RegisteredMemory()
        self._alive = True
        self._siblings = [] if siblings is None else siblings
        self._siblings.append(self)
        # The resource of each registered handle, and the line that freed each other handle.
        self._handles: HandleTable[MemHandle, Resource, str] = HandleTable(MAX_KEPT)
        self._reported: set[MemHandle] = set()  # reported as freed while registered
        self.findings = FindingLog()  # all refusals and reports, in order

    def __contains__(self, handle: object) -> bool:
        return handle in self._memory

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the process domain used by registered buffers."""
        return self._memory.mapped_bytes

    def register(self, descriptors: Sequence[HtpMemDescriptor]) -> list[MemHandle]:
        """Register all descriptors or none, and return their handles."""
        if not self._alive:
            self._refuse(8001, "Q5", "the context was freed")
        if not descriptors:
            self._refuse(8000, "Q6", "there is no descriptor")
        try:
            handles = self._memory.register(descriptors, self._check)
        except Fault as exc:
            self._refuse(8003, "Q2", str(exc))
        for handle in handles:
            place = f"{handle.size:,} bytes at offset {handle.offset:,} of fd {handle.fd}"
            resource = self._context.part("memory", "Q9", place, never=_STILL_REGISTERED)
            self._handles.add(handle, resource)
            SharedBuffer.watch(handle.file, self)
        return handles

    def deregister(self, handles: Sequence[MemHandle]) -> None:
        """Deregister the given handles, of any context, because the C call names no context.

        Valid handles are deregistered even if other handles are invalid.
        """
        bad = ""
        for number, handle in enumerate(handles):
            owner = self._owner(handle)
            if owner is None:
                bad = bad or f"handle {number} of {len(handles)} {self.fate(handle)}"
            else:
                owner._let_go(handle)
        if bad:
            self.fail(8001, finding("Q5", bad, _DEREGISTER))

    def _owner(self, handle: object) -> MemRegistry | None:
        return next((registry for registry in self._siblings if handle in registry), None)

    def _let_go(self, handle: MemHandle) -> None:
        if handle.is_freed:
            self._report_freed(handle, _DEREGISTER)
        self._memory.deregister([handle])
        self._reported.discard(handle)
        self._forget(handle)

    def _forget(self, handle: MemHandle) -> None:
        resource = self._handles.free(handle, caller_line())
        if resource is not None:
            resource.freed()

    def _made_at(self, handle: MemHandle) -> str:
        resource = self._handles.get(handle)
        return "" if resource is None else resource.caller.line

    def is_elsewhere(self, handle: object) -> bool:
        """Return True if a handle is registered with another context."""
        return self._owner(handle) not in (None, self)

    def fate(self, handle: object) -> str:
        """Return the state of a handle that is not registered here, as the end of a sentence."""
        if not isinstance(handle, MemHandle):
            shown = "NULL" if handle is None else quote(handle)
            return f"is {shown}, which QnnMem_register did not return"
        for registry in self._siblings:
            if handle in registry:
                return f"is registered with another context{_at(registry._made_at(handle))}"
            gone = registry._handles.freed(handle)
            if gone is not None:
                return f"was already deregistered{_at(gone)}"
        return "is not registered"

    def free(self) -> tuple[Finding, ...]:
        """Free the context and return its findings; memory still registered is a leak."""
        for handle in self._memory.handles:
            if handle.is_freed:
                self._report_freed(handle, _FREE)
            resource = self._handles.get(handle)
            if resource is not None:
                self.note(resource.leaked(call=_FREE))
            self._forget(handle)
        self._memory.deregister(self._memory.handles)
        self._alive = False
        return tuple(self.findings)

    def note(self, found: Finding) -> None:
        """Record a finding, without raising an error."""
        self.findings.note(found)

    def fail(self, code: int, found: Finding) -> NoReturn:
        """Record a finding and raise a QNN error with this code."""
        self.note(found)
        raise qnn_error(code, found)

    def buffer_freed(self, file: FileId) -> None:
        """Report handles whose buffer is about to be freed."""
        for handle in self._memory.handles:
            if handle.file == file:
                self._report_freed(handle, "rpcmem_free")

    def _report_freed(self, handle: MemHandle, call: str) -> None:
        if handle in self._reported:
            return
        self._reported.add(handle)
        place = _at(self._made_at(handle), "registered")
        problem = (
            f"fd {handle.fd} was closed while {handle.size:,} bytes of it were registered{place}"
        )
        self.note(finding("Q8", problem, call))

    def _check(self, descriptor: HtpMemDescriptor) -> SharedRange:
        self._check_form(descriptor)
        self._check_type(descriptor)
        size = self._size(descriptor)
        offset = descriptor.offset if descriptor.mem_type == MemRegisterType.CUSTOM else 0
        try:
            file = shared_file(descriptor.fd)
        except Fault as exc:
            self._refuse(8003, "Q2", f"fd {descriptor.fd} {exc}")
        self._check_place(descriptor, offset, size, file.size)
        for handle in self._memory.in_file(file):
            if handle.offset == offset:
                problem = f"offset {offset:,} of fd {descriptor.fd} is already registered"
                self._refuse(8002, "Q1", problem + _at(self._made_at(handle)))
        self._check_room(file)
        return SharedRange(file, offset, size)

    def _check_form(self, descriptor: HtpMemDescriptor) -> None:
        if not isinstance(descriptor, HtpMemDescriptor):
            self._refuse(8000, "Q6", "this is not a memory descriptor")
        numbers = (descriptor.data_type, descriptor.fd, descriptor.mem_type, descriptor.htp_type)
        sizes = (descriptor.total_size, descriptor.offset, *descriptor.dimensions)
        if not all(isinstance(number, int) for number in (*numbers, *sizes)):
            self._refuse(8000, "Q6", "a field of the descriptor is not a number")

    def _check_type(self, descriptor: HtpMemDescriptor) -> None:
        kind, offset = descriptor.mem_type, descriptor.offset
        if kind not in (MemRegisterType.ION, MemRegisterType.CUSTOM):
            problem = f"memory of type {kind} cannot be registered with the HTP backend"
            self._refuse(8005, "Q4", problem)
        if kind == MemRegisterType.ION and offset:  # its C descriptor has no field for an offset
            problem = (
                f"memory of type ION has no offset, but the offset is {offset:,}; "
                "register the memory as CUSTOM with SHARED_BUFFER"
            )
            self._refuse(8005, "Q4", problem, need=0, given=offset)
        if kind == MemRegisterType.CUSTOM and descriptor.htp_type != HtpMemType.SHARED_BUFFER:
            allowed = "is not allowed for inputs and outputs"
            self._refuse(8005, "Q4", f"HTP memory of type {descriptor.htp_type} {allowed}")

    def _size(self, descriptor: HtpMemDescriptor) -> int:
        """Return the size of the tensor; a scalar is described as one dimension of 1."""
        dimensions, data_type = descriptor.dimensions, descriptor.data_type
        if not dimensions or not all(0 < size < 1 << 40 for size in dimensions):
            shape = "x".join(map(str, dimensions[:8])) or "without dimensions"
            problem = f"the shape is {shape}; every dimension must be set and above 0"
            self._refuse(8004, "Q3", problem)
        size = tensor_bytes(dimensions, data_type)
        if size is None:
            self._refuse(8000, "Q6", f"data type {data_type:#x} has no known size")
        return size

    def _check_place(self, descriptor: HtpMemDescriptor, offset: int, size: int, room: int) -> None:
        """Raise a QNN error unless the tensor lies inside the buffer, at an aligned offset."""
        fd, total, end = descriptor.fd, descriptor.total_size, offset + size
        if offset < 0:
            problem = f"offset {offset:,} lies before the buffer"
            self._refuse(8004, "Q3", problem, need=0, given=offset)
        if offset % self._alignment:
            problem = f"offset {offset:,} is not a multiple of {self._alignment}"
            self._refuse(8004, "Q3", problem, need=self._alignment, given=offset)
        if descriptor.mem_type == MemRegisterType.CUSTOM:
            if total <= 0:
                problem = (
                    f"the total size in the descriptor is {total:,}; CUSTOM memory needs the "
                    f"size of the whole buffer, and fd {fd} has {room:,} bytes"
                )
                self._refuse(8004, "Q3", problem, need=end, given=total)
            if total > room:
                problem = f"the descriptor states {total:,} bytes, but fd {fd} has {room:,}"
                self._refuse(8004, "Q3", problem, need=total, given=room)
            room = total
        if end > room:
            excess = f"exceed the buffer by {end - room:,} bytes"
            problem = f"{size:,} bytes at offset {offset:,} {excess}"
            self._refuse(8004, "Q3", problem, need=end, given=room)

    def _check_room(self, file: SharedFile) -> None:
        """Raise a QNN error if the process domain is full; a file counts once, not per tensor."""
        if self._room is None or self._memory.in_file(file):
            return
        need, left = round_up(file.size, PAGE), self._room - self.mapped_bytes
        if need > left:
            problem = f"fd {file.fd} needs {need:,} bytes of the process domain"
            problem += f", but only {max(0, left):,} are left"
            self._refuse(8003, "Q2", problem, need=need, given=self._room)

    def _refuse(
        self, code: int, rule: str, problem: str, need: int | None = None, given: int | None = None
    ) -> NoReturn:
        self.fail(code, finding(rule, problem, _REGISTER, need=need, given=given))


def _at(line: str | None, done: str = "") -> str:
    """Return the position of a Python line as the end of a sentence; empty if unknown."""
    place = (line or "").split(": ", 1)[0]
    return f", {done} at {place}" if place and done else f" at {place}" if place else ""


# --- `rpcmem` of libcdsprpc: the allocator of memory that can be registered -----------------------


RPCMEM_HEAP_ID_SYSTEM = 25
RPCMEM_HEAP_ID_CONTIG = 22
RPCMEM_DEFAULT_FLAGS = 1
_MOST = 1 << 31  # the size is a signed int
_RPC_FREE = "rpcmem_free"


class RpcListener(Protocol):
    """A backend that is notified of findings about the heap."""

    is_freed: bool

    def note(self, found: Finding) -> None:
        """Record a finding."""


class RpcHeap:
    """The rpcmem heap, shared by all backends; buffers that are not freed are leaks."""

    def __init__(self) -> None:
        self._listeners: WeakSet[RpcListener] = WeakSet()

    def add_listener(self, listener: RpcListener) -> None:
        """Report later findings to this backend too."""
        self._listeners.add(listener)

    def add(self, buffer: SharedBuffer) -> None:
        """Count a buffer as a leak until it is freed."""
        subject = f"a buffer of {buffer.size:,} bytes"
        resource = of_process().part("buffer", "Q15", subject, never="was never freed")
        buffer.when_freed(lambda _: resource.freed())

    def freed_again(self, buffer: SharedBuffer) -> None:
        """Report a second free to all living backends.

        If no backend is alive, report it to the freed backends, and at process exit.
        """
        place = buffer.freed_at.split(": ", 1)[0]
        where = f" at {place}" if place else ""
        problem = f"the buffer of {buffer.size:,} bytes was already freed{where}"
        again = finding("Q15", problem, _RPC_FREE)
        living = [listener for listener in self._listeners if not listener.is_freed]
        for listener in living or list(self._listeners):
            listener.note(again)
        if not living:
            note_freed_twice(again)


HEAP = RpcHeap()


def rpcmem_alloc(heap_id: int, flags: int, size: int) -> SharedBuffer | None:
    """Return a shared buffer (`rpcmem_alloc`), or None where the real function returns NULL."""
    for number in (heap_id, flags, size):
        expect(number, int, "heap, flags and size must be whole numbers")
    if heap_id not in (RPCMEM_HEAP_ID_SYSTEM, RPCMEM_HEAP_ID_CONTIG) or not 0 < size < _MOST:
        return None
    try:
        buffer = SharedBuffer(size)
    except (OSError, ValueError):  # no memory, or no file descriptor is left
        return None
    HEAP.add(buffer)
    return buffer


def rpcmem_to_fd(buffer: SharedBuffer | None) -> int:
    """Return the file descriptor of a buffer (`rpcmem_to_fd`); -1 for anything else."""
    return buffer.fd if isinstance(buffer, SharedBuffer) else -1


def rpcmem_free(buffer: SharedBuffer | None) -> None:
    """Free a buffer (`rpcmem_free`); NULL is ignored.

    Freeing it twice, or before `QnnMem_deRegister`, is a finding.
    """
    if not isinstance(buffer, SharedBuffer):
        return
    if buffer.is_freed:
        HEAP.freed_again(buffer)
    buffer.close()
