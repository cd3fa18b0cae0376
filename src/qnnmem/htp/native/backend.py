"""libQnnHtp: its versions, and which context binaries it admits one after another."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_char_p, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from qnnmem.errors import Refused
from qnnmem.htp.requests import OWN_MARK, LoadedBinary, LoadReply, LoadRequest, VersionsReply
from qnnmem.qnn.abi import (
    BACKEND_CALLS,
    BackendInterface,
    CConfig,
    LogCallback,
    bind,
    first_provider,
)

ERROR, INFO, VERBOSE = 1, 3, 4
_LETTER = {1: "E", 2: "W", 3: "I", 4: "V", 5: "D"}
_LINE_BYTES = 8192
_CODE = 0xFFFF


def versions(folder: Path) -> VersionsReply:
    """Build and API versions of libQnnHtp."""
    interface = _interface(folder)
    calls = bind(interface.table, BACKEND_CALLS)
    build = c_char_p()
    _check(calls["backend_get_build_id"](byref(build)), "backend_get_build_id")
    return VersionsReply(
        (interface.name or b"").decode("utf-8", "replace"),
        interface.backend_id,
        (build.value or b"").decode("utf-8", "replace"),
        interface.core_api.numbers,
        interface.backend_api.numbers,
    )


def load(folder: Path, request: LoadRequest) -> LoadReply:
    """Code of each binary when all are created in order and kept; then everything is freed.

    Those refused stay out and the rest goes on, as an application would see it.
    """
    found = []
    with opened_device(folder, request.soc) as (calls, backend, device), ExitStack() as kept:
        for number, path in enumerate(request.binaries):
            say(f"loading binary {number}")
            address, size = kept.enter_context(file_view(path))
            context = c_void_p()
            code = _CODE & calls["context_create_from_binary"](
                backend, device, None, address, size, byref(context), None
            )
            found.append(LoadedBinary(code, size))
            if code == 0:
                kept.callback(calls["context_free"], context, None)
        say("freeing")
    return LoadReply(found)


@contextmanager
def opened_device(
    folder: Path, soc: int, level: int = VERBOSE
) -> Iterator[tuple[dict[str, Any], c_void_p, c_void_p]]:
    """The functions of libQnnHtp, a backend and a device of a SoC, all freed at the end."""
    calls = bind(_interface(folder).table, BACKEND_CALLS)
    log, backend, device = c_void_p(), c_void_p(), c_void_p()
    callback = LogCallback(_Printer())
    with ExitStack() as made:
        _check(calls["log_create"](callback, level, byref(log)), "log_create")
        made.callback(calls["log_free"], log)
        _check(calls["backend_create"](log, None, byref(backend)), "backend_create")
        made.callback(calls["backend_free"], backend)
        custom = CConfig(0, soc)
        outer = CConfig(0, ctypes.addressof(custom))
        listed = (c_uint64 * 2)(ctypes.addressof(outer), 0)
        _check(calls["device_create"](log, byref(listed), byref(device)), "device_create")
        made.callback(calls["device_free"], device)
        yield calls, backend, device


class _Printer:
    """Writes what the library logs to standard error, where the parent reads."""

    def __init__(self) -> None:
        self._format = ctypes.CDLL(None).vsnprintf
        self._format.argtypes = (c_void_p, ctypes.c_size_t, c_char_p, c_void_p)
        self._buffer = ctypes.create_string_buffer(_LINE_BYTES)

    def __call__(self, form: bytes, level: int, _time: int, arguments: int) -> None:
        self._format(self._buffer, _LINE_BYTES, form, arguments)
        text = self._buffer.value.strip()
        if not text.startswith(b"<"):  # most of the library writes the level itself
            text = f"<{_LETTER.get(level, '?')}> ".encode() + text
        os.write(2, b" " + text + b"\n")


def _interface(folder: Path) -> Any:
    library = ctypes.CDLL(str(folder / "libQnnHtp.so"), mode=ctypes.RTLD_GLOBAL)
    return first_provider(library, "QnnInterface_getProviders", BackendInterface)


def _check(handle: int, call: str) -> None:
    code = handle & _CODE
    if code:
        raise Refused("load", f"libQnnHtp answered {call} with code {code}", code)


def say(text: str) -> None:
    """A line of our own in the log."""
    os.write(2, f"{OWN_MARK} {text}\n".encode())


@contextmanager
def file_view(path: Path) -> Iterator[tuple[int, int]]:
    """Address and size of a file; what is written there does not reach the file."""
    with path.open("rb") as file:
        # Private and copy-on-write: ctypes insists on writable memory.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    first = ctypes.c_uint8.from_buffer(mapped)
    try:
        yield ctypes.addressof(first), len(mapped)
    finally:
        del first  # a mapping with views of it cannot be closed
        mapped.close()
