"""Handlers of calls that set the memory of graphs, finalize graphs or execute graphs."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from qnnmem.contract.regions import Extent, ForeignMemory
from qnnmem.contract.rules import finding
from qnnmem.errors import QnnError
from qnnmem.finding import Finding
from qnnmem.lpai.runtime.descriptors import Config, CoreAffinityCfg, Mem, PerfCfg, custom
from qnnmem.lpai.runtime.graph import Graph
from qnnmem.lpai.runtime.queue import Signal
from qnnmem.lpai.runtime.system_context import io_tensors
from qnnmem.programs import layout
from qnnmem.programs.check.calls_backend import questions
from qnnmem.programs.check.calls_context import (
    CheckedContext,
    note_stack,
    trace_writes,
)
from qnnmem.programs.check.client_session import (
    EARLY_TERMINATION,
    ClientCall,
    ClientProcess,
    Failure,
)
from qnnmem.programs.check.findings import STILL_EXECUTES
from qnnmem.programs.check.flights import Flight, Part
from qnnmem.programs.check.tensors import INVALID_TENSOR, KINDS, SeenTensors, given_tensors
from qnnmem.programs.ledger import Hangup
from qnnmem.programs.process_memory import Gone, Unreadable
from qnnmem.programs.socket_server import Action, Protection
from qnnmem.qnn.enums import GraphConfigOption, GraphOption, TensorMemType
from qnnmem.qnn.tensor import QnnTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ARGUMENT = 1004
_PAUSE, _RESUME = 401, 501
_POOLS = {
    GraphOption.SET_CFG_SCRATCH_MEM: "scratch",
    GraphOption.SET_CFG_PERSISTENT_MEM: "persistent",
}


@dataclass(frozen=True, slots=True)
class CallTensors:
    """Tensors of an execution, and the client's memory that they use."""

    inputs: list[QnnTensor] | None
    outputs: list[QnnTensor] | None
    read: list[ForeignMemory]
    stored: list[tuple[ForeignMemory, int]]  # with the number of bytes of the output
    use_scratch: bool


@dataclass(slots=True)
class CheckedGraph:
    """A graph and the client memory that it uses."""

    graph: Graph
    owner: CheckedContext
    process: ClientProcess
    pools: dict[str, ForeignMemory] = field(default_factory=dict)
    failed: dict[tuple[str, frozenset[str]], Failure] = field(default_factory=dict)  # by call
    io: tuple[tuple[QnnTensor, ...], tuple[QnnTensor, ...]] | None = None
    has_marks: bool = False  # True: inputs inside scratch are filled with a marker
    last: CallTensors | None = None
    seen: dict[int, SeenTensors] = field(default_factory=dict)  # cached inputs and outputs

    @property
    def held_bytes(self) -> int:
        """Total size in bytes of the client's pools for this graph."""
        return sum(buffer.size for buffer in tuple(self.pools.values()))

    @property
    def tensors(self) -> tuple[tuple[QnnTensor, ...], tuple[QnnTensor, ...]]:
        """Inputs and outputs as described in the binary."""
        if self.io is None:
            self.io = io_tensors(self.graph.compiled)
        return self.io


def retrieve(call: ClientCall) -> int:
    """Answer `QnnGraph_retrieve`; return its error code."""
    owner: CheckedContext = call.handle(0, "context", 5002)
    name = call.memory.text(call.word(1)) if call.word(1) else None
    with call.here():
        graph = owner.context.graph_retrieve(name)
    number = owner.graphs.get(graph.name)
    if number is None:
        made = CheckedGraph(graph, owner, call.process)
        number = owner.graphs[graph.name] = call.session.give("graph", made, call.process)
    call.memory.write(struct.pack("<Q", number), call.word(2))
    return 0


def _graph(call: ClientCall) -> CheckedGraph:
    checked: CheckedGraph = call.handle(0, "graph", 6001)
    return checked


def get_property(call: ClientCall) -> int:
    """Answer `QnnGraph_getProperty`; return its error code."""
    checked = _graph(call)
    asked = questions(call, 1)
    checked.graph.get_property([question for question, _ in asked])
    for question, address in asked:
        call.memory.write(struct.pack("<I", question.value.value), address)
    return 0


