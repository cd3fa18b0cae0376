"""The door that the client knocks at: a socket in a folder of our own, a thread for each line.

Whatever a client sends, its connection ends at worst; and when a thread here ends, for whatever
reason, its connection is closed, so that the client does not wait for ever.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import monotonic

from qnnmem.client import calls
from qnnmem.client.findings import ClientFinding
from qnnmem.client.rules import client_finding
from qnnmem.client.session import ClientCall, ClientProcess, ClientSession
from qnnmem.client.stacks import of_program
from qnnmem.client.wire import Action, ClientLine, Hangup, Kind, Message
from qnnmem.errors import Fault

_MOST_CONNECTIONS = 512
_DEEPEST = 8  # calls inside of callbacks inside of calls
_HELLO_WORDS = 9
_VERSION = 1
_JOIN_S = 5.0


class ClientServer:
    """Answers the calls of one run."""

    def __init__(self, session: ClientSession, folder: Path) -> None:
        self._session = session
        self.path = folder / "socket"
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(str(self.path))
        self._door.listen(64)
        self._lines: set[ClientLine] = set()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self.crash: BaseException | None = None  # of a thread here: a mistake of ours
        self._thread = threading.Thread(target=self._accept, name="client door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more, and nobody wait."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        with self._lock:
            lines, threads = tuple(self._lines), tuple(self._threads)
        for line in lines:
            line.close()
        self._session.close()
        self._thread.join(_JOIN_S)
        _join(threads)
        with contextlib.suppress(OSError):
            self.path.unlink()

    def knows(self, pid: int) -> bool:
        """Whether a process has called."""
        return pid in self._session.processes

    def longest_execution(self) -> float:
        """Seconds that the oldest execution takes so far."""
        return self._session.clock.longest()

    def settle(self) -> None:
        """Wait for what the client said before it ended."""
        with self._lock:
            threads = tuple(self._threads)
        _join(threads)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                line, _ = self._door.accept()
            except OSError:
                return
            with self._lock:
                if len(self._lines) >= _MOST_CONNECTIONS:
                    line.close()
                    continue
                connection = ClientLine(line)
                self._lines.add(connection)
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no room for another: this client's thread must not wait
                    self._lines.discard(connection)
                    connection.close()
                    continue
                self._threads = {one for one in self._threads if one.is_alive()} | {thread}

    def _serve(self, connection: ClientLine) -> None:
        parked = False
        try:
            parked = self._talk(connection)
        except (Hangup, Fault):
            pass  # the client is gone
        except Exception as exc:  # the client must not wait for an answer that never comes
            self.crash = self.crash or exc
        finally:
            if not parked:
                with self._lock:
                    self._lines.discard(connection)
                connection.close()

    def _talk(self, connection: ClientLine) -> bool:
        """Serve one thread of the client; whether the line stays open for notifications."""
        hello = connection.receive()
        known = hello.kind is Kind.HELLO and len(hello.words) == _HELLO_WORDS
        if not known or hello.words[0] != _VERSION:
            raise Hangup("the client does not say hello")
        process = self._session.process(connection.peer(), hello)
        if hello.words[1]:
            process.notifier = connection
            connection.send(Action.ANSWER, 0)
            return True
        thread = _ClientThread(self._session, process, connection)
        while True:
            thread.serve(connection.receive())


def _join(threads: Iterable[threading.Thread]) -> None:
    end = monotonic() + _JOIN_S
    for thread in threads:
        thread.join(max(0.0, end - monotonic()))


class _ClientThread:
    def __init__(
        self, session: ClientSession, process: ClientProcess, connection: ClientLine
    ) -> None:
        self._session, self._process, self._connection = session, process, connection
        self._depth = 0

    def serve(self, message: Message) -> None:
        """Answer one message, and those that come while its callbacks run."""
        if self._depth >= _DEEPEST:
            raise Hangup("callbacks call too deep")
        self._depth += 1
        try:
            code = self._answer(message)
        finally:
            self._depth -= 1
        self._connection.send(Action.ANSWER, code)

    def _answer(self, message: Message) -> int:
        if message.kind is Kind.CALL:
            call = ClientCall(self._session, self._process, self._connection, message, self.serve)
            return calls.answer(call)
        if message.kind is Kind.FREED and len(message.words) >= 3:
            start, size, how = message.words[:3]
            trace = self._session.symbols.trace(self._process.memory, message.words[3:])
            self._process.buffers.free(start, size, how, trace)
            return 0
        if message.kind is Kind.CLOSED and message.words:
            self._close_library(message)
            return 0
        raise Hangup("the client sends what nobody asked for")

    def _close_library(self, message: Message) -> None:
        kinds = ("system context",) if message.words[0] else ("backend", "context")
        library = "libQnnSystem.so" if message.words[0] else "libQnnLpai.so"
        with self._session.lock:
            mine = [h for h in self._session.handles.values() if h.process == self._process.pid]
        alive = [kind for kind in kinds if any(one.kind == kind for one in mine)]
        if kinds[0] not in alive:  # a context without its backend was told when that was freed
            return
        symbols = self._session.symbols
        stack = symbols.stack(symbols.trace(self._process.memory, message.words[1:]))
        frame = of_program(stack, self._process.memory.program)
        living = f"a {' and a '.join(alive)} made with it {'are' if alive[1:] else 'is'} not freed"
        sentence = f"{library} was closed while {living}"
        found = client_finding("C2", sentence, "dlclose")
        line = frame.text if frame is not None else ""
        place = frame.place if frame is not None else ""
        self._session.findings.add(
            ClientFinding(replace(found, line=line), 0, place, stack, process=self._process.pid)
        )
