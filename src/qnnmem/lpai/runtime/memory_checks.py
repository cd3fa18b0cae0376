"""Checks the memory that a client passes: pools of a graph, a persistent binary, shared memory.

Memory must have the right type, must not overlap other memory, must not be freed, and its guard
zones must be intact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from qnnmem.contract.regions import ClientBuffer, Holder, array_address, holders
from qnnmem.contract.rules import finding
from qnnmem.errors import Fault
from qnnmem.finding import Finding
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.runtime.backend import Backend, shown
from qnnmem.lpai.runtime.configs import CREATE, INVALID_CONFIG, ContextConfig
from qnnmem.lpai.runtime.descriptors import MemDescriptor, MemInfoCustom
from qnnmem.lpai.runtime.heap import Heap
from qnnmem.lpai.runtime.sanitizer import MAX_FINDINGS, collisions, describe
from qnnmem.qnn.enums import MemRegisterType, MemType
from qnnmem.qnn.shared_memory import (
    MemHandle,
    RegisteredMemory,
    SharedFile,
    SharedRange,
    shared_file,
    tensor_bytes,
)
from qnnmem.text import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SET = "QnnGraph_setConfig"
_RULES = {"persistent": "R8", "scratch": "R7"}
Pools = dict[str, ClientBuffer | None]


class SharedMemory:
    """The memory that a context has registered."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._memory = RegisteredMemory()

    def __contains__(self, handle: object) -> bool:
        return handle in self._memory

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[MemHandle]:
        """Return a handle for each descriptor, or fail without registering any."""
        if not isinstance(descriptors, list | tuple):
            self._fail(8000, "M2", "the memory descriptors must be a list")
        try:
            return self._memory.register(descriptors, self._check)
        except Fault as exc:
            self._fail(8003, "M2", str(exc))

    def deregister(self, handles: Iterable[MemHandle]) -> None:
        """Deregister all valid handles; then fail if any handle is invalid."""
        if not isinstance(handles, list | tuple):
            self._fail(8000, "M2", "the handles must be a list", "QnnMem_deRegister")
        unknown = self._memory.deregister(handles)
        if unknown:
            sentence = f"not registered: {counted(unknown, 'handle')}"
            self._fail(8001, "M2", sentence, "QnnMem_deRegister")

    def _check(self, descriptor: MemDescriptor) -> SharedRange:
        if not isinstance(descriptor, MemDescriptor):
            self._fail(8000, "M2", "the value must be a memory descriptor")
        self._check_type(descriptor.mem_type)
        info, size = descriptor.custom_info, self._size(descriptor)
        is_place = isinstance(info, MemInfoCustom) and isinstance(info.fd, int)
        if not (is_place and _whole(info.offset)):
            self._fail(8000, "M2", "the descriptor must have an fd and an offset")
        try:
            file = shared_file(info.fd)
        except Fault as exc:
            self._fail(8003, "M2", f"fd {shown(info.fd)} {exc}")
        self._check_range(info, size, file)
        return SharedRange(file, info.offset, size)

    def _check_type(self, kind: int) -> None:
        if not isinstance(kind, int):
            self._fail(8000, "M2", f"{shown(kind)} is not a memory type")
        if kind not in self._backend.profile.register_types:
            name = MemRegisterType(kind).name if kind in set(MemRegisterType) else f"{kind:#x}"
            mode = self._backend.profile.mode.value
            self._fail(8005, "M4", f"memory of type {name} cannot be registered in {mode} mode")

    def _size(self, descriptor: MemDescriptor) -> int:
        dimensions = descriptor.dimensions
        if not (isinstance(dimensions, list | tuple) and _whole(*dimensions)):
            self._fail(8000, "M2", "the dimensions of the descriptor are not valid sizes")
        if not isinstance(descriptor.data_type, int):
            self._fail(8000, "M2", f"data type {shown(descriptor.data_type)} is not a number")
        size = tensor_bytes(dimensions, descriptor.data_type)
        if size is None:
            self._fail(8000, "M2", f"data type {shown(descriptor.data_type)} has no size")
        return size

    def _check_range(self, info: MemInfoCustom, size: int, file: SharedFile) -> None:
        end, room = info.offset + size, file.size
        if end > room:
            sentence = (
                f"bytes {info.offset:,} to {end:,} of fd {info.fd} end {end - room:,} "
                "bytes past the end of the file"
            )
            self._fail(8003, "M2", sentence, need=end, given=room)
        align = self._backend.profile.start_alignment
        if info.offset % align:
            off = info.offset % align
            sentence = f"offset {info.offset:,} is {off} past a multiple of {align}"
            self._fail(8004, "M3", sentence, need=align, given=off)
        for other in self._memory.in_file(file):
            if other.offset == info.offset and other.size == size:
                sentence = (
                    f"bytes {info.offset:,} to {end:,} of fd {info.fd} are already registered"
                )
                self._fail(8002, "M1", sentence)

    def _fail(
        self,
        code: int,
        rule: str,
        sentence: str,
        call: str = "QnnMem_register",
        **details: Any,
    ) -> NoReturn:
        self._backend.refuse(code, rule, sentence, call, **details)


