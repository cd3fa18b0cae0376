"""A client of libQnnHtp: contexts from binaries, then any calls of `QnnMem` and `QnnGraph_execute`.

Nothing is checked here. A wrong call is made as it is asked for, so that the library's own answer
is seen: a code, or the end of this process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping
from contextlib import ExitStack
from ctypes import addressof, byref, c_uint32, c_uint64, c_void_p, sizeof
from pathlib import Path
from typing import Any

from qnnmem.errors import Refused
from qnnmem.htp.native.backend import ERROR, file_view, opened_device, say
from qnnmem.htp.native.system import graphs_of, opened_info
from qnnmem.htp.requests import (
    AllocateCall,
    Call,
    CallsReply,
    CallsRequest,
    CallTensor,
    DeregisterCall,
    ExecuteCall,
    FreeCall,
    RegisterCall,
    RetrieveCall,
)
from qnnmem.qnn.abi import CGraphInfoV3, CHtpMem, CMemDescriptor, CTensor

_CODE = 0xFFFF
_CUSTOM = 2
_NO_ACCESS = 0


def carry_out(folder: Path, request: CallsRequest) -> CallsReply:
    """Code of each call in `calls`, in order, on contexts made from `binaries`.

    Before each call its number is logged: after a crash the log tells which one it was.
    """
    opened = opened_device(folder, request.soc, ERROR)
    with opened as (calls, backend, device), ExitStack() as kept:
        client = _Client(calls, kept)
        for path in request.binaries:
            client.load(folder, path, backend, device)
        codes = []
        for number, call in enumerate(request.calls):
            say(f"call {number}: {call.__struct_config__.tag}")
            codes.append(client.make(call))
        say("freeing")
    return CallsReply(codes)


class _Client:
    """Contexts, handles and memory while calls are made."""

    def __init__(self, calls: Mapping[str, Any], kept: ExitStack) -> None:
        self._calls, self._kept = calls, kept
        self._contexts: list[c_void_p] = []
        self._freed: set[int] = set()
        self._graphs: list[dict[str, CGraphInfoV3]] = []
        self._retrieved: dict[tuple[int, str], c_void_p] = {}
        self._handles: dict[str, int] = {}
        self._fds: dict[str, int] = {}
        self._held: list[Any] = []  # memory that the library may still have a pointer to

    def make(self, call: Call) -> int:
        """Make one call; its code."""
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
        """Create a context from a binary, and keep what its tensors look like."""
        address, size = self._kept.enter_context(file_view(path))
        info = self._kept.enter_context(opened_info(folder, address, size))
        context = c_void_p()
        code = _CODE & self._calls["context_create_from_binary"](
            backend, device, None, address, size, byref(context), None
        )
        if code:
            raise Refused("load", f"libQnnHtp does not load the binary (code {code})", code)
        number = len(self._contexts)
        self._contexts.append(context)
        self._graphs.append(graphs_of(info))
        self._kept.callback(lambda: number in self._freed or self._free(number))

    def _free(self, number: int) -> int:
        self._freed.add(number)
        return int(_CODE & self._calls["context_free"](self._contexts[number], None))

    def _allocate(self, call: AllocateCall) -> int:
        fd = os.memfd_create("qnnmem", os.MFD_CLOEXEC)
        os.ftruncate(fd, call.size)
        self._fds[call.name] = fd
        return 0

    def _register(self, call: RegisterCall) -> int:
        shape = (c_uint32 * len(call.dimensions))(*call.dimensions)
        fd = self._fds.get(call.memory, -1)
        custom = CHtpMem(call.htp_type, call.total_size, fd, call.offset)
        pointer = ctypes.cast(shape, ctypes.POINTER(c_uint32))
        described = CMemDescriptor(len(shape), pointer, None, call.data_type, call.mem_type)
        described.place[0] = addressof(custom) if call.mem_type == _CUSTOM else fd & 0xFFFFFFFF
        self._held += [shape, custom, described]
        handle = c_void_p()
        context = self._contexts[call.context]
        code = _CODE & self._calls["mem_register"](context, byref(described), 1, byref(handle))
        self._handles[call.name] = handle.value or 0
        return int(code)

    def _deregister(self, call: DeregisterCall) -> int:
        handles = (c_uint64 * 1)(self._handle(call.handle))
        return int(_CODE & self._calls["mem_deregister"](byref(handles), 1))

    def _handle(self, given: str | int) -> int:
        return self._handles[given] if isinstance(given, str) else given

    def _retrieve(self, number: int, name: str) -> int:
        graph = c_void_p()
        code = _CODE & self._calls["graph_retrieve"](
            self._contexts[number], name.encode(), byref(graph)
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
        return int(_CODE & code)

    def _tensors(self, listed: Any, count: int, given: Mapping[int, CallTensor]) -> Any:
        """The tensors of a side that are given, as the binary describes them."""
        wanted = [k for k in range(count) if listed[k].of.v1.id in given]
        tensors = (CTensor * len(wanted))()
        for place, k in enumerate(wanted):
            ctypes.memmove(byref(tensors[place]), byref(listed[k]), sizeof(CTensor))
            body = tensors[place].of.v1
            what = given[body.id]
            body.mem_type = what.mem_type
            body.memory[0], body.memory[1] = self._memory(what)
        self._held.append(tensors)
        return tensors

    def _memory(self, what: CallTensor) -> tuple[int, int]:
        """The union of a tensor: a handle, or an address and what is said of its size."""
        if what.handle is not None:
            return self._handle(what.handle), 0
        if what.file is not None:
            return self._shared(what.file, what.offset), what.says
        return (0 if what.size is None else self._guarded(what.size)), what.says

    def _shared(self, path: Path, offset: int) -> int:
        """Address of bytes in another process's shared memory, not a copy of it."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        self._held.append(mapped)
        return addressof(ctypes.c_char.from_buffer(mapped)) + offset

    def _guarded(self, size: int) -> int:
        """Address of bytes that end where a page begins that nobody may touch."""
        page = mmap.PAGESIZE
        room = max(page, -(-size // page) * page)
        mapped = mmap.mmap(-1, room + page)
        start = addressof(ctypes.c_char.from_buffer(mapped))
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = (c_void_p, ctypes.c_size_t, ctypes.c_int)
        protect(start + room, page, _NO_ACCESS)
        self._held.append(mapped)
        return start + room - size
