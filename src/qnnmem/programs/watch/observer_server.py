"""Receives reports of the observers in a program: one thread per program thread.

Messages are bounded and untrusted: a bad message ends its connection, and the program continues.
The program's memory is only read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qnnmem.programs.functions import (
    DEREGISTER,
    EXECUTES,
    GRAPH_TENSOR,
    MAKES,
    NAMED,
    NAMES,
    REGISTER,
    SIZES,
    plan,
)
from qnnmem.programs.layout import TooLong, dimensions
from qnnmem.programs.ledger import Hangup
from qnnmem.programs.process_memory import (
    KnownProcesses,
    Presence,
    ProcessMemory,
    Unreadable,
    presence,
)
from qnnmem.programs.python_lines import PythonLines
from qnnmem.programs.socket_server import Message, ProgramConnection, SocketServer
from qnnmem.programs.watch.injections import Injection, InjectionCounter
from qnnmem.programs.watch.prepared_tensors import BinaryReader, PreparedTensors
from qnnmem.programs.watch.trace import (
    MOST_HANDLES,
    CallSeen,
    LibrarySeen,
    LogSeen,
    TensorUse,
    TraceRecorder,
)
from qnnmem.qnn.shared_memory import tensor_bytes
from qnnmem.results.result import MAX_COUNT
from qnnmem.text import shorten

_HELLO, _LIBRARY, _ASK, _TOLD, _LOGGED, _PYTHON, _WAITED = range(1, 8)
_GO, _ANSWER = range(2)
_INJECTED, _WAITS = 1, 2
_VERSION = 2
_HELLO_WORDS = 6
_MOST_WORDS = 256
_MOST_SLOTS = 64  # libraries in one process
_NAME = 200
_FIRST_FUNCTION = (40, 32)  # index of the first function, by kind of table


@dataclass(frozen=True, slots=True)
class _Before:
    """Arguments of a call, read before the call."""

    function: int
    name: str = ""
    size: int = 0
    handles: tuple[int, ...] = ()
    uses: tuple[TensorUse, ...] = ()
    is_unread: bool = False  # True: its arguments could not be read


class Turns:
    """Counts calls that waited for another call."""

    def __init__(self) -> None:
        self.waited = self.waited_ns = self.gave_up = 0
        self._lock = threading.Lock()

    def add(self, ns: int, *, had_turn: bool) -> None:
        """Count a call that waited; `had_turn` is False if the call gave up and ran anyway."""
        with self._lock:
            self.waited += 1
            self.waited_ns = min(self.waited_ns + ns, MAX_COUNT)
            self.gave_up += not had_turn


class WatchServer:
    """Server that receives the observers' reports while a program runs."""

    def __init__(
        self,
        folder: Path,
        recorder: TraceRecorder,
        injections: Sequence[Injection],
        *,
        one_at_a_time: bool = False,
        read_binary: BinaryReader | None = None,
    ) -> None:
        self.recorder = recorder
        self.injections = InjectionCounter(injections)
        self.plan = plan(
            (injection.function for injection in injections), one_at_a_time=one_at_a_time
        )
        self.turns = Turns()
        self.prepared = PreparedTensors(read_binary)
        self._processes = KnownProcesses[Presence]()
        self.sockets = SocketServer(folder, self._talk, _MOST_WORDS)

    def close(self) -> None:
        """Close all connections."""
        self.sockets.hang_up()
        if self.sockets.close():
            self._processes.close()

    def memory(self, pid: int) -> ProcessMemory:
        """Return the memory of a process that sent a hello message."""
        return self._processes.find(pid, lambda: presence(ProcessMemory(pid))).memory

    def _talk(self, line: ProgramConnection) -> bool:
        hello = line.receive()
        known = hello.kind == _HELLO and len(hello.words) == _HELLO_WORDS
        if not known or hello.words[0] != _VERSION:
            raise Hangup("the program sent no greeting")
        thread = _WatchedThread(self, line, self.memory(line.peer()), hello.words[4])
        line.confirm()
        ledger = self.sockets.ledger
        row = ledger.row(hello.words[5])
        line.send(_GO, data=self.plan)
        while True:
            thread.hear(line.receive())
            ledger.hear(row)


