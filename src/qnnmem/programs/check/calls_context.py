"""Handlers of calls about contexts, shared memory, and the description of a binary."""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass, field, replace
from typing import Any

from qnnmem.contract.regions import ForeignMemory
from qnnmem.contract.rules import finding
from qnnmem.errors import UsageError
from qnnmem.finding import Finding
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import Config, MemDescriptor, MemInfoCustom, custom
from qnnmem.lpai.runtime.system_context import SystemContext
from qnnmem.programs import layout
from qnnmem.programs.check.calls_backend import NOT_SUPPORTED, check_out, give
from qnnmem.programs.check.client_session import ClientCall
from qnnmem.programs.check.findings import STILL_EXECUTES
from qnnmem.programs.process_memory import Unreadable
from qnnmem.programs.socket_server import Action
from qnnmem.programs.stacks import Trace
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import ContextCustomOption, ContextOption, MemRegisterType
from qnnmem.qnn.shared_memory import tensor_bytes

_MOST_BINARY = 2 << 30
_MOST_DESCRIPTORS = 1024
_INVALID = 5000
_NUMBERS = {  # encoding of an option's value in its union
    ContextOption.PRIORITY: "<I",
    ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH: "<I",
    ContextOption.MEMORY_LIMIT_HINT: "<Q",
    ContextOption.PERSISTENT_BINARY: "<B",
    ContextOption.BINARY_COMPATIBILITY: "<I",
    ContextOption.DEFER_GRAPH_INIT: "<B",
}


@dataclass(slots=True)
class CheckedContext:
    """A context and the client memory that it uses."""

    context: Context
    binary: ForeignMemory | None  # set if the client promised to preserve it
    graphs: dict[str, int] = field(default_factory=dict)  # graph handles by name
    handles: dict[int, tuple[Any, int]] = field(default_factory=dict)  # memory and our descriptor
    freeing: Trace = ()  # where it is freed

    @property
    def held_bytes(self) -> int:
        """Number of bytes of client memory that the context itself uses, without its graphs."""
        registered: int = sum(memory.size for memory, _ in tuple(self.handles.values()))
        return registered + (0 if self.binary is None else self.binary.size)

    def abandon(self) -> None:
        """Close the queue and the files of a context whose client has ended."""
        self.context.queue.close()
        self.close_files()

    def close_files(self) -> list[int]:
        """Deregister all memory without reporting a finding; return the memory handles."""
        numbers = list(self.handles)
        for number in numbers:
            memory, descriptor = self.handles.pop(number)
            self.context.shared.deregister([memory])
            os.close(descriptor)
        return numbers


def create(call: ClientCall) -> int:
    """Answer `QnnContext_create` with an error, because LPAI graphs are prepared offline."""
    call.handle(0, "backend", 4011)
    sentence = "LPAI does not compose graphs at run time: prepare a context binary offline"
    cure = "run `qnnmem prepare` on the model, then call QnnContext_createFromBinary"
    call.fail(NOT_SUPPORTED, finding("R14", sentence, call=call.name, cure=cure))


def create_from_binary(call: ClientCall) -> int:
    """Answer `QnnContext_createFromBinary`; return its error code."""
    check_out(call, 5)
    backend = call.handle(0, "backend", 4011)
    configs = [_config(call, address) for address in layout.pointers(call.memory, call.word(2))]
    binary = take_binary(call, 3, 4, _INVALID)
    with call.here():
        context = Context.create_from_binary(backend, binary, configs)
    kept = binary if context.config.persistent_binary else None
    if kept is not None and call.process.buffers.is_on_stack(kept):
        note_stack(call, kept, "the binary")
    if kept is not None:
        trace_writes(call, kept)
    return give(call, "context", CheckedContext(context, kept), 5)


def take_binary(call: ClientCall, at: int, size_at: int, code: int) -> ForeignMemory:
    """Return the buffer of a binary; fail the call if the buffer is too short, freed or NULL."""
    address, size = call.word(at), call.word(size_at)
    if not address or not size:
        call.fail(code, finding("B1", "the binary is NULL or has no bytes", call=call.name))
    if size > _MOST_BINARY:
        sentence = f"a binary of {size:,} bytes is over the checker's limit"
        call.fail(1002, finding("B1", sentence, call=call.name))
    binary = call.process.buffers.take(address, size)
    if binary.freed:
        sentence = "the buffer of the binary was freed before the call"
        call.fail(code, _at(finding("R10", sentence, call=call.name), binary))
    call.process.buffers.refresh(binary)
    if binary.freed:
        raise Unreadable(address, size)
    if binary.size < size:
        sentence = (
            f"the call states {size:,} bytes for the binary, but its buffer has {binary.size:,}"
        )
        call.fail(code, _at(finding("R4", sentence, call=call.name), binary))
    return binary


