"""The state of a run with one client: processes, handles, findings, and the current call."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from qnnmem.caller import called_from
from qnnmem.child import memory_limit
from qnnmem.contract.handles import HandleTable
from qnnmem.contract.regions import Extent
from qnnmem.contract.rules import finding
from qnnmem.errors import QnnError
from qnnmem.finding import Finding
from qnnmem.lpai.profiles import Profile
from qnnmem.lpai.runtime.queue import ExecutionQueue
from qnnmem.programs.check.buffers import ClientBuffers
from qnnmem.programs.check.findings import MADE, FindingList, client_finding, other_place
from qnnmem.programs.check.flights import Flights
from qnnmem.programs.functions import FIRST_SYSTEM, name_of
from qnnmem.programs.ledger import Hangup
from qnnmem.programs.process_memory import (
    MOST_WATCHED,
    SHARED_BYTES,
    KnownProcesses,
    ProcessMemory,
    presence,
)
from qnnmem.programs.socket_server import (
    Action,
    Kind,
    Message,
    ProgramConnection,
    Protection,
)
from qnnmem.programs.stacks import Symbols, Trace, of_program
from qnnmem.qnn.codes import qnn_error
from qnnmem.results.programs import ClientFinding, HeldMoment, NotChecked
from qnnmem.text import counted

_FIRST_HANDLE, _BETWEEN = 0x51000000, 0x10
_MOST_HANDLES = 65_536
_END_S = 5.0
_UNCOVER_S = 0.2
_MOST_MOMENTS = 1000
_TEXT = 2000  # bytes of a log line for the client
# First word of a call, as in shim.c: flags below a stack pointer.
_LIBRARY_CLOSED, _OVERRUN, _IN_HANDLER, _IN_CALLBACK, _POINTER = 1, 2, 4, 8, ~15
_HOLDERS = ("context", "graph")
EARLY_TERMINATION = 6038
TIME_LIMIT_S = 600.0  # seconds for one execution, as in net-run
# Below, _UNNOTICED: rules that a device does not check. It would continue with wrong memory.
_ALLOCATED = frozenset({"R1", "R3", "R4"})  # rules that the allocating line may break
_UNNOTICED = frozenset({"R3", "R4", "R7", "R8", "R9", "R10", "X5", "X6", "X8", "C5"})


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """Time limit and memory limit of executions."""

    time_s: float = TIME_LIMIT_S
    memory: int | None = None  # address space in bytes; None: three quarters of the machine


DEFAULT_LIMITS = ExecutionLimits()


class ExecutionClock:
    """The start times of the running executions."""

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def start(self, what: Hashable) -> None:
        """Start the clock of an execution, unless this clock is running."""
        with self._lock:
            self._since.setdefault(what, monotonic())

    def stop(self, what: Hashable) -> None:
        """Stop the clock of an execution."""
        with self._lock:
            self._since.pop(what, None)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Time the body of the `with` statement as an execution."""
        what = object()
        self.start(what)
        try:
            yield
        finally:
            self.stop(what)

    def longest(self) -> float:
        """Return the seconds since the start of the oldest running execution."""
        with self._lock:
            return monotonic() - min(self._since.values()) if self._since else 0.0


