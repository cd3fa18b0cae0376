"""libQnnHtp and libQnnSystem: versions, context binaries, and the calls of a client."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ctypes import addressof, byref, c_char_p, c_uint32, c_uint64, c_void_p, sizeof
from pathlib import Path
from time import perf_counter
from typing import Any

from qnnmem.errors import Refused
from qnnmem.htp.requests import (
    OWN_MARK,
    AllocateCall,
    Call,
    CallsReply,
    CallsRequest,
    CallTensor,
    DeregisterCall,
    ExecuteCall,
    FreeCall,
    LoadReply,
    LoadRequest,
    RegisterCall,
    RetrieveCall,
    VersionsReply,
)
from qnnmem.qnn.abi import (
    BACKEND_CALLS,
    SYSTEM_CALLS,
    BackendInterface,
    CBinaryInfo,
    CConfig,
    CGraphInfoV3,
    CHtpMem,
    CMemDescriptor,
    CTensor,
    LogCallback,
    SystemInterface,
    bind,
    first_provider,
)
from qnnmem.qnn.codes import code_of

ERROR, INFO, VERBOSE = 1, 3, 4
_LETTER = {1: "E", 2: "W", 3: "I", 4: "V", 5: "D"}
_LINE_BYTES = 8192


def versions(folder: Path) -> VersionsReply:
    """Return the build and API versions of libQnnHtp."""
    interface = _interface(folder)
    calls = bind(interface.table, BACKEND_CALLS)
    build = c_char_p()
    check(calls["backend_get_build_id"](byref(build)), "backend_get_build_id")
    return VersionsReply(
        (interface.name or b"").decode("utf-8", "replace"),
        interface.backend_id,
        (build.value or b"").decode("utf-8", "replace"),
        interface.core_api.numbers,
        interface.backend_api.numbers,
    )


def load(folder: Path, request: LoadRequest) -> LoadReply:
    """Load binaries and return QNN's code for each; admitted binaries stay loaded until the end.

    Refused binaries are skipped, as an application would do.
    """
    codes = []
    with opened_device(folder, request.soc) as (calls, backend, device), ExitStack() as kept:
        for number, path in enumerate(request.binaries):
            say(f"loading binary {number}")
            address, size = kept.enter_context(file_view(path))
            context = c_void_p()
            code = code_of(
                calls["context_create_from_binary"](
                    backend, device, None, address, size, byref(context), None
                )
            )
            codes.append(code)
            if code == 0:
                kept.callback(calls["context_free"], context, None)
        say("freeing")
    return LoadReply(codes)


@contextmanager
def opened_device(
    folder: Path, soc: int, level: int = VERBOSE
) -> Iterator[tuple[dict[str, Any], c_void_p, c_void_p]]:
    """Yield libQnnHtp's functions, a backend and a SoC's device; free the objects at the end."""
    calls = bind(_interface(folder).table, BACKEND_CALLS)
    log, backend, device = c_void_p(), c_void_p(), c_void_p()
    callback = LogCallback(_Printer())
    with ExitStack() as cleanup:
        check(calls["log_create"](callback, level, byref(log)), "log_create")
        cleanup.callback(calls["log_free"], log)
        check(calls["backend_create"](log, None, byref(backend)), "backend_create")
        cleanup.callback(calls["backend_free"], backend)
        custom = CConfig(0, soc)
        outer = CConfig(0, ctypes.addressof(custom))
        listed = (c_uint64 * 2)(ctypes.addressof(outer), 0)
        check(calls["device_create"](log, byref(listed), byref(device)), "device_create")
        cleanup.callback(calls["device_free"], device)
        yield calls, backend, device


class _Printer:
    """Writes the library's log to standard error, where the parent reads it."""

    def __init__(self) -> None:
        self._format = ctypes.CDLL(None).vsnprintf
        self._format.argtypes = (c_void_p, ctypes.c_size_t, c_char_p, c_void_p)
        self._buffer = ctypes.create_string_buffer(_LINE_BYTES)

    def __call__(self, form: bytes, level: int, _time: int, arguments: int) -> None:
        self._format(self._buffer, _LINE_BYTES, form, arguments)
        text = self._buffer.value.strip()
        if not text.startswith(b"<"):  # most library messages already contain the level
            text = f"<{_LETTER.get(level, '?')}> ".encode() + text
        os.write(2, b" " + text + b"\n")


def _interface(folder: Path) -> Any:
    library = ctypes.CDLL(str(folder / "libQnnHtp.so"), mode=ctypes.RTLD_GLOBAL)
    return first_provider(library, "QnnInterface_getProviders", BackendInterface)


