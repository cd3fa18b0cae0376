"""Server that answers a client's calls: one thread per client thread, one handler per function."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from qnnmem.contract.rules import finding
from qnnmem.errors import QnnError, QnnMemError
from qnnmem.programs.check import calls_backend as backend
from qnnmem.programs.check import calls_context as context
from qnnmem.programs.check import calls_graph as graph
from qnnmem.programs.check.addresses import (
    crash_report,
    note_overrun,
    note_overruns,
    note_reentered,
    note_use,
)
from qnnmem.programs.check.buffers import PROTECTED, TooMuchMemory
from qnnmem.programs.check.client_session import (
    EARLY_TERMINATION,
    ClientCall,
    ClientProcess,
    ClientSession,
    Failure,
    library_of,
)
from qnnmem.programs.check.findings import client_finding
from qnnmem.programs.functions import MAKES, NUMBERS
from qnnmem.programs.layout import TooLong
from qnnmem.programs.ledger import Hangup
from qnnmem.programs.process_memory import Gone, Unreadable
from qnnmem.programs.socket_server import Action, Kind, Message, ProgramConnection, SocketServer
from qnnmem.qnn.codes import qnn_error

_DEEPEST = 8  # nesting depth of calls inside callbacks
_HELLO_WORDS = 10
_MOST_WORDS = 64
_VERSION = 2
_CRASH = 2  # hello role of a connection that reports a signal
Handler = Callable[[ClientCall], int]

_BY_NAME: dict[str, Handler] = {
    "QnnProperty_hasCapability": backend.has_capability,
    "QnnBackend_create": backend.create,
    "QnnBackend_getApiVersion": backend.api_version,
    "QnnBackend_getBuildId": backend.build_id,
    "QnnBackend_getProperty": backend.get_property,
    "QnnBackend_free": backend.free,
    "QnnLog_create": backend.log_create,
    "QnnLog_setLogLevel": backend.log_level,
    "QnnLog_free": backend.log_free,
    "QnnSystemLog_create": backend.log_create,
    "QnnSystemLog_setLogLevel": backend.log_level,
    "QnnSystemLog_free": backend.log_free,
    "QnnSignal_create": backend.signal_create,
    "QnnSignal_setConfig": backend.nothing,
    "QnnSignal_free": backend.signal_free,
    "QnnProfile_create": backend.profile_create,
    "QnnProfile_setConfig": backend.nothing,
    "QnnProfile_getEvents": backend.profile_events,
    "QnnProfile_free": backend.profile_free,
    "QnnError_getMessage": backend.error_message,
    "QnnError_getVerboseMessage": backend.error_message,
    "QnnError_freeVerboseMessage": backend.nothing,
    "QnnDevice_create": backend.no_device,
    "QnnDevice_free": backend.no_device,
    "QnnContext_create": context.create,
    "QnnContext_createFromBinary": context.create_from_binary,
    "QnnContext_createFromBinaryWithSignal": context.create_from_binary,
    "QnnContext_validateBinary": context.validate_binary,
    "QnnContext_getBinarySize": context.get_binary,
    "QnnContext_getBinary": context.get_binary,
    "QnnContext_free": context.free,
    "QnnGraph_create": context.graph_create,
    "QnnGraph_addNode": context.no_additions,
    "QnnTensor_createContextTensor": context.no_additions,
    "QnnTensor_createGraphTensor": context.no_additions,
    "QnnMem_register": context.mem_register,
    "QnnMem_deRegister": context.mem_deregister,
    "QnnSystemContext_create": context.system_create,
    "QnnSystemContext_getBinaryInfo": context.binary_info,
    "QnnSystemContext_getMetadata": context.binary_info,
    "QnnSystemContext_free": context.system_free,
    "QnnSystemTensor_getMemoryFootprint": context.footprint,
    "QnnGraph_retrieve": graph.retrieve,
    "QnnGraph_getProperty": graph.get_property,
    "QnnGraph_setConfig": graph.set_config,
    "QnnGraph_finalize": graph.finalize,
    "QnnGraph_execute": graph.execute,
    "QnnGraph_executeAsync": graph.execute_async,
}
HANDLERS = {NUMBERS[name]: handler for name, handler in _BY_NAME.items()}
# Calls that change the program's handles or memory.
_CHANGES = frozenset(
    {
        *("QnnContext_createFromBinary", "QnnContext_createFromBinaryWithSignal"),
        *("QnnContext_free", "QnnGraph_setConfig", "QnnMem_register", "QnnMem_deRegister"),
    }
)
# Codes for functions, properties or devices that do not exist; no program gives up because of
# these.
_HARMLESS = frozenset({1000, 2000, 14000})
# Shortages of this machine, for which the program is not responsible.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC})
# Failures of these calls are remembered: using the missing handle proves an ignored code.
_REMEMBERED = frozenset(
    {
        *("QnnBackend_create", "QnnContext_createFromBinary", "QnnGraph_retrieve"),
        *("QnnContext_createFromBinaryWithSignal", "QnnSystemContext_create"),
        *("QnnMem_register", "QnnSignal_create"),
    }
)


class ClientServer:
    """Answers the calls of one run."""

    def __init__(self, session: ClientSession, folder: Path) -> None:
        self.session = session
        self.sockets = SocketServer(folder, self._talk, _MOST_WORDS)
        session.flights.begun = self.sockets.ledger.begun

    def close(self) -> None:
        """Close all connections and stop all waiting threads."""
        self.sockets.hang_up()
        have_ended = self.session.let_go()
        # A running thread's descriptor must not be reused for another file.
        if self.sockets.close() and have_ended:
            self.session.close()

    def _talk(self, connection: ProgramConnection) -> bool:
        """Serve one thread; return True if the connection stays open for notifications."""
        hello = connection.receive()
        known = hello.kind == Kind.HELLO and len(hello.words) == _HELLO_WORDS
        if not known or hello.words[0] != _VERSION:
            raise Hangup("the client sent no greeting")
        process = self.session.process(connection.peer(), hello)
        connection.confirm()
        if hello.words[1] == _CRASH:
            self._note_signal(process, connection.receive())
            connection.send(Action.ANSWER, 0)
            return False
        if hello.words[1]:
            process.notifier = connection
            connection.send(Action.ANSWER, 0)
            return True
        ledger = self.sockets.ledger
        row = ledger.row(hello.words[5])
        low, size = hello.words[6:8]
        stack = low, low + size
        thread = _ClientThread(self.session, process, connection, lambda: ledger.hear(row), stack)
        while True:
            thread.serve(connection.receive())

    def _note_signal(self, process: ClientProcess, message: Message) -> None:
        if len(message.words) <= 3:
            return
        if message.kind == Kind.WROTE:
            note_use(self.session, process, message.words)
            return
        is_raised = not message.words[1]  # the process raised it itself, not a fault
        if process.caught is None or not is_raised:
            process.caught = crash_report(self.session, process, message.words)
        if message.kind == Kind.CRASHED:
            process.caught()


class _ClientThread:
    def __init__(
        self,
        session: ClientSession,
        process: ClientProcess,
        connection: ProgramConnection,
        count: Callable[[], None],
        stack: tuple[int, int],
    ) -> None:
        self._stack = stack
        self._session, self._process, self._connection = session, process, connection
        self._count = count
        self._depth = 0

    def serve(self, message: Message) -> None:
        """Answer a message, and the messages that callbacks send during this call."""
        if self._depth >= _DEEPEST:
            raise Hangup("callbacks are nested too deeply")
        self._depth += 1
        try:
            call = ClientCall(self._session, self._process, self._connection, message, self.serve)
            call.stack = self._stack
            code = self._answer(call)
        finally:
            self._depth -= 1
        self._connection.send(Action.ANSWER, code)
        call.is_answered = True

    def _answer(self, call: ClientCall) -> int:
        message = call.message
        if message.kind == Kind.CALL:
            self._process.caught = None
            self._process.at_work.add(id(call))
            try:
                code = answer(call)
            finally:
                self._process.at_work.discard(id(call))
            self._count()
            return code
        if message.kind == Kind.FREED and len(message.words) >= 3:
            start, size, how = message.words[:3]
            trace = self._session.symbols.trace(self._process.memory, message.words[3:])
            for end, buffer in self._process.buffers.overruns(start, size):
                note_overrun(self._session, self._process, buffer, end, trace, call="free")
            if how == PROTECTED:
                self._process.buffers.protect(start, size, trace)
            else:
                self._process.buffers.free(start, size, how, trace)
            return 0
        if message.kind == Kind.ENDED and len(message.words) == 2:
            self._process.has_ended = True
            end, previous = message.words
            overrun = self._process.buffers.guarded(end) if end else None
            if overrun is not None:
                note_overrun(self._session, self._process, overrun, end, (), previous, "exit")
            return 0
        if message.kind == Kind.REENTERED and len(message.words) == 2:
            function, caller = message.words
            note_reentered(self._session, self._process, function, message.function, caller)
            return 0
        if message.kind == Kind.CLOSED and message.words:
            self._close_library(message)
            return 0
        raise Hangup("the client sent an unexpected message")

    def _close_library(self, message: Message) -> None:
        kinds = ("system context",) if message.words[0] else ("backend", "context")
        library = "libQnnSystem.so" if message.words[0] else "libQnnLpai.so"
        with self._session.lock:
            mine = [h for h in self._session.handles.values() if h.process is self._process]
        alive = [kind for kind in kinds if any(handle.kind == kind for handle in mine)]
        if kinds[0] not in alive:  # freeing the backend already reported this context
            return
        symbols = self._session.symbols
        stack = symbols.stack(symbols.trace(self._process.memory, message.words[1:]))
        living = f"a {' and a '.join(alive)} created with it {'were' if alive[1:] else 'was'} freed"
        sentence = f"{library} was closed before {living}"
        found = finding("C2", sentence, "dlclose", buffer=library)
        program, pid = self._process.memory.program, self._process.pid
        self._session.findings.add(client_finding(found, 0, stack, program=program, process=pid))


def answer(call: ClientCall) -> int:
    """Handle one call and return its code."""
    handler = HANDLERS.get(call.message.function, backend.not_supported)
    session = call.session
    with session.lock:
        session.counts[call.name] = session.counts.get(call.name, 0) + 1
        session.last = call.name
        session.calls += 1
        call.process.served += 1
        number = session.calls
    note_overruns(call)
    if call.is_closed:
        library = library_of(call.message.function)
        sentence = f"{call.name} was called after {library} was closed"
        call.note(finding("C2", sentence, call.name, buffer=library))
    if call.is_in_handler:
        call.note(finding("C9", f"a signal handler called {call.name}", call.name, line=""))
    queue = call.queue
    with nullcontext() if queue is None else queue.notification():
        code = call.serve(lambda one: _translated(handler, one))
    if call.name in _CHANGES:
        session.note_moment(number, call.name)
    if code not in (0, EARLY_TERMINATION):
        session.note_failed(call.process, may_give_up=code not in _HARMLESS or bool(call.found))
        with session.lock:
            session.codes[call.name] = session.codes.get(call.name, 0) + 1
        _remember(call, code)
    return code


def _translated(handler: Handler, call: ClientCall) -> int:
    """Run a handler; convert every error that a client can cause to a QNN error code."""
    try:
        return handler(call)
    except QnnError:
        raise
    except Gone as exc:
        raise Hangup("the process has ended") from exc
    except Unreadable as exc:
        what = f"{exc.address:#x}, which is {exc.place}" if exc.address else "NULL"
        found = finding("C4", f"an argument is {what}", call.name, address=exc.address)
        raise qnn_error(1004, found) from exc
    except TooMuchMemory as exc:
        raise qnn_error(1002, finding("H1", str(exc), call=call.name)) from exc
    except MemoryError as exc:
        found = finding("H1", "this machine is out of memory", call=call.name)
        raise qnn_error(1002, found) from exc
    except (TooLong, QnnMemError) as exc:
        if isinstance(exc.__cause__, OSError) and exc.__cause__.errno in _SHORTAGES:
            raise qnn_error(1002, finding("H1", str(exc), call=call.name)) from exc
        raise qnn_error(1004, finding("C4", str(exc), call.name)) from exc


def _remember(call: ClientCall, code: int) -> None:
    if call.name not in _REMEMBERED:
        return
    with contextlib.suppress(OSError):
        failure = Failure(call.name, code, call.trace)
        call.session.failures[MAKES[call.name], 0] = failure
