"""Descriptions of addresses in the client, and reports about writes to client memory."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

from qnnmem.contract.regions import ForeignMemory
from qnnmem.contract.rules import finding
from qnnmem.finding import Finding
from qnnmem.programs.check.calls_context import CheckedContext
from qnnmem.programs.check.calls_graph import CheckedGraph
from qnnmem.programs.check.client_session import ClientCall, ClientProcess, ClientSession
from qnnmem.programs.check.findings import CALLED, STILL_EXECUTES, client_finding, other_place
from qnnmem.programs.functions import name_of as function_name
from qnnmem.programs.process_memory import GUARD, PAGE
from qnnmem.programs.stacks import Trace

_NULL = 4096  # lower addresses are members of a NULL struct
_NEAR = 4096  # bytes after a buffer that still count as part of it
_BELOW = 1 << 16  # bytes below the stack pointer that a frame may use
_WRITES = {0: "read", 1: "wrote to"}


def name_of(session: ClientSession, process: ClientProcess, buffer: ForeignMemory) -> str:
    """Return the role of a buffer in QNN: a pool, a binary, or a tensor."""
    with session.lock:
        handles = [one for one in session.handles.values() if one.process is process]
    for handle in handles:
        value = handle.value
        if isinstance(value, CheckedContext) and value.binary is buffer:
            return "the binary"
        if isinstance(value, CheckedGraph):
            for name, held in _held(value):
                if held is buffer:
                    return f"{name} of graph {value.graph.name[:80]!r}"
    return "a buffer that was passed to QNN"


def _held(graph: CheckedGraph) -> Iterator[tuple[str, object]]:
    yield from graph.pools.items()
    for at, seen in tuple(graph.seen.items()):
        kind = "input" if at == 1 else "output"
        yield from ((f"{kind} {tensor.name[:80]!r}", tensor.client_buf) for tensor in seen.tensors)


def describe(
    session: ClientSession, process: ClientProcess, address: int
) -> tuple[str, str, Trace]:
    """Return a description of an address; for freed memory, also a label and the call stack."""
    if address < _NULL:
        return "NULL" if not address else f"{address:#x}, a member of a struct at NULL", "", ()
    gone = process.buffers.freeing(address)
    if gone is not None:
        buffer, freeing = gone
        what = f"{address:#x}, byte {address - buffer.address:,} of "
        said = f"{what}{name_of(session, process, buffer)}, which was {freeing.how}"
        return said, f"{freeing.how} at", freeing.trace
    known = process.buffers.nearest(address)
    if known is not None and address < known.end + _NEAR:
        past = address - known.end
        where = f"byte {address - known.address:,} of" if past < 0 else f"{past:,} bytes after"
        return f"{address:#x}, {where} {name_of(session, process, known)}", "", ()
    block = process.memory.block_at(address)
    if block is not None:
        said = f"{address:#x}, byte {address - block.start:,} of a block of {block.size:,} bytes"
        return said, "", ()
    block = process.memory.freed_block_at(address)
    if block is not None:
        trace = session.symbols.trace(process.memory, [block.caller])
        said = f"{address:#x}, in a block of {block.size:,} bytes that was freed"
        return said, "freed at", trace
    if any(low - _BELOW <= address < low for low, _ in process.buffers.stacks if low):
        return f"{address:#x}, below the end of a stack (stack overflow)", "", ()
    return f"{address:#x}", "", ()


def report(
    session: ClientSession,
    process: ClientProcess,
    found: Finding,
    trace: Trace,
    second: tuple[str, Trace] = ("", ()),
    label: str = CALLED,
) -> None:
    """Add a finding to the session, with the places in the program that it concerns."""
    stack, other = (session.symbols.stack(one) for one in (trace, second[1]))
    program = process.memory.program
    place = other_place(second[0] if other else "", other, program)
    session.findings.add(
        client_finding(found, 0, stack, place, program=program, process=process.pid, label=label)
    )


def crash_report(
    session: ClientSession, process: ClientProcess, words: tuple[int, ...]
) -> Callable[[], None]:
    """Return a function that reports a fatal signal (rule C7) with source line and address."""
    number, address, is_write = words[:3]
    trace = session.symbols.trace(process.memory, words[3:])
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    sentence = f"the program was ended by {name}"
    second: tuple[str, Trace] = ("", ())
    if number in (signal.SIGSEGV, signal.SIGBUS) and (address or len(words) > 3):
        said, label, freed = describe(session, process, address)
        sentence += f": it {_WRITES.get(is_write, 'accessed')} {said}"
        second = (label, freed)
    after = f"; the last call was {session.last}" if session.last else "; it had not called QNN"
    cure = "fix this line; check the buffers passed to QNN near it"
    found = finding("C7", sentence + after, session.last, address=address, cure=cure, line="")

    def tell() -> None:
        process.crashed, process.caught = True, None
        if process.forked_from and not process.served:
            return  # not about QNN, e.g. a child process that only dumps core
        report(session, process, found, trace, second, "crashed at")

    return tell


def note_reentered(
    session: ClientSession, process: ClientProcess, function: int, outer: int, caller: int
) -> None:
    """Report rule C9: a signal handler called QNN while its thread was inside another QNN call."""
    call, interrupted = function_name(function), function_name(outer)
    sentence = f"a signal handler called {call} while its thread was in {interrupted}"
    trace = session.symbols.trace(process.memory, [caller])
    report(session, process, finding("C9", sentence, call, line=""), trace)


def note_use(session: ClientSession, process: ClientProcess, words: tuple[int, ...]) -> None:
    """Report access to a protected page: an execution's buffer, traced memory or a block guard."""
    trace = session.symbols.trace(process.memory, words[3:])
    met = session.flights.reading(process, words[1])
    if met is not None:
        flight, (name, _) = met
        sentence = f"the program {_WRITES.get(words[2], 'accessed')} {name} before the execution"
        cure = "access inputs and outputs only after the execution has ended"
        call, place = "QnnGraph_executeAsync" if flight.is_async else "QnnGraph_execute", words[1]
        found = finding("R9", f"{sentence} ended", call, buffer=name, address=place, cure=cure)
        second = (STILL_EXECUTES, flight.trace)
        report(session, process, replace(found, line=""), trace, second, "used at")
        return
    if not process.buffers.is_traced(words[1], 1):
        _note_write_behind(session, process, words[1], trace)
        return
    known = process.buffers.nearest(words[1])
    name = "" if known is None else name_of(session, process, known)
    if name == "the binary":
        rule, buffer, why = "R10", "binary", "it must stay unchanged until its context is freed"
    elif name.startswith("persistent of "):
        rule, buffer, why = "X6", "persistent", "only its graph may write there"
    else:
        return  # its context was freed meanwhile
    said, _, _ = describe(session, process, words[1])
    sentence = f"the program wrote to {said}, but {why}"
    found = finding(rule, sentence, "", buffer=buffer, address=words[1], line="")
    report(session, process, found, trace, label="written at")
    process.traced.add((rule, buffer))