def set_config(call: ClientCall) -> int:
    """Answer `QnnGraph_setConfig`; return its error code."""
    checked = _graph(call)
    configs, pools = [], {}
    for item in layout.pointers(call.memory, call.word(1)):
        option, value = layout.option(call.memory, item)
        if option:
            plain = value & 0xFFFFFFFF if option == GraphConfigOption.PRIORITY else value
            configs.append(Config(option, plain))
            continue
        inner, pointer = layout.option(call.memory, value)
        if inner in (_PAUSE, _RESUME):
            (checked.graph.pause if inner == _PAUSE else checked.graph.resume)()
            continue
        config = _custom(call, inner, pointer)
        if isinstance(config.value, Mem) and config.value.addr is not None:
            pools[_POOLS[GraphOption(inner)]] = config.value.addr
        configs.append(custom(inner, config.value))
    flight = call.session.flights.using(checked, call.connection) if "scratch" in pools else None
    if flight is not None:
        sentence = f"scratch is replaced while graph {checked.graph.name[:80]!r} executes"
        found = finding("R7", sentence, call.name, buffer="scratch", line="")
        cure = "wait for the execution to end before setting a new buffer"
        call.note(replace(found, cure=cure), flight.trace, STILL_EXECUTES)
    with _kept(call, checked, *pools):
        if checked.owner.binary is not None and checked.owner.binary.freed:
            checked.owner.context.check_binary(call.name)  # the new pool may overwrite the binary
        checked.graph.set_config(configs)
    checked.pools |= pools
    for what, buffer in pools.items():
        if call.process.buffers.is_on_stack(buffer):
            note_stack(call, buffer, what)
    return 0


def _custom(call: ClientCall, option: int, pointer: int) -> Config:
    memory = call.memory
    if option in _POOLS and pointer:
        kind, size, address = memory.unpack("<IIQ", pointer)
        there = call.process.buffers.take(address, size) if address and size else None
        return Config(option, Mem(kind, size, there))
    if option == GraphOption.SET_CFG_PERF_CFG and pointer:
        return Config(option, PerfCfg(*memory.unpack("<3I", pointer)))
    if option == GraphOption.SET_CFG_CORE_AFFINITY and pointer:
        return Config(option, CoreAffinityCfg(*memory.unpack("<2I", pointer)))
    return Config(option, None)


def finalize(call: ClientCall) -> int:
    """Answer `QnnGraph_finalize`; return its error code."""
    checked = _graph(call)
    _note_ignored(call, checked, "QnnGraph_setConfig")
    _check_pools(call, checked)
    _refresh(checked, scratch=False)
    with _kept(call, checked):
        checked.graph.finalize()
    _mark_places(checked)
    _store_pools(checked)
    _trace_state(call, checked)
    return 0


def execute(call: ClientCall) -> int:
    """Answer `QnnGraph_execute`; return its error code."""
    checked = _graph(call)
    _note_ignored(call, checked, "QnnGraph_finalize", "QnnGraph_setConfig")
    _check_pools(call, checked)
    given = _io(call, checked)
    signal = _signal(call)

    _check_null(call, checked, given)
    flight = _begin(call, checked, given, signal)

    def uncover(extent: Extent) -> None:
        call.process.buffers.uncover(extent)
        call.demand(Action.PROTECT, extent.start, extent.size, Protection.OPEN)

    def work(run: Callable[[], int]) -> int:
        _refresh(checked, scratch=given.use_scratch)
        _check_places(call, checked, given)
        _read(checked, given)
        if flight is not None and flight.is_held:
            flight.keep()
            _cover(call, flight)
        try:
            with call.session.clock.running():
                code = run()
            if flight is not None and flight.is_held:
                call.session.flights.hold(flight)
                _uncover(flight, uncover)
                for found in (*flight.losses(call.name), *flight.changes(call.name)):
                    call.note(found)
        except QnnError:
            _store_pools(checked)  # the state may be newer than the client's copy
            raise
        if flight is not None:
            call.session.flights.note_results(flight)
        _store(call, checked, given, complete=code == 0)
        return code

    try:
        with _kept(call, checked):
            code = checked.graph.execute(given.inputs, given.outputs, signal, around=work)
    except QnnError as exc:
        call.session.unheeded[call.process.pid] = Failure(call.name, exc.code, call.trace)
        raise
    finally:
        if flight is not None:
            _uncover(flight, uncover)
            call.session.flights.end(flight)
        _trace_state(call, checked)
    call.session.unheeded.pop(call.process.pid, None)
    is_first = call.process.pid not in call.session.early
    is_early = is_first and code == EARLY_TERMINATION
    early = Failure(call.name, code, call.trace) if is_early else None
    call.session.early[call.process.pid] = early
    return code