def _whole(*values: object) -> bool:
    return all(type(v) is int and 0 <= v < 1 << 63 for v in values)


def check_plan(backend: Backend, compiled: CompiledGraph) -> None:
    """Make finalize fail if the plan lets a tensor overwrite another that is still needed."""
    findings = [describe(collision) for collision in islice(collisions(compiled), MAX_FINDINGS)]
    for later in findings[1:]:
        backend.note(later)
    if findings:
        backend.fail(6022, findings[0])


def check_pools(backend: Backend, graph: str, own: Holder, new: Pools, now: Pools) -> None:
    """Fail the call if a new pool shares bytes with another pool or a binary."""
    scratch = new["scratch"] or now["scratch"]
    persistent = new["persistent"] or now["persistent"]
    if scratch is not None and persistent is not None and scratch.overlaps(persistent):
        sentence = "scratch and persistent share bytes, so state would not survive an execution"
        backend.refuse(6000, "X6", sentence, _SET, buffer="persistent")
    for what, buffer in new.items():
        if buffer is not None:
            _check_others(backend, graph, own, what, buffer)


def _check_others(
    backend: Backend, graph: str, own: Holder, what: str, buffer: ClientBuffer
) -> None:
    others = [held for held in holders.touching(buffer) if held.holder is not own]
    for held in others:
        if {what, held.what} not in ({"scratch"}, {"persistent"}):
            sentence = f"{what} of graph {graph[:80]!r} shares bytes with {held.label}"
            backend.refuse(6000, "X8", sentence, _SET, buffer=what, address=buffer.address)
    for held in others:
        if what == "scratch":
            own.shares_scratch = held.holder.shares_scratch = True
        # No data is lost yet, so the call succeeds.
        pair = f"graphs {graph[:80]!r} and {held.owner[:80]!r}"
        if what == "persistent":
            sentence = f"{pair} share persistent memory"
            backend.note(finding("X5", sentence, call=_SET, buffer=what))
        elif not backend.profile.shared_scratch:
            sentence = f"{pair} share bytes of scratch"
            backend.note(finding("X8", sentence, call=_SET, buffer=what))


def note_sharing(backend: Backend, graph: str, own: Holder, scratch: ClientBuffer | None) -> None:
    """Report any other graph that is executing in this scratch at the moment."""
    others = () if scratch is None else holders.touching(scratch)
    for held in others:
        if held.holder is not own and held.what == "scratch" and held.holder.is_executing:
            names = f"{graph[:80]!r} and {held.owner[:80]!r}"
            sentence = f"graphs {names} execute at the same time and share bytes of scratch"
            cure = "execute the graphs one after the other, or use separate scratch for each"
            call = "QnnGraph_execute"
            backend.note(finding("X8", sentence, call=call, buffer="scratch", cure=cure))


def freed_pools(pools: Pools, call: str) -> Iterator[Finding]:
    """Yield findings for pools that the application freed."""
    for what, rule in _RULES.items():
        buffer = pools[what]
        if buffer is not None and buffer.is_released:
            sentence = f"{what} was {buffer.loss} before its context was freed"
            yield finding(rule, sentence, call=call, buffer=what, address=buffer.address)