@contextlib.contextmanager
def limited_memory(limit: int | None) -> Iterator[None]:
    """Limit this process's address space in a `with` block; existing children are unaffected."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    wanted = limit or memory_limit(largest=None)
    hard = before[1]
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@dataclass(frozen=True, slots=True)
class Handle:
    """Object behind a handle, and the process that created it."""

    kind: str
    value: Any
    process: ClientProcess


@dataclass(slots=True)
class Failure:
    """Failed call, stored to see whether the client checks the code."""

    call: str
    code: int
    trace: Trace


@dataclass(frozen=True, slots=True)
class ProgramCaller:
    """A call of the program; its source line is looked up only on demand."""

    trace: Trace
    symbols: Symbols

    @property
    def place(self) -> str:
        """File and line as text, or "an unknown place"."""
        frame = of_program(self.symbols.stack(self.trace), "")
        return "an unknown place" if frame is None else frame.place

    @property
    def line(self) -> str:
        """File, line and source line as text."""
        frame = of_program(self.symbols.stack(self.trace), "")
        return "" if frame is None else frame.text


class ClientProcess:
    """Process of the client; a forked child is a separate process."""

    def __init__(self, pid: int, hello: Message) -> None:
        _, _, _, forked_from, _, _, low, size, shared, shared_bytes = hello.words
        self.pid, self.forked_from = pid, forked_from
        self.memory = ProcessMemory(pid, shared if shared_bytes == SHARED_BYTES else 0)
        self._presence = presence(self.memory)
        self.buffers = ClientBuffers(self.memory, (low, low + size))
        self.notifier: ProgramConnection | None = None
        self.notifying = threading.Lock()
        self.notified: ExecutionQueue | None = None  # its notification runs in the client now
        self.threads = 0  # threads that called QNN, including ended threads
        self.crashed = self.has_ended = False  # ended by a signal; ended by itself
        # Function that reports a signal which the program handled itself; dropped if another call
        # follows.
        self.caught: Callable[[], None] | None = None
        self.is_debugged = _is_debugged(pid)
        self.served = 0  # number of calls received
        self.at_work: set[int] = set()  # calls that are being answered and do not execute, by id
        self.traced: set[tuple[str, str]] = set()  # rules and buffers whose writes were reported
        self.texts: dict[str, int] = {}  # addresses of strings written into the process, by text

    def add_thread(self, hello: Message) -> None:
        """Record the stack range of a new thread."""
        self.threads += 1
        low, size = hello.words[6:8]
        self.buffers.stacks.add((low, low + size))

    def is_there(self) -> bool:
        """Return False if the process has ended or runs another program."""
        return self._presence.is_there()

    def uncover(self, extent: Extent) -> None:
        """Make the pages of an output accessible again, unless the notification thread is busy.

        In that case, the client makes the pages accessible at the next access, without a report.
        """
        self.buffers.uncover(extent)
        if self.notifier is None or not self.notifying.acquire(timeout=_UNCOVER_S):
            return
        try:
            self.notifier.send(Action.PROTECT, extent.start, extent.size, Protection.OPEN)
            while self.notifier.receive().kind != Kind.DONE:
                pass
        finally:
            self.notifying.release()

    def notify(self, queue: ExecutionQueue, function: int, argument: int, code: int) -> None:
        """Run a callback for a notification of `queue` on the client's notification thread."""
        with self.notifying:
            if self.notifier is None:
                raise Hangup("the client is not waiting for a notification")
            self.notified = queue  # the callback may call at once
            try:
                self.notifier.send(Action.NOTIFY, function, argument, code)
            except Hangup:
                self.notified = None
                raise
            while self.notifier.receive().kind != Kind.DONE:
                pass
            self.notified = None


def _is_debugged(pid: int) -> bool:
    """Return True if a debugger controls the process and therefore receives signals first."""
    try:
        text = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except OSError:
        return False
    tracer = re.search(r"^TracerPid:\s*(\d+)", text, re.MULTILINE)
    return tracer is not None and tracer[1] != "0"