def _note_write_behind(
    session: ClientSession, process: ClientProcess, address: int, trace: Trace
) -> None:
    """Report rule X2: the first write to the guard page between two blocks."""
    block = process.memory.block_before(address)
    if block is None:
        return  # an execution has ended meanwhile
    after = process.memory.block_at((address // PAGE + 1) * PAGE)
    is_before = after is not None and after.start - address < address - block.end
    side, block = ("before the start", after) if after and is_before else ("past the end", block)
    buffer = process.buffers.nearest(block.end - 1)
    name = ""
    if buffer is not None and block.start <= buffer.address:
        name = name_of(session, process, buffer)
    is_whole = buffer is not None and (buffer.address, buffer.end) == (block.start, block.end)
    whole = name if is_whole else f"the block containing {name}"
    sentence = f"the program wrote {side} of {whole if name else 'a heap block'}"
    found = finding("X2", sentence, "", buffer=name, address=address, line="")
    report(session, process, found, trace, label="written at")


def note_overrun(
    session: ClientSession,
    process: ClientProcess,
    buffer: ForeignMemory,
    end: int,
    trace: Trace,
    previous: int = 0,
    call: str = "",
) -> None:
    """Report rule X2: bytes beside a block have been overwritten since the previous call."""
    name = name_of(session, process, buffer)
    side = "after" if end >= buffer.end else "before"
    is_whole = end in (buffer.end, buffer.address - len(GUARD))
    whole = name if is_whole else f"the block containing {name}"
    sentence = f"bytes {side} {whole} were overwritten, starting at {end:#x}"
    before = session.symbols.trace(process.memory, [previous] if previous else [])
    found = finding("X2", sentence, call, buffer=name, address=end, line="")
    label = CALLED if call.startswith("Qnn") else "noticed at"
    report(session, process, found, trace, ("still intact at", before), label)


def note_overruns(call: ClientCall) -> None:
    """Report the overwritten guard that the client found, and guards found overwritten earlier."""
    session, process, words = call.session, call.process, call.message.words
    if call.has_overrun:
        end, previous = words[-2:]
        buffer = process.buffers.guarded(end)
        if buffer is not None:
            note_overrun(session, process, buffer, end, call.trace, previous, call.name)
    for end, buffer in process.buffers.overruns():
        note_overrun(session, process, buffer, end, call.trace, 0, call.name)
