"""The side that the observers in a program's processes talk to: a thread for each of theirs.

Whatever they say is bounded and may be wrong; at worst their connection ends, and then the program
goes on by itself. Memory of the program is only ever read.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from qnnmem.client.functions import NAMES
from qnnmem.client.layout import dimensions
from qnnmem.client.memory import ClientMemory
from qnnmem.errors import Fault
from qnnmem.qnn.shared_memory import tensor_bytes
from qnnmem.text import shorten
from qnnmem.watch.functions import DEREGISTER, MAKES, NAMED, REGISTER, SIZES, plan
from qnnmem.watch.injections import Injection, InjectionCounter
from qnnmem.watch.recorder import TraceRecorder
from qnnmem.watch.trace import MOST_HANDLES, CallSeen, LibrarySeen, LogSeen

_HEAD = struct.Struct("<IHH")
_REPLY = struct.Struct("<II3Q")
_LARGEST = 4096  # bytes of a message
_HELLO, _LIBRARY, _ASK, _TOLD, _LOGGED = range(1, 6)
_GO, _ANSWER = range(2)
_INJECTED, _WAITS = 1, 2
_VERSION = 1
_MOST_CONNECTIONS = 512
_MOST_PROCESSES = 256
_MOST_SLOTS = 64  # of libraries in one process
_JOIN_S = 5.0
_NAME = 200
_FIRST_FUNCTION = (40, 32)  # where the tables of backends and of the system library have it


class ObserverGone(Fault):
    """An observer that is no more, or says what none of ours says."""


class _Said(NamedTuple):
    kind: int
    function: int
    words: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class _Before:
    """What was found out about a call while it waited."""

    function: int
    name: str = ""
    size: int = 0
    handles: tuple[int, ...] = ()


class WatchServer:
    """Listens as long as a program runs."""

    def __init__(
        self, folder: Path, recorder: TraceRecorder, injections: Sequence[Injection]
    ) -> None:
        self.recorder = recorder
        self.injections = InjectionCounter(injections)
        self.plan = plan(one.function for one in injections)
        self.path = folder / "socket"
        self.memories: dict[int, ClientMemory] = {}
        self.heard = False  # whether any program asked for QNN
        self.crash: BaseException | None = None  # a mistake of ours
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(str(self.path))
        self._door.listen(64)
        self._lines: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="watch door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; what was said before is heard."""
        with self._lock:
            threads = tuple(self._threads)
        _join(threads)
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join(_JOIN_S)
        with self._lock:
            lines, threads = tuple(self._lines), tuple(self._threads)
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        _join(threads)
        for memory in self.memories.values():
            memory.close()
        with contextlib.suppress(OSError):  # the program can put anything there
            self.path.unlink()

    def memory(self, pid: int) -> ClientMemory:
        """The memory of a process that says hello."""
        with self._lock:
            found = self.memories.get(pid)
            if found is None:
                if len(self.memories) >= _MOST_PROCESSES:
                    raise ObserverGone("too many processes")
                try:
                    found = self.memories[pid] = ClientMemory(pid)
                except OSError as exc:
                    raise ObserverGone("the process cannot be looked into") from exc
            return found

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._door.accept()
            except OSError:
                return
            with self._lock:
                if len(self._lines) >= _MOST_CONNECTIONS:
                    line.close()
                    continue
                self._lines.add(line)
                thread = threading.Thread(target=self._serve, args=(line,), daemon=True)
                self._threads.add(thread)
            thread.start()

    def _serve(self, line: socket.socket) -> None:
        try:
            _WatchedThread(self, line).listen()
        except Fault:
            pass  # it is gone
        except Exception as exc:  # the program must not wait for an answer that never comes
            self.crash = self.crash or exc
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                self._lines.discard(line)
            line.close()