class ClientSession:
    """The state of one run."""

    def __init__(
        self,
        profile: Profile,
        symbols: Symbols,
        say: Callable[[ClientFinding], None],
        *,
        lenient: bool = False,
        binary_info: int = 0,
        trace_state: bool = False,
    ) -> None:
        self.profile, self.symbols, self.lenient = profile, symbols, lenient
        self.binary_info, self.trace_state = binary_info, trace_state
        self.findings = FindingList(say)
        # Handles by number; kind and place of freed handles are stored.
        self.handles: HandleTable[int, Handle, tuple[str, Trace]] = HandleTable(_MOST_HANDLES)
        self.processes = KnownProcesses[ClientProcess]()
        self.failures: dict[tuple[str, int], Failure] = {}  # by object and handle
        self.unheeded: dict[int, Failure] = {}  # failed last execution, by process
        # The only execution so far, if it asked for more input, by process.
        self.early: dict[int, Failure | None] = {}
        self.counts: dict[str, int] = {}
        self.codes: dict[str, int] = {}  # number of failed calls by name
        self.last = ""  # name of the last call
        self.failed: set[int] = set()  # processes with a failure that justifies giving up
        self.refused: set[int] = set()  # processes with any failed call
        self.notes: dict[str, None] = {}  # notes about correct behaviour
        self.clock = ExecutionClock()
        self.flights = Flights()
        self.undelivered = 0  # number of notifications
        self.timeline: list[HeldMoment] = []
        self.calls = 0
        self.lock = threading.RLock()
        self._next = _FIRST_HANDLE

    def process(self, pid: int, hello: Message) -> ClientProcess:
        """Return the process that sent a hello message; record its thread."""
        process = self.processes.find(pid, lambda: ClientProcess(pid, hello))
        process.add_thread(hello)
        return process

    def give(self, kind: str, value: Any, process: ClientProcess) -> int:
        """Return a new handle for an object that a process created."""
        with self.lock:
            if len(self.handles) >= _MOST_HANDLES:
                raise qnn_error(1002, finding("C6", "too many handles are in use"))
            self._next += _BETWEEN
            self.handles.add(self._next, Handle(kind, value, process))
            return self._next

    def note_moment(self, number: int, what: str) -> None:
        """Add the program's live contexts and memory to the timeline, if they changed."""
        with self.lock:
            handles = self.handles.values()
            contexts = sum(1 for handle in handles if handle.kind == "context")
            held = sum(handle.value.held_bytes for handle in handles if handle.kind in _HOLDERS)
            last = self.timeline[-1] if self.timeline else HeldMoment(0, "", 0, 0)
            is_new = (contexts, held) != (last.contexts, last.registered_bytes)
            if is_new and len(self.timeline) < _MOST_MOMENTS:
                self.timeline.append(HeldMoment(number, what, contexts, held))

    def note_failed(self, process: ClientProcess, *, may_give_up: bool = True) -> None:
        """Record that a process received an error code.

        If `may_give_up` is true, the process may then end without freeing its handles.
        """
        with self.lock:
            self.refused.add(process.pid)
            if may_give_up:
                self.failed.add(process.pid)

    def place(self, trace: Trace) -> str:
        """Return file and line of a call stack as text."""
        return ProgramCaller(trace, self.symbols).place

    def let_go(self) -> bool:
        """End all executions and execution queues; return True if all of them have ended."""
        with self.lock:
            handles = self.handles.values()
        for process in self.processes.now():
            if process.notifier is not None:
                process.notifier.hang_up()
        for handle in handles:
            if handle.kind == "graph":
                handle.value.graph.resume()
        ends = [
            threading.Thread(target=handle.value.abandon, daemon=True)
            for handle in handles
            if handle.kind == "context"
        ]
        begun = []
        for thread in ends:
            with contextlib.suppress(RuntimeError):  # no thread may be available
                thread.start()
                begun.append(thread)
        for thread in begun:
            thread.join(_END_S)  # an execution that never ends is left running
        return begun == ends and not any(thread.is_alive() for thread in ends)

    def missed(self) -> Iterator[NotChecked]:
        """Yield what was not checked: undelivered notifications, frees beyond the watch limit."""
        if self.undelivered:
            what = counted(self.undelivered, "notification")
            yield NotChecked(f"{what} that could not be delivered")
        if any(process.memory.is_crowded for process in self.processes.now()):
            yield NotChecked(
                f"frees of some buffers (at most {MOST_WATCHED:,} can be watched at a time)"
            )

    def close(self) -> None:
        """Close the memory of all processes."""
        self.processes.close()


_current = threading.local()


def current_call() -> ClientCall | None:
    """Return the call that this thread is serving, or None."""
    return getattr(_current, "call", None)