def check(handle: int, call: str, stage: str = "load", library: str = "libQnnHtp") -> None:
    """Raise Refused if a call returned an error code."""
    code = code_of(handle)
    if code:
        raise Refused(stage, f"{library} returned code {code} from {call}", code)


def say(text: str) -> None:
    """Write one of qnnmem's own lines to the log."""
    os.write(2, f"{OWN_MARK} {text}\n".encode())


@contextmanager
def file_view(path: Path) -> Iterator[tuple[int, int]]:
    """Yield address and size of a mapped file; writes do not change the file."""
    with path.open("rb") as file:
        # Private and copy-on-write, because ctypes insists on writable memory.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    first = ctypes.c_uint8.from_buffer(mapped)
    try:
        yield ctypes.addressof(first), len(mapped)
    finally:
        del first  # a mapping with views cannot be closed
        mapped.close()


# --- libQnnSystem: the vendor's own reader of context binaries ------------------------------------


_INFO_V3 = 3


@contextmanager
def opened_info(folder: Path, address: int, size: int) -> Iterator[CBinaryInfo]:
    """Yield libQnnSystem's description of a binary in memory; free the description at the end."""
    library = ctypes.CDLL(str(folder / "libQnnSystem.so"))
    interface = first_provider(library, "QnnSystemInterface_getProviders", SystemInterface)
    calls = bind(interface.table, SYSTEM_CALLS)
    handle, info = c_void_p(), ctypes.POINTER(CBinaryInfo)()
    check(calls["context_create"](byref(handle)), "context_create", "read", "libQnnSystem")
    try:
        check(
            calls["context_get_metadata"](handle, address, size, byref(info)),
            "get_metadata",
            "libQnnSystem",
        )
        yield info.contents
    finally:
        calls["context_free"](handle)


def graphs_of(info: CBinaryInfo) -> dict[str, CGraphInfoV3]:
    """Return all graphs of a binary, keyed by name."""
    body = info.of.v3 if info.version >= _INFO_V3 else info.of.v1
    listed = (body.graphs[k].v3 for k in range(body.graph_count))
    return {_text(graph.name): graph for graph in listed}


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


# --- A client of libQnnHtp ------------------------------------------------------------------------
# Nothing is checked here. A wrong call is passed on unchanged, to see the library's own response: a
# code, or a crash of this process.


_CUSTOM = 2
_NO_ACCESS = 0


def carry_out(folder: Path, request: CallsRequest) -> CallsReply:
    """Make the `calls` in order on contexts from `binaries`; return the result code of each.

    The number of each call is logged first, so that the log shows the crashing call.
    """
    opened = opened_device(folder, request.soc, ERROR)
    with opened as (calls, backend, device), ExitStack() as kept:
        client = _Client(calls, kept)
        for path in request.binaries:
            client.load(folder, path, backend, device)
        codes, seconds = [], []
        for number, call in enumerate(request.calls):
            say(f"call {number}: {call.__struct_config__.tag}")
            start = perf_counter()
            codes.append(client.make(call))
            seconds.append(perf_counter() - start)
        say("freeing")
    return CallsReply(codes, seconds)