def _signal(call: ClientCall) -> Signal | None:
    """Return the signal of an execution; fail the call if the signal watches another execution."""
    if not call.word(6):
        return None
    signal: Signal = call.handle(6, "signal", 9003)
    flight = call.session.flights.watched_by(signal)
    if flight is not None:
        found = finding("R18", "the signal watches another execution", call.name)
        call.fail(6030, found, STILL_EXECUTES, flight.trace)
    return signal


def _begin(
    call: ClientCall,
    checked: CheckedGraph,
    given: CallTensors,
    signal: Signal | None,
    *,
    is_async: bool = False,
) -> Flight | None:
    """Record an execution, report any overlap, and return the execution.

    If no other execution can overlap it, return None without recording it.
    """
    flights = call.session.flights
    call.process.at_work.discard(id(call))
    if not is_async and flights.is_alone(checked, call.connection):
        return None
    reads, writes = _parts("input", given.inputs), _parts("output", given.outputs)
    is_held = flights.may_hold(checked, call.connection)
    trace = call.trace if is_held or is_async else ()
    flight = Flight(
        checked, call.connection, is_async, reads, writes, trace, signal, is_held=is_held
    )
    if is_async:
        flight.is_answered = lambda: call.is_answered
    met = flights.begin(flight)
    if met is not None:
        found, other = met
        call.note(found, other.trace, STILL_EXECUTES)
    return flight


def _parts(kind: str, tensors: Sequence[QnnTensor] | None) -> list[Part]:
    return [
        (f"{kind} {tensor.name[:80]!r}", tensor.client_buf)
        for tensor in tensors or ()
        if isinstance(tensor.client_buf, ForeignMemory)
    ]


def _trace_state(call: ClientCall, checked: CheckedGraph) -> None:
    """Make the client report the next write to persistent memory (`--trace-state`)."""
    if "persistent" in checked.pools:
        trace_writes(call, checked.pools["persistent"])


# Inputs and outputs without a buffer


def _check_null(call: ClientCall, checked: CheckedGraph, given: CallTensors) -> None:
    """Report rule R9 for a tensor without a buffer if other tensors of the call have buffers."""
    if not checked.graph.has_io_in_scratch:
        return  # refused anyway
    both = given.inputs, given.outputs
    known = [(kind, t) for kind, ts in zip(KINDS, both, strict=True) for t in ts or ()]
    missing = [(kind, t.name[:80]) for kind, t in known if _is_missing(t)]
    if len(missing) == len(known) or not missing:
        return
    checked.has_marks = False  # do not report the consequences again
    for kind, name in missing:
        sentence = (
            f"{kind} {name!r} has no buffer (NULL, size 0), but other tensors of the "
            "call have buffers"
        )
        end = "it is read from scratch" if kind == "input" else "its result stays in scratch"
        found = finding("R9", f"{sentence}: {end}", call.name, buffer=f"{kind} {name!r}")
        call.note(replace(found, cure="set clientBuf of every input and output"))


def _is_missing(tensor: QnnTensor) -> bool:
    return tensor.client_buf is None and tensor.mem_type == TensorMemType.RAW


def _mark_places(checked: CheckedGraph) -> None:
    """Fill the inputs inside scratch with a pattern that shows whether the client writes them."""
    for place in checked.graph.input_places():
        place[:] = _pattern(place.size)
        checked.has_marks = True


def _check_places(call: ClientCall, checked: CheckedGraph, given: CallTensors) -> None:
    """Report rule R9 if the graph reads inputs from scratch that the client never wrote."""
    if not checked.has_marks:
        return
    if not all(map(_is_missing, given.inputs or ())):
        return
    checked.has_marks = False
    places = checked.graph.input_places()
    name = checked.graph.name[:80]
    if places and all((place == _pattern(place.size)).all() for place in places):
        sentence = f"the inputs of graph {name!r} have no buffer (NULL), and their bytes in scratch"
        where = "were not written: the graph reads old data"
        found = finding("R9", f"{sentence} {where}", call.name, buffer="inputs")
        call.note(replace(found, cure="set clientBuf of every input and output"))
    else:
        note = f"the inputs of graph {name!r} are in scratch, so their buffers may be NULL"
        call.session.notes[note] = None


def _pattern(size: int) -> NDArray[Any]:
    import numpy

    return (numpy.arange(size) * 37 + 0xA5).astype(numpy.uint8)