class _WatchedThread:
    """One thread of the program."""

    def __init__(self, server: WatchServer, line: socket.socket) -> None:
        self._server, self._line = server, line
        self._input = line.makefile("rb")
        self._waiting: list[_Before] = []
        self._pid = int(
            struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        )
        self._tid = 0

    def listen(self) -> None:
        """Hear it out."""
        with self._input:
            hello = self._receive()
            if hello.kind != _HELLO or len(hello.words) != 6 or hello.words[0] != _VERSION:
                raise ObserverGone("it does not say hello")
            self._memory = self._server.memory(self._pid)
            self._tid = hello.words[4] & 0xFFFFFFFF
            self._reply(data=self._server.plan)
            answers = {
                _LIBRARY: self._library,
                _ASK: self._ask,
                _TOLD: self._told,
                _LOGGED: self._logged,
            }
            while True:
                said = self._receive()
                if said.kind not in answers:
                    raise ObserverGone("it says what none of ours says")
                answers[said.kind](said)

    def _receive(self) -> _Said:
        try:
            head = self._input.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise ObserverGone("it is gone")
            length, kind, function = _HEAD.unpack(head)
            if not _HEAD.size <= length <= _LARGEST or length % 8:
                raise ObserverGone("it says what is no message")
            data = self._input.read(length - _HEAD.size)
        except (OSError, ValueError) as exc:
            raise ObserverGone("it is gone") from exc
        if len(data) < length - _HEAD.size:
            raise ObserverGone("it is gone")
        return _Said(kind, function, struct.unpack(f"<{len(data) // 8}Q", data), data)

    def _reply(self, action: int = _GO, a: int = 0, data: bytes = b"") -> None:
        try:
            self._line.sendall(_REPLY.pack(_REPLY.size + len(data), action, a, 0, 0) + data)
        except OSError as exc:
            raise ObserverGone("it is gone") from exc

    def _library(self, said: _Said) -> None:
        if len(said.words) != 3:
            raise ObserverGone("it names no library")
        slot, is_system, address = said.words
        if slot > _MOST_SLOTS:
            raise ObserverGone("it names no library")
        memory, recorder = self._memory, self._server.recorder
        with contextlib.suppress(Fault):
            number, name, *version = memory.unpack("<IxxxxQ6I", address)
            first = memory.pointer(address + _FIRST_FUNCTION[bool(is_system)])
            maps = memory.mappings()
            path = next((one.path for one in maps if one.start <= first < one.end), "")
            api, own = ".".join(map(str, version[:3])), ".".join(map(str, version[3:]))
            recorder.add(
                LibrarySeen(
                    *(self._pid, recorder.now(), slot, number),
                    shorten(memory.text(name), _NAME),
                    *(api, "" if is_system else own, shorten(path, 4 * _NAME)),
                )
            )
        self._server.heard = True
        self._reply()

    def _ask(self, said: _Said) -> None:
        function, words = said.function, said.words[2:]
        if function not in NAMES:
            raise ObserverGone("it asks about a function that is none")
        before = _Before(function)
        with contextlib.suppress(Fault):  # what cannot be read is not known
            before = self._look(function, words)
        self._waiting.append(before)
        del self._waiting[:-16]  # calls inside of callbacks inside of calls
        code = self._server.injections.code_for(function, before.size)
        self._reply(_ANSWER if code else _GO, code)

    def _look(self, function: int, words: tuple[int, ...]) -> _Before:
        at = NAMED.get(function)
        if at is not None and at < len(words):
            return _Before(function, name=shorten(self._memory.text(words[at]), _NAME))
        if function == REGISTER and len(words) == 4:
            return _Before(function, size=self._registered(words[1], words[2] & 0xFFFFFFFF))
        if function == DEREGISTER and len(words) == 2:
            handles = self._handles(words[0], words[1] & 0xFFFFFFFF)
            return _Before(function, handles=handles)
        return _Before(function, size=_size(function, words))

    def _registered(self, address: int, count: int) -> int:
        """Bytes of the tensors that are registered, as their descriptors have them."""
        total = 0
        for at in range(min(count, MOST_HANDLES)):
            rank, sizes, data_type = self._memory.unpack("<IxxxxQ8xI", address + 48 * at)
            shape = dimensions(self._memory, sizes, rank)
            total += tensor_bytes(shape, data_type) or 0
        return min(total, (1 << 63) - 1)

    def _handles(self, address: int, count: int) -> tuple[int, ...]:
        kept = min(count, MOST_HANDLES)
        return tuple(self._memory.unpack(f"<{kept}Q", address)) if kept else ()

    def _told(self, said: _Said) -> None:
        function, words = said.function, said.words
        count = words[6] if len(words) >= 7 else 0
        if function not in NAMES or not 0 < count <= len(words) - 7 or words[0] > _MOST_SLOTS:
            raise ObserverGone("it tells of a call that is none")
        slot, begin, end, code, flags, handle = words[:6]
        arguments, frames = words[7 : 7 + count], words[7 + count :]
        before = self._before(function)
        handles = before.handles
        if function == REGISTER:
            if code == 0 and count == 4:
                with contextlib.suppress(Fault):
                    handles = self._handles(arguments[3], arguments[2] & 0xFFFFFFFF)
        elif NAMES[function] in MAKES and code == 0:
            handles = (handle,)
        recorder = self._server.recorder
        place, since = recorder.place(self._memory, frames), recorder.since_start(begin)
        recorder.add(
            CallSeen(
                *(self._pid, self._tid, slot, NAMES[function]),
                *(since, max(since, recorder.since_start(end)), code & 0xFFFF),
                on=arguments[0],
                handles=handles,
                bytes=before.size or _size(function, arguments),
                name=before.name,
                place=place,
                injected=bool(flags & _INJECTED),
            )
        )
        if flags & _WAITS:
            self._reply()

    def _before(self, function: int) -> _Before:
        for at in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[at].function == function:
                return self._waiting.pop(at)
        return _Before(function)

    def _logged(self, said: _Said) -> None:
        if len(said.words) < 3:
            raise ObserverGone("it logs nothing")
        clock, level, length = said.words[:3]
        text = said.data[24 : 24 + min(length, _LARGEST)].decode("utf-8", "replace")
        recorder = self._server.recorder
        time = recorder.since_start(clock)
        line = shorten(text.rstrip(), 2000)
        recorder.add(LogSeen(self._pid, self._tid, time, level & 0xFF, line))


def _join(threads: Iterable[threading.Thread]) -> None:
    end = monotonic() + _JOIN_S  # for all of them together
    for thread in threads:
        thread.join(max(0.0, end - monotonic()))


def _size(function: int, words: tuple[int, ...]) -> int:
    at = SIZES.get(function)
    return 0 if at is None or at >= len(words) else min(words[at], (1 << 63) - 1)