def _at(found: Finding, buffer: ForeignMemory) -> Finding:
    return replace(found, buffer="binary", address=buffer.address)


def trace_writes(call: ClientCall, buffer: ForeignMemory) -> None:
    """Make the client report the next write to a buffer (`--trace-state`)."""
    if call.session.trace_state and not buffer.freed:
        call.process.buffers.trace(buffer)
        call.demand(Action.PROTECT, buffer.address, buffer.size)


def note_stack(call: ClientCall, buffer: ForeignMemory, what: str) -> None:
    """Report rule C5: memory that must remain valid is on the stack."""
    sentence = (
        f"{what} is on the stack, at {buffer.address:#x}, "
        "but must stay valid until the context is freed"
    )
    call.note(finding("C5", sentence, call.name, buffer=what, address=buffer.address))


def _config(call: ClientCall, address: int) -> Config:
    option, value = layout.option(call.memory, address)
    if option in _NUMBERS:
        return Config(option, call.memory.unpack(_NUMBERS[ContextOption(option)], address + 8)[0])
    if option == ContextOption.ENABLE_GRAPHS:
        names = [call.memory.text(one) for one in layout.pointers(call.memory, value)]
        return Config(option, names)
    if option != ContextOption.CUSTOM:
        return Config(option, value)
    inner, pointer = layout.option(call.memory, value)
    if inner == ContextCustomOption.MODEL_BUFFER_MEM_TYPE:
        return custom(inner, call.memory.unpack("<I", pointer)[0])
    if inner == ContextCustomOption.ENABLE_ISLAND:
        return custom(inner, call.memory.text(pointer) if pointer else None)
    return custom(inner, pointer)


def free(call: ClientCall) -> int:
    """Answer `QnnContext_free`; return its error code."""
    checked: CheckedContext = call.handle(0, "context", 5002)
    flight = call.session.flights.using(checked, call.connection)
    if flight is not None:
        name = flight.graph.graph.name[:80]
        found = finding("R16", f"the context is freed while graph {name!r} executes", call.name)
        cure = "wait for all executions to end before freeing the context"
        call.note(replace(found, cure=cure), flight.trace, STILL_EXECUTES)
    if checked.binary is not None:
        call.process.buffers.refresh(checked.binary)
    checked.freeing = call.trace
    checked.context.free()
    for number in checked.graphs.values():
        call.session.handles.free(number, ("graph", call.trace))
    for number in checked.close_files():
        call.session.handles.free(number)
    call.free_handle(0)
    return 0


def validate_binary(call: ClientCall) -> int:
    """Answer `QnnContext_validateBinary`; return its error code."""
    from qnnmem.lpai.binary import check_device, unpack

    backend = call.handle(0, "backend", 4011)
    compiled = unpack(take_binary(call, 3, 4, _INVALID).array.data)
    check_device(compiled, backend.profile.hw_version.word, strict=False)
    return 0


def get_binary(call: ClientCall) -> int:
    """Answer `QnnContext_getBinary` and `getBinarySize`.

    Both calls fail if the context was created from a binary.
    """
    call.handle(0, "context", 5002).context.get_binary()
    return 0


def graph_create(call: ClientCall) -> int:
    """Answer `QnnGraph_create`, which fails in a context that was created from a binary."""
    checked: CheckedContext = call.handle(0, "context", 5002)
    checked.context.graph_create(call.memory.text(call.word(1)) if call.word(1) else "")
    return 0


def no_additions(call: ClientCall) -> int:
    """Fail a call that adds nodes or tensors to a context that was created from a binary."""
    is_graph = call.name in ("QnnGraph_addNode", "QnnTensor_createGraphTensor")
    call.handle(0, *(("graph", 6001) if is_graph else ("context", 5002)))
    sentence = "a context created from a binary accepts no new nodes or tensors"
    call.fail(1005, finding("R11", sentence, call=call.name))


# Shared memory


def mem_register(call: ClientCall) -> int:
    """Answer `QnnMem_register`; open the client's files here, so that no bytes are copied."""
    checked: CheckedContext = call.handle(0, "context", 5002)
    count = call.number(2)
    if not 0 < count <= _MOST_DESCRIPTORS:
        call.fail(
            8000,
            finding("M2", f"the number of descriptors, {count:,}, is out of range", call=call.name),
        )
    opened: list[int] = []
    try:
        descriptors = [_descriptor(call, call.word(1) + 48 * at, opened) for at in range(count)]
        with call.here():
            handles = checked.context.mem_register(descriptors)
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    held = [(checked, handle, call.trace) for handle in handles]
    numbers = [call.session.give("memory", value, call.process) for value in held]
    for number, handle, descriptor in zip(numbers, handles, opened, strict=False):
        checked.handles[number] = (handle, descriptor)
    call.memory.write(struct.pack(f"<{len(numbers)}Q", *numbers), call.word(3))
    return 0