def execute_async(call: ClientCall) -> int:
    """Answer `QnnGraph_executeAsync`; a client thread receives the notification."""
    checked = _graph(call)
    _note_ignored(call, checked, "QnnGraph_finalize", "QnnGraph_setConfig")
    _check_pools(call, checked)
    given = _io(call, checked)
    signal = _signal(call)
    function, argument, process = call.word(7), call.word(8), call.process
    clock = call.session.clock
    for buffer in (*given.read, *(buffer for buffer, _ in given.stored)):
        if call.process.buffers.is_on_stack(buffer):
            note_stack(call, buffer, "a buffer of an asynchronous execution")

    def notify(code: int) -> None:
        clock.stop(checked.owner.context)
        try:
            code = _land(call, checked, flight, code)
            try:
                _store(call, checked, given, complete=code == 0)
            except QnnError as exc:
                checked.graph.context.backend.note(replace(exc.finding, trace=call.trace))
                code = exc.code
            if function:
                if code not in (0, EARLY_TERMINATION):
                    call.session.note_failed(process)
                process.notify(checked.owner.context.queue, function, argument, code)
        except (Hangup, Gone):  # the process may have ended
            _note_undelivered(call, checked)
        if checked.graph.is_busy:  # the next execution begins
            clock.start(checked.owner.context)

    def refresh() -> None:  # not earlier: an earlier execution may not have written its state yet
        _refresh(checked, scratch=given.use_scratch)

    _check_null(call, checked, given)
    flight = _begin(call, checked, given, signal, is_async=True)
    _read(checked, given)
    if flight is not None:
        flight.keep()
    _cover(call, flight)
    try:
        with _kept(call, checked), call.here():
            checked.graph.execute_async(given.inputs, given.outputs, notify, signal, before=refresh)
    except BaseException:
        if flight is not None:
            _uncover(flight, call.process.uncover)
            call.session.flights.end(flight)
        raise
    if checked.graph.is_busy:
        clock.start(checked.owner.context)
    return 0


def _cover(call: ClientCall, flight: Flight | None) -> None:
    """Make the client report accesses to an execution's buffers while the execution runs.

    Output pages become inaccessible. With `--trace-state`, input pages become read-only. System
    calls that need more access to these pages fail. Pages that also hold other data do not change.
    """
    process = call.process
    if flight is None or not flight.is_held or process.is_debugged:
        return
    closed = [(part, Protection.CLOSE_ALL) for part in flight.writes]
    if call.session.trace_state:
        closed += [(part, Protection.CLOSE_WRITES) for part in flight.reads]
    for part, how in closed:
        extent = process.buffers.cover(part[1])
        if extent is not None:
            flight.covered.append((part, extent))
            call.demand(Action.PROTECT, extent.start, extent.size, how)


def _uncover(flight: Flight, open_pages: Callable[[Extent], None]) -> None:
    for _, extent in flight.covered:
        with contextlib.suppress(Hangup):  # the program has ended
            open_pages(extent)
    flight.covered.clear()


def _land(call: ClientCall, checked: CheckedGraph, flight: Flight | None, code: int) -> int:
    """Delay the end of an execution, report changed or freed buffers, and return the error code."""
    if flight is None:
        return code
    if flight.is_held:
        call.session.flights.hold(flight)
        _uncover(flight, call.process.uncover)
    backend = checked.graph.context.backend
    if code == 0:  # an error has already reported the reason
        for found in flight.losses(call.name):
            backend.note(replace(found, trace=flight.trace))
            code = INVALID_TENSOR
    for found in flight.changes(call.name):
        backend.note(replace(found, trace=flight.trace))
    call.session.flights.note_results(flight)
    call.session.flights.end(flight)  # after the notification, the program may use its buffers
    return code


def _note_undelivered(call: ClientCall, checked: CheckedGraph) -> None:
    """Report a callback that ended its thread; count other undelivered notifications."""
    process = call.process
    if process.crashed or process.has_ended or not process.is_there():
        return
    if process.notified is not None:
        sentence = "a callback ended the library's notification thread (pthread_exit)"
        found = finding("C7", sentence, call.name, cure="return from the callback", line="")
        checked.graph.context.backend.note(replace(found, trace=call.trace))
    else:
        call.session.undelivered += 1