class _Client:
    """The contexts, handles and memory of a client."""

    def __init__(self, calls: Mapping[str, Any], kept: ExitStack) -> None:
        self._calls, self._kept = calls, kept
        self._contexts: list[c_void_p] = []
        self._freed: set[int] = set()
        self._graphs: list[dict[str, CGraphInfoV3]] = []
        self._retrieved: dict[tuple[int, str], c_void_p] = {}
        self._handles: dict[str, int] = {}
        self._fds: dict[str, int] = {}
        self._held: list[Any] = []  # memory to which the library may still have a pointer
        self._mapped: dict[Path, int] = {}  # addresses of shared memory

    def make(self, call: Call) -> int:
        """Make one call and return its result code."""
        match call:
            case FreeCall():
                return self._free(call.context)
            case AllocateCall():
                return self._allocate(call)
            case RegisterCall():
                return self._register(call)
            case DeregisterCall():
                return self._deregister(call)
            case RetrieveCall():
                return self._retrieve(call.context, call.graph)
            case ExecuteCall():
                return self._execute(call)

    def load(self, folder: Path, path: Path, backend: Any, device: Any) -> None:
        """Create a context from a binary, and store the descriptions of the binary's tensors."""
        address, size = self._kept.enter_context(file_view(path))
        info = self._kept.enter_context(opened_info(folder, address, size))
        context = c_void_p()
        code = code_of(
            self._calls["context_create_from_binary"](
                backend, device, None, address, size, byref(context), None
            )
        )
        if code:
            raise Refused("load", f"libQnnHtp does not load the binary (code {code})", code)
        number = len(self._contexts)
        self._contexts.append(context)
        self._graphs.append(graphs_of(info))
        self._kept.callback(lambda: number in self._freed or self._free(number))

    def _free(self, number: int) -> int:
        self._freed.add(number)
        return code_of(self._calls["context_free"](self._contexts[number], None))

    def _allocate(self, call: AllocateCall) -> int:
        fd = os.memfd_create("qnnmem", os.MFD_CLOEXEC)
        os.ftruncate(fd, call.size)
        self._fds[call.name] = fd
        return 0

    def _register(self, call: RegisterCall) -> int:
        place = call.place
        shape = (c_uint32 * len(place.dimensions))(*place.dimensions)
        fd = self._fds.get(call.memory, -1)
        custom = CHtpMem(place.htp_type, place.total_size, fd, place.offset)
        pointer = ctypes.cast(shape, ctypes.POINTER(c_uint32))
        described = CMemDescriptor(len(shape), pointer, None, place.data_type, place.mem_type)
        described.place[0] = addressof(custom) if place.mem_type == _CUSTOM else fd & 0xFFFFFFFF
        self._held += [shape, custom, described]
        handle = c_void_p()
        context = self._contexts[call.context]
        code = code_of(self._calls["mem_register"](context, byref(described), 1, byref(handle)))
        self._handles[call.name] = handle.value or 0
        return int(code)

    def _deregister(self, call: DeregisterCall) -> int:
        handles = (c_uint64 * 1)(self._handle(call.handle))
        return code_of(self._calls["mem_deregister"](byref(handles), 1))

    def _handle(self, handle: str | int) -> int:
        return self._handles[handle] if isinstance(handle, str) else handle

    def _retrieve(self, number: int, name: str) -> int:
        graph = c_void_p()
        code = code_of(
            self._calls["graph_retrieve"](self._contexts[number], name.encode(), byref(graph))
        )
        self._retrieved[number, name] = graph
        return int(code)

    def _execute(self, call: ExecuteCall) -> int:
        number, name = call.context, call.graph
        if (number, name) not in self._retrieved and (code := self._retrieve(number, name)):
            return code
        info = self._graphs[number][name]
        inputs = self._tensors(info.inputs, info.input_count, call.tensors)
        outputs = self._tensors(info.outputs, info.output_count, call.tensors)
        graph = self._retrieved[number, name]
        code = self._calls["graph_execute"](
            graph, byref(inputs), len(inputs), byref(outputs), len(outputs), None, None
        )
        return code_of(code)

    def _tensors(self, listed: Any, count: int, memory: Mapping[int, CallTensor]) -> Any:
        """Return the `listed` tensors that have an entry in `memory`, with this entry's memory."""
        wanted = [number for number in range(count) if listed[number].of.v1.id in memory]
        tensors = (CTensor * len(wanted))()
        for tensor, number in zip(tensors, wanted, strict=True):
            ctypes.memmove(byref(tensor), byref(listed[number]), sizeof(CTensor))
            body = tensor.of.v1
            place = memory[body.id]
            body.mem_type = place.mem_type
            body.memory[0], body.memory[1] = self._memory(place)
        self._held.append(tensors)
        return tensors

    def _memory(self, place: CallTensor) -> tuple[int, int]:
        """Return the tensor's memory union: a handle and 0, or an address and a size."""
        if place.handle is not None:
            return self._handle(place.handle), 0
        if place.file is not None:
            return self._shared(place.file, place.offset), place.says
        return (0 if place.size is None else self._guarded(place.size)), place.says

    def _shared(self, path: Path, offset: int) -> int:
        """Map another process's shared memory and return the address at the offset."""
        if path not in self._mapped:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                mapped = mmap.mmap(fd, 0)
            finally:
                os.close(fd)
            self._held.append(mapped)
            self._mapped[path] = addressof(ctypes.c_char.from_buffer(mapped))
        return self._mapped[path] + offset

    def _guarded(self, size: int) -> int:
        """Return the address of `size` bytes before a protected page, so that overruns crash."""
        page = mmap.PAGESIZE
        room = max(page, -(-size // page) * page)
        mapped = mmap.mmap(-1, room + page)
        start = addressof(ctypes.c_char.from_buffer(mapped))
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = (c_void_p, ctypes.c_size_t, ctypes.c_int)
        protect(start + room, page, _NO_ACCESS)
        self._held.append(mapped)
        return start + room - size
