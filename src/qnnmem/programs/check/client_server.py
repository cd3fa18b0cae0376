"""Answers the calls of a client: one thread here for each thread there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from qnnmem.contract.rules import finding
from qnnmem.programs.check import calls
from qnnmem.programs.check.buffers import PROTECTED
from qnnmem.programs.check.client_session import ClientCall, ClientProcess, ClientSession
from qnnmem.programs.check.execution_limits import ExecutionLimits
from qnnmem.programs.check.findings import client_finding
from qnnmem.programs.ledger import Ledger
from qnnmem.programs.socket_server import SocketServer
from qnnmem.programs.stacks import of_program
from qnnmem.programs.wire import Action, Hangup, Kind, Message, ProgramConnection

_DEEPEST = 8  # calls inside of callbacks inside of calls
_HELLO_WORDS = 10
_MOST_WORDS = 64
_VERSION = 2


class ClientServer:
    """Answers the calls of one run."""

    def __init__(self, session: ClientSession, folder: Path) -> None:
        self._session = session
        self._sockets = SocketServer(folder, self._talk, _MOST_WORDS)
        self.path = self._sockets.path

    @property
    def crash(self) -> BaseException | None:
        """An unexpected error of this server."""
        return self._sockets.crash

    def close(self) -> None:
        """Close all connections and end everything that waits."""
        self._sockets.hang_up()
        have_ended = self._session.let_go()
        # A thread that still runs must not find another file behind its descriptor.
        if self._sockets.close() and have_ended:
            self._session.close()

    @property
    def ledger(self) -> Ledger:
        """The ledger of calls."""
        return self._sockets.ledger

    def execution_time_left(self, limits: ExecutionLimits) -> float:
        """Seconds that the oldest execution may still take."""
        return limits.time_s - self._session.clock.longest()

    def settle(self) -> None:
        """Wait until everything is handled that the client sent before it ended."""
        self._sockets.settle()

    def _talk(self, connection: ProgramConnection) -> bool:
        """Serve one thread; return whether the connection stays open for notifications."""
        hello = connection.receive()
        known = hello.kind == Kind.HELLO and len(hello.words) == _HELLO_WORDS
        if not known or hello.words[0] != _VERSION:
            raise Hangup("the client does not say hello")
        process = self._session.process(connection.peer(), hello)
        connection.confirm()
        if hello.words[1]:
            process.notifier = connection
            connection.send(Action.ANSWER, 0)
            return True
        ledger = self._sockets.ledger
        row = ledger.row(hello.words[5])
        thread = _ClientThread(self._session, process, connection, lambda: ledger.hear(row))
        while True:
            thread.serve(connection.receive())


class _ClientThread:
    def __init__(
        self,
        session: ClientSession,
        process: ClientProcess,
        connection: ProgramConnection,
        count: Callable[[], None],
    ) -> None:
        self._session, self._process, self._connection = session, process, connection
        self._count = count
        self._depth = 0

    def serve(self, message: Message) -> None:
        """Answer one message and those that its callbacks send."""
        if self._depth >= _DEEPEST:
            raise Hangup("callbacks call too deep")
        self._depth += 1
        try:
            code = self._answer(message)
        finally:
            self._depth -= 1
        self._connection.send(Action.ANSWER, code)

    def _answer(self, message: Message) -> int:
        if message.kind == Kind.CALL:
            call = ClientCall(self._session, self._process, self._connection, message, self.serve)
            code = calls.answer(call)
            self._count()
            return code
        if message.kind == Kind.FREED and len(message.words) >= 3:
            start, size, how = message.words[:3]
            trace = self._session.symbols.trace(self._process.memory, message.words[3:])
            if how == PROTECTED:
                self._process.buffers.protect(start, size, trace)
            else:
                self._process.buffers.free(start, size, how, trace)
            return 0
        if message.kind == Kind.CLOSED and message.words:
            self._close_library(message)
            return 0
        raise Hangup("the client sends what nobody asked for")

    def _close_library(self, message: Message) -> None:
        kinds = ("system context",) if message.words[0] else ("backend", "context")
        library = "libQnnSystem.so" if message.words[0] else "libQnnLpai.so"
        with self._session.lock:
            mine = [h for h in self._session.handles.values() if h.process is self._process]
        alive = [kind for kind in kinds if any(one.kind == kind for one in mine)]
        if kinds[0] not in alive:  # a context without its backend was reported when that was freed
            return
        symbols = self._session.symbols
        stack = symbols.stack(symbols.trace(self._process.memory, message.words[1:]))
        frame = of_program(stack, self._process.memory.program)
        living = f"a {' and a '.join(alive)} made with it {'are' if alive[1:] else 'is'} not freed"
        sentence = f"{library} was closed while {living}"
        found = finding("C2", sentence, "dlclose")
        line = frame.text if frame is not None else ""
        place = frame.place if frame is not None else ""
        self._session.findings.add(
            client_finding(replace(found, line=line), 0, place, stack, process=self._process.pid)
        )