def _check_pools(call: ClientCall, checked: CheckedGraph) -> None:
    """Fail the call if a pool has become read-only since the client set it."""
    for what, buffer in checked.pools.items():
        if buffer.readonly and not buffer.freed:
            address, sentence = buffer.address, f"{what} is read-only memory"
            found = finding("R4", sentence, call=call.name, buffer=what, address=address)
            with _kept(call, checked):
                call.fail(_ARGUMENT, replace(found, cure="pass writable memory"))


# Tensors of a call, and copies of the client's memory


def _io(call: ClientCall, checked: CheckedGraph) -> CallTensors:
    known_inputs, known_outputs = checked.tensors
    inputs = given_tensors(call, checked.seen, 1, known_inputs)
    outputs = given_tensors(call, checked.seen, 3, known_outputs)
    last = checked.last  # another thread may replace it
    if last is None or last.inputs is not inputs or last.outputs is not outputs:
        read = [tensor.client_buf for tensor in inputs or () if _has_buffer(tensor)]
        stored = [(t.client_buf, t.nbytes) for t in outputs or () if _has_buffer(t)]
        use_scratch = _in_scratch(inputs) or _in_scratch(outputs)
        last = checked.last = CallTensors(inputs, outputs, read, stored, use_scratch)
    return last


def _has_buffer(tensor: QnnTensor) -> bool:
    return isinstance(tensor.client_buf, ForeignMemory)


def _in_scratch(tensors: Sequence[QnnTensor] | None) -> bool:
    return tensors is None or any(
        tensor.client_buf is None and tensor.mem_type == TensorMemType.RAW for tensor in tensors
    )


def _refresh(checked: CheckedGraph, *, scratch: bool) -> None:
    """Copy the client's pools and the start of its binary into this process."""
    buffers = checked.process.buffers
    if checked.owner.binary is not None:
        buffers.refresh(checked.owner.binary, checked.owner.context.compared_bytes)
    for what, buffer in checked.pools.items():
        if what != "scratch" or scratch:
            buffers.refresh(buffer)


def _read(checked: CheckedGraph, given: CallTensors) -> None:
    for buffer in given.read:
        checked.process.buffers.refresh(buffer)


def _store(call: ClientCall, checked: CheckedGraph, given: CallTensors, *, complete: bool) -> None:
    """Write the results; fail the call if the memory of an output is gone or read-only."""
    try:
        for buffer, size in given.stored if complete else ():
            checked.process.buffers.store(buffer, size)
    except Unreadable as exc:
        if isinstance(exc, Gone) or not checked.process.is_there():
            raise Gone(exc.address, 1) from exc
        call.fail(INVALID_TENSOR, _lost_output(call, given, buffer, exc.address))
    finally:
        _store_pools(checked)


def _lost_output(
    call: ClientCall, given: CallTensors, buffer: ForeignMemory, address: int
) -> Finding:
    what = next(name for name, held in _parts("output", given.outputs) if held is buffer)
    readable, _ = call.memory.extent(buffer.address, buffer.size)
    if readable == buffer.size and call.process.buffers.peek(buffer):
        sentence, cure = f"{what} is read-only memory", "pass writable memory"
        found = finding("R9", sentence, call.name, buffer=what, address=address)
        return replace(found, cure=cure)
    call.process.buffers.lose(address)
    sentence = f"{what} at {buffer.address:#x} is not mapped memory"
    return finding("C4", sentence, call.name, buffer=what, address=address)


def _store_pools(checked: CheckedGraph) -> None:
    for buffer in checked.pools.values():
        try:
            checked.process.buffers.store(buffer)
        except Gone:
            return
        except Unreadable as exc:
            checked.process.buffers.lose(exc.address)
            checked.graph.note_freed("QnnGraph_execute")


# Ignored error codes


@contextlib.contextmanager
def _kept(call: ClientCall, checked: CheckedGraph, *parts: str) -> Iterator[None]:
    """Record whether the call in a `with` block fails; `parts` are the pools that the call sets."""
    key = (call.name, frozenset(parts))
    try:
        yield
    except QnnError as exc:
        if exc.finding.rule == "R16":  # freed after this call began
            call.places[exc.finding.buffer] = ("freed at", checked.owner.freeing)
        if exc.code != EARLY_TERMINATION:
            checked.failed[key] = Failure(call.name, exc.code, call.trace)
        raise
    checked.failed.pop(key, None)


def _note_ignored(call: ClientCall, checked: CheckedGraph, *before: str) -> None:
    for key, failure in checked.failed.items():
        if failure.call in before:
            del checked.failed[key]  # report it only once
            call.note_ignored(failure)
            return