def note_early_free(backend: Backend, old: ClientBuffer | None) -> None:
    """Report that the old scratch was freed before its replacement was passed."""
    if old is not None and old.is_released:
        sentence = f"the old scratch was {old.loss} before new scratch was passed"
        backend.note(finding("R7", sentence, call=_SET, buffer="scratch", address=old.address))


def overruns(buffers: Mapping[str, ClientBuffer | None], call: str) -> Iterator[Finding]:
    """Yield a finding for each broken guard zone of a heap block."""
    seen: set[int] = set()
    for what, buffer in buffers.items():
        block = None if buffer is None else buffer.allocation
        if buffer is None or block is None or block.address in seen:
            continue
        seen.add(block.address)
        is_whole = block.address == buffer.address and block.size == buffer.size
        label = what if is_whole else f"the block containing {what}"
        for side in block.guards_broken():
            yield finding("X2", f"bytes {side} {label} were overwritten", call=call, buffer=what)


def runtime_pool(name: str, size: int, align: int) -> ClientBuffer:
    """Return a pool that the runtime allocates because the client does not."""
    return ClientBuffer(Heap(MemType.DDR).allocate(size, max(64, align), name))


def lies_in(start: int, end: int, view: NDArray[Any]) -> bool:
    """Return whether all addresses from start to end are inside a view."""
    first = array_address(view)
    return first <= start and end <= first + view.size


def check_binary_memory(backend: Backend, buffer: ClientBuffer, config: ContextConfig) -> MemType:
    """Return the memory type of a binary, DDR by default; fail if the binary cannot be used."""
    if buffer.is_freed:
        sentence = f"the buffer of the binary was {buffer.loss} before the context was created"
        backend.fail(5005, _binary_finding("B1", sentence, buffer))
    actual, declared = buffer.mem_type, config.model_mem_type
    if actual is not None and actual not in backend.profile.mem_types:
        mode = backend.profile.mode.value
        sentence = f"the binary is in {actual.name}, which does not exist in {mode} mode"
        rule = "T3" if actual is MemType.TCM else "R14"
        backend.fail(1000, _binary_finding(rule, sentence, buffer))
    if actual is not None and declared is not None and actual != declared:
        sentence = (
            f"the binary is declared as {declared.name}, but its memory came from the "
            f"{actual.name} heap"
        )
        backend.fail(INVALID_CONFIG, _binary_finding("T5", sentence, buffer))
    if actual not in (None, MemType.DDR) and declared is None:
        sentence = (
            f"the binary is in {actual.name}, but MODEL_BUFFER_MEM_TYPE is not set, which means DDR"
        )
        backend.note(_binary_finding("T5", sentence, buffer))
    if config.persistent_binary:
        _note_alignment(backend, buffer)
        _check_binary_apart(backend, buffer)
    return actual or declared or MemType.DDR


def _note_alignment(backend: Backend, buffer: ClientBuffer) -> None:
    """Report the binary's heap block if it was allocated with a wrong alignment.

    Other memory is not checked: a client cannot choose where Python allocates a `bytes` object.
    """
    if buffer.allocation is None:
        return
    if backend.alignment_queried_at is not None:  # otherwise the pools report it
        backend.check_alignment_query(buffer, "binary", CREATE)
    align = backend.profile.start_alignment
    off = buffer.address % align
    if off:
        sentence = (
            f"the binary starts at {buffer.address:#x}, {off} bytes past a multiple of {align}"
        )
        backend.note(_binary_finding("R3", sentence, buffer))


def _check_binary_apart(backend: Backend, buffer: ClientBuffer) -> None:
    for held in holders.touching(buffer):
        if held.what != "binary":  # a binary is only read: contexts may share it
            sentence = f"the binary shares bytes with {held.label}"
            backend.fail(5000, _binary_finding("X8", sentence, buffer))


def _binary_finding(rule: str, sentence: str, buffer: ClientBuffer) -> Finding:
    return finding(rule, sentence, call=CREATE, buffer="binary", address=buffer.address)