class _WatchedThread:
    """Observer connection of one program thread."""

    def __init__(
        self, server: WatchServer, line: ProgramConnection, memory: ProcessMemory, tid: int
    ) -> None:
        self._server, self._line, self._memory = server, line, memory
        self._pid, self._tid = memory.pid, tid & 0xFFFFFFFF
        self._waiting: list[_Before] = []
        self._answers = {
            _LIBRARY: self._library,
            _ASK: self._ask,
            _TOLD: self._told,
            _LOGGED: self._logged,
            _PYTHON: self._python,
            _WAITED: self._waited,
        }
        self._lines = PythonLines()

    def hear(self, said: Message) -> None:
        """Handle one message, and answer the message if the program waits for an answer."""
        if said.kind not in self._answers:
            raise Hangup("the program sent an unknown message")
        self._answers[said.kind](said)

    def _library(self, said: Message) -> None:
        if len(said.words) != 3:
            raise Hangup("the program sent a malformed report of a library")
        slot, is_system, address = said.words
        if slot > _MOST_SLOTS:
            raise Hangup("the program sent a malformed report of a library")
        memory, recorder = self._memory, self._server.recorder
        with contextlib.suppress(Unreadable):
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
        self._line.send(_GO)

    def _ask(self, said: Message) -> None:
        function, words = said.function, said.words[2:]
        if function not in NAMES or len(said.words) < 2:
            raise Hangup("the program asked about an unknown function")
        try:
            before = self._look(function, words, said.words[0])
        except (Unreadable, TooLong):
            before = _Before(function, is_unread=True)
        self._waiting.append(before)
        del self._waiting[:-16]  # nesting depth of calls inside callbacks
        code = self._server.injections.code_for(function, before.size)
        self._line.send(_ANSWER if code else _GO, code)

    def _look(self, function: int, words: tuple[int, ...], slot: int) -> _Before:
        if function in EXECUTES and len(words) > 4:
            graph = self._pid, slot, words[0]
            return _Before(
                function, uses=self._server.prepared.uses(self._memory, graph, words[1:5])
            )
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
        """Return the total size in bytes of registered tensors, according to their descriptors."""
        total = 0
        for at in range(min(count, MOST_HANDLES)):
            rank, sizes, data_type = self._memory.unpack("<IxxxxQ8xI", address + 48 * at)
            shape = dimensions(self._memory, sizes, rank)
            total += tensor_bytes(shape, data_type) or 0
        return min(total, (1 << 63) - 1)

    def _handles(self, address: int, count: int) -> tuple[int, ...]:
        kept = min(count, MOST_HANDLES)
        return tuple(self._memory.unpack(f"<{kept}Q", address)) if kept else ()

    def _told(self, said: Message) -> None:
        function, words = said.function, said.words
        count = words[6] if len(words) >= 7 else 0
        if function not in NAMES or not 0 < count <= len(words) - 7 or words[0] > _MOST_SLOTS:
            raise Hangup("the program reported an unknown call")
        slot, begin, end, code, flags, handle = words[:6]
        arguments, frames = words[7 : 7 + count], words[7 + count :]
        before = self._before(function)
        handles, is_unread = before.handles, before.is_unread
        if function == REGISTER:
            if code == 0 and count == 4:
                try:
                    handles = self._handles(arguments[3], arguments[2] & 0xFFFFFFFF)
                except Unreadable:
                    is_unread = True
        elif NAMES[function] in MAKES and code == 0:
            handles = (handle,)
        if is_unread and code == 0:
            self._server.sockets.ledger.miss(f"unreadable arguments of {NAMES[function]}")
        if code == 0:
            self._prepared(function, slot, arguments, handles, before.name)
        recorder = self._server.recorder
        python, self._lines = self._lines, PythonLines()
        place = recorder.place(self._memory, frames, python.frames)
        since = recorder.since_start(begin)
        recorder.add(
            CallSeen(
                *(self._pid, self._tid, slot, NAMES[function]),
                *(since, max(since, recorder.since_start(end)), code & 0xFFFF),
                on=arguments[0],
                handles=handles,
                bytes=before.size or _size(function, arguments),
                name=before.name or python.model,
                place=place,
                injected=bool(flags & _INJECTED),
                uses=before.uses,
            )
        )
        if flags & _WAITS:
            self._line.send(_GO)

    def _prepared(
        self,
        function: int,
        slot: int,
        arguments: tuple[int, ...],
        handles: tuple[int, ...],
        name: str,
    ) -> None:
        """Record the memory types that the tensors of a graph were prepared for."""
        known, on = self._server.prepared, (self._pid, slot, arguments[0])
        with contextlib.suppress(Unreadable, TooLong):
            if function == GRAPH_TENSOR and len(arguments) == 2:
                known.compose(self._memory, on, arguments[1])
            elif handles and (at := SIZES.get(function)) is not None and at < len(arguments):
                made = self._pid, slot, handles[0]
                known.restore(self._memory, made, arguments[at - 1], arguments[at])
            elif handles and function in NAMED:
                known.retrieve(on, name, (self._pid, slot, handles[0]))

    def _before(self, function: int) -> _Before:
        for at in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[at].function == function:
                return self._waiting.pop(at)
        return _Before(function)

    def _python(self, said: Message) -> None:
        if not said.words:
            raise Hangup("the program sent an empty report of Python lines")
        self._lines = self._lines.with_text(said.data[8:][: said.words[0]], self._memory)

    def _waited(self, said: Message) -> None:
        if len(said.words) != 3:
            raise Hangup("the program sent a malformed report of a wait")
        self._server.turns.add(said.words[2], had_turn=bool(said.words[0]))

    def _logged(self, said: Message) -> None:
        if len(said.words) < 3:
            raise Hangup("the program sent an empty log line")
        clock, level, length = said.words[:3]
        text = said.data[24:][:length].decode("utf-8", "replace")
        recorder = self._server.recorder
        time = recorder.since_start(clock)
        line = shorten(text.rstrip(), 2000)
        recorder.add(LogSeen(self._pid, self._tid, time, level & 0xFF, line))


def _size(function: int, words: tuple[int, ...]) -> int:
    at = SIZES.get(function)
    return 0 if at is None or at >= len(words) else min(words[at], (1 << 63) - 1)