def _descriptor(call: ClientCall, address: int, opened: list[int]) -> MemDescriptor:
    rank, sizes, data_type, kind = call.memory.unpack("<IxxxxQ8xII", address)
    shape = layout.dimensions(call.memory, sizes, rank)
    fd, offset = 0, 0
    if kind == MemRegisterType.CUSTOM:
        fd, offset = call.memory.unpack("<iI", call.memory.pointer(address + 32))
    else:
        fd = call.memory.unpack("<i", address + 32)[0]
    own = _open(call.process.pid, fd)
    if own >= 0:
        opened.append(own)
    if tensor_bytes(shape, data_type) is None:
        call.fail(8000, finding("M2", f"data type {data_type:#x} has no size", call=call.name))
    return MemDescriptor(shape, data_type, kind, MemInfoCustom(own, offset))


def _open(pid: int, fd: int) -> int:
    """Open a file of the client by its descriptor; return -1 if it is not a regular file."""
    path = f"/proc/{pid}/fd/{fd}"
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - follows a link in /proc
            return -1
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1


def mem_deregister(call: ClientCall) -> int:
    """Answer `QnnMem_deRegister`; return its error code."""
    count = call.number(1)
    if not 0 < count <= _MOST_DESCRIPTORS:
        call.fail(
            8000,
            finding("M2", f"the number of handles, {count:,}, is out of range", call=call.name),
        )
    numbers = call.memory.unpack(f"<{count}Q", call.word(0))
    unknown = 0
    for number in numbers:
        found = call.session.handles.get(number)
        if found is None or found.kind != "memory":
            unknown += 1
            continue
        checked, handle, _ = found.value
        checked.context.mem_deregister([handle])
        os.close(checked.handles.pop(number)[1])
        call.session.handles.free(number, ("memory", call.trace))
    if unknown:
        sentence = f"{unknown} of {count} memory handles are not registered"
        call.fail(8001, finding("M2", sentence, call=call.name))
    return 0


# Description of a binary


@dataclass(slots=True)
class ClientSystem:
    """A system context, and the client memory that holds its answers."""

    system: SystemContext
    blocks: list[tuple[int, int]] = field(default_factory=list)  # address and size


def system_create(call: ClientCall) -> int:
    """Answer `QnnSystemContext_create`; return its error code."""
    check_out(call, 0)
    with call.here():
        return give(call, "system context", ClientSystem(SystemContext.create()), 0)


def binary_info(call: ClientCall) -> int:
    """Answer `QnnSystemContext_getBinaryInfo` and `getMetadata`."""
    system: ClientSystem = call.handle(0, "system context", 30000)
    binary = take_binary(call, 1, 2, 30001)
    try:
        info = system.system.get_binary_info(binary.array)
    except UsageError as exc:
        raise qnn_error(30001, finding("B1", str(exc), call=call.name)) from exc
    is_newer = call.name != "QnnSystemContext_getBinaryInfo"
    block = layout.BinaryInfoBlock(info, call.session.binary_info or (3 if is_newer else 1))
    address = call.demand(Action.ALLOCATE, block.size)
    call.memory.write(block.placed(address), address)
    system.blocks.append((address, block.size))
    call.memory.write(struct.pack("<Q", address), call.word(3))
    if call.word(4) and call.name == "QnnSystemContext_getBinaryInfo":
        call.memory.write(struct.pack("<Q", system.system.binary_info_size), call.word(4))
    return 0


def system_free(call: ClientCall) -> int:
    """Answer `QnnSystemContext_free`; all that this system context returned becomes invalid."""
    system: ClientSystem = call.handle(0, "system context", 30000)
    system.system.free()
    for address, size in system.blocks:
        for gone in call.process.buffers.answers.release(address, size, call.trace):
            call.demand(Action.RELEASE, gone)
    call.free_handle(0)
    return 0


def footprint(call: ClientCall) -> int:
    """Answer `QnnSystemTensor_getMemoryFootprint`; return its error code."""
    address = call.word(0) + 8
    data_type, rank, sizes = call.memory.unpack("<24xI44xIxxxxQ", address)
    size = tensor_bytes(layout.dimensions(call.memory, sizes, rank), data_type)
    if size is None:
        return 30001
    call.memory.write(struct.pack("<Q", size), call.word(1))
    return 0