@dataclass(slots=True)
class ClientCall:
    """A call of the client, which waits for its answer."""

    session: ClientSession
    process: ClientProcess
    connection: ProgramConnection
    message: Message
    nested: Callable[[Message], None]  # handles other messages that arrive while a demand is served
    name: str = field(init=False)  # of the called function
    found: list[Finding] = field(default_factory=list)
    is_answered: bool = False
    stack: tuple[int, int] = (0, 0)  # of the calling thread: from, to
    places: dict[str, tuple[str, Trace]] = field(default_factory=dict)  # by a finding's buffer
    _trace: Trace | None = None
    _second: tuple[str, Trace] = ("", ())  # second place that the failure concerns
    _places: dict[int, tuple[str, Trace]] = field(default_factory=dict)  # of findings, by id

    def __post_init__(self) -> None:
        self.name = name_of(self.message.function)

    @property
    def _head(self) -> int:
        """The stack pointer of the call, with flags in its lowest bits."""
        return self.message.words[0] if self.message.words else 0

    @property
    def is_closed(self) -> bool:
        """True if the program has closed the library that contains the function."""
        return bool(self._head & _LIBRARY_CLOSED)

    @property
    def is_in_handler(self) -> bool:
        """True if a signal handler made the call."""
        return bool(self._head & _IN_HANDLER)

    @property
    def queue(self) -> ExecutionQueue | None:
        """The queue whose notification made the call, or None."""
        return self.process.notified if self._head & _IN_CALLBACK else None

    def has_returned(self, address: int) -> bool:
        """Return True for an address on the stack of a function that has returned."""
        low, high = self.stack
        return low <= address < self._head & _POINTER < high

    def is_on_own_stack(self, address: int) -> bool:
        """Return True for an address on the stack of the calling thread."""
        return self.stack[0] <= address < self.stack[1]

    @property
    def has_overrun(self) -> bool:
        """True if the message ends with two 64-bit words about an overwritten guard."""
        return len(self.message.words) > 2 and bool(self._head & _OVERRUN)

    @property
    def memory(self) -> ProcessMemory:
        """Memory of the calling process."""
        return self.process.memory

    def word(self, at: int) -> int:
        """Return an argument as a pointer or a handle; 0 if it was not sent."""
        words = self.message.words
        return words[at + 1] if at + 1 < len(words) else 0  # the first word holds flags

    def number(self, at: int) -> int:
        """Return an argument as a 32-bit number."""
        return self.word(at) & 0xFFFFFFFF

    def note(self, found: Finding, trace: Trace = (), label: str = "") -> None:
        """Record a finding and continue; `trace` is a second place that the finding concerns."""
        self.found.append(found)
        if trace:
            self._places[id(found)] = (label, trace)

    # Demands

    def demand(self, action: Action, a: int = 0, b: int = 0, c: int = 0, text: str = "") -> int:
        """Make the client execute an action; return its result."""
        data = text.encode("utf-8", "replace")[:_TEXT]
        self.connection.send(action, a, b, c, data)
        while True:
            message = self.connection.receive()
            if message.kind == Kind.DONE:
                return message.words[0] if message.words else 0
            self.nested(message)

    @property
    def trace(self) -> Trace:
        """The call stack of the client, requested only once."""
        if self._trace is None:
            self.connection.send(Action.SEND_STACK)
            while (message := self.connection.receive()).kind != Kind.STACK:
                self.nested(message)
            self._trace = self.session.symbols.trace(self.memory, message.words)
        return self._trace

    def here(self) -> AbstractContextManager[None]:
        """Return a context manager that attributes new objects to this call of the program."""
        return called_from(ProgramCaller(self.trace, self.session.symbols))

    def text(self, value: str) -> int:
        """Return the address of a permanent copy of this string in the client's memory."""
        with self.session.lock:
            known = self.process.texts.get(value)
        if known is None:
            data = value.encode("utf-8", "replace") + b"\0"
            known = self.demand(Action.ALLOCATE, len(data))
            self.memory.write(data, known)
            self.process.texts[value] = known
        return known

    # Handles

    def handle(self, at: int, kind: str, code: int) -> Any:
        """Return the object behind a handle; fail the call for an invalid handle."""
        number = self.word(at)
        with self.session.lock:
            entry = self.session.handles.get(number)
            gone = self.session.handles.freed(number)
        if entry is not None and entry.kind == kind:
            if entry.process is not self.process:
                sentence = _of_another(kind, entry.process, self.process)
                self.fail(1005, finding("C1", sentence, self.name))
            return entry.value
        if gone is not None and gone[0] == kind:
            self._second = ("freed at", gone[1])
            self.fail(code, finding("R16", f"the {kind} was already freed", call=self.name))
        failure = self.session.failures.get((kind, 0))
        if failure is not None and not self.session.lenient:
            self._second = ("failed at", failure.trace)
            self.fail(code, self._ignored(failure))
        if entry is not None:
            sentence = f"{number:#x} is the handle of a {entry.kind}, not of a {kind}"
        elif number:
            sentence = f"{number:#x} is not a handle of a {kind}"
        else:
            sentence = f"the {kind} is NULL"
        self.fail(code, finding("C6", sentence, self.name))

    def note_ignored(self, failure: Failure) -> None:
        """Report rule C3: the client continued after a failed call."""
        if not self.session.lenient:  # the failed call may have returned 0
            self._add(self._ignored(failure), 0, "failed at", failure.trace)

    def _ignored(self, failure: Failure) -> Finding:
        sentence = (
            f"{failure.call} at {self.session.place(failure.trace)} failed with "
            f"{failure.code}, but the program continued with {self.name}"
        )
        return finding("C3", sentence, self.name)

    def free_handle(self, at: int) -> None:
        """Free the handle in argument number `at`."""
        number = self.word(at)
        with self.session.lock:
            gone = self.session.handles.get(number)
            if gone is not None:
                self.session.handles.free(number, (gone.kind, self.trace))

    # Findings

    def fail(self, code: int, found: Finding, label: str = "", trace: Trace = ()) -> NoReturn:
        """Fail the call; `trace` is a second place that the finding concerns."""
        if trace:
            self._second = (label, trace)
        raise qnn_error(code, found)

    def serve(self, work: Callable[[ClientCall], int]) -> int:
        """Run the handler, record its findings and return the code."""
        before = current_call()
        _current.call = self
        error: QnnError | None = None
        try:
            code = work(self)
        except QnnError as exc:
            error, code = exc, exc.code
            if not any(one is exc.finding for one in self.found):
                self.found.append(exc.finding)
        finally:
            _current.call = before
        self._keep(error)
        lenient = self.session.lenient and error is not None
        return 0 if lenient and error is not None and error.finding.rule in _UNNOTICED else code

    def _keep(self, error: QnnError | None) -> None:
        traced = self.process.traced  # the writing line is known: not again without a line
        unknown = [found for found in self.found if (found.rule, found.buffer) not in traced]
        if self.name.startswith("QnnGraph_execute"):
            traced.discard(("X6", "persistent"))
        for found in filter(can_be_freed, unknown):
            is_error = error is not None and found is error.finding
            label, trace = self._second if is_error else self._places.get(id(found), ("", ()))
            if not trace:
                label, trace = self.places.get(found.buffer) or self._freeing(found)
            if not trace and found.rule in _ALLOCATED:
                label, trace = self._allocation(found)
            self._add(found, error.code if is_error and error is not None else 0, label, trace)

    def _add(self, found: Finding, code: int, label: str, trace: Trace) -> None:
        stack, other = (self.session.symbols.stack(one) for one in (self.trace, trace))
        if found.handle and not trace:  # a leak: the object was created elsewhere
            label, other = MADE, self.session.symbols.stack(found.trace)
        address = self.process.buffers.translate(found.address)
        said = replace(found, address=address, call=found.call or self.name)
        program = self.memory.program
        second = other_place(label if other else "", other, program)
        pid = self.process.pid
        self.session.findings.add(
            client_finding(said, code, stack, second, program=program, process=pid)
        )

    def _freeing(self, found: Finding) -> tuple[str, Trace]:
        gone = self.process.buffers.freeing(found.address)
        if gone is None:
            return "", ()
        buffer, freeing = gone
        trace = freeing.trace
        if not trace:
            caller = self.process.buffers.freed_before(buffer)
            trace = self.session.symbols.trace(self.memory, [caller] if caller else [])
        return f"{freeing.how} at", trace

    def _allocation(self, found: Finding) -> tuple[str, Trace]:
        address = self.process.buffers.translate(found.address)
        block = self.memory.block_at(address) if address else None
        if block is None or not block.caller:
            return "", ()
        return "allocated at", self.session.symbols.trace(self.memory, [block.caller])


def can_be_freed(found: Finding) -> bool:
    """Return True unless a finding is about a graph, which is freed only with its context."""
    return found.handle != "graph"


def _of_another(kind: str, maker: ClientProcess, user: ClientProcess) -> str:
    if maker.pid == user.pid:
        return f"process {user.pid} uses a {kind} that it created before exec"
    return f"process {user.pid} uses a {kind} that its parent created before fork"


def library_of(function: int) -> str:
    """Return the library that contains a function."""
    return "libQnnSystem.so" if function >= FIRST_SYSTEM else "libQnnLpai.so"
