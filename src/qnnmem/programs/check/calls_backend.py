"""Handlers of calls about backends, logs, signals, profiles, devices and error texts."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from qnnmem.contract.leaks import Resource, of_process
from qnnmem.contract.rules import finding
from qnnmem.finding import Finding
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.descriptors import AlignmentReq, Config, HwInfo, Property, custom
from qnnmem.lpai.runtime.queue import Signal
from qnnmem.programs import layout
from qnnmem.programs.check.client_session import (
    ClientCall,
    ClientSession,
    can_be_freed,
    current_call,
)
from qnnmem.programs.check.findings import MADE, STILL_EXECUTES, client_finding, other_place
from qnnmem.programs.process_memory import Unreadable
from qnnmem.programs.socket_server import Action
from qnnmem.qnn.codes import code_of, describe
from qnnmem.qnn.enums import BackendOption, LogLevel
from qnnmem.version import __version__

NOT_SUPPORTED = 1000
_CORE, _LPAI = (2, 40, 0), (2, 33, 0)  # equal to the shim's table
_NO_DEVICE = 14000
_UNKNOWN_KEY = 2000
_HANDLE_BYTES = 8


class ClientLog:
    """`QnnLog` handle: sends log lines to a callback of the client."""

    def __init__(self, function: int, level: int, made: Resource) -> None:
        self.function, self.level, self.made = function, level, made

    def say(self, level: LogLevel, text: str) -> None:
        """Send a log line to the client while one of its calls waits."""
        call = current_call()
        if call is not None and self.function and level <= self.level:
            call.demand(Action.LOG, self.function, level, time.monotonic_ns() // 1000, text)


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """`QnnProfile` handle without events."""

    made: Resource


class WatchedBackend(Backend):
    """Backend that attributes each finding to the call that broke the rule."""

    session: ClientSession  # session of the call that created the backend
    client_log: ClientLog | None

    def note(self, found: Finding) -> None:
        """Record a finding for the current call; for a queued execution, report it at once."""
        if not can_be_freed(found):
            return
        call = current_call()
        if call is not None:
            call.note(found)
        else:
            self._later(found, 0)
        super().note(found)

    def fail(self, code: int, found: Finding) -> NoReturn:
        """Record a finding and fail the call."""
        call = current_call()
        if call is not None:
            call.note(found)
        else:
            self._later(found, code)
        super().fail(code, found)

    def _later(self, found: Finding, code: int) -> None:
        """Report a finding of a queued execution, whose call has already returned."""
        session = self.session
        stack = session.symbols.stack(found.trace)
        gone = [process.buffers.freeing(found.address) for process in session.processes.now()]
        freeing = next((freed[1] for freed in gone if freed is not None), None)
        other = () if freeing is None else session.symbols.stack(freeing.trace)
        session.findings.add(
            client_finding(
                replace(found, call="QnnGraph_executeAsync"),
                code,
                stack,
                other_place("" if freeing is None else f"{freeing.how} at", other),
            )
        )


def create(call: ClientCall) -> int:
    """Answer `QnnBackend_create`; return its error code."""
    check_out(call, 2)
    log = call.handle(0, "log", 11004) if call.word(0) else None
    configs = [_config(call, one) for one in layout.pointers(call.memory, call.word(1))]
    with call.here():
        say = None if log is None else log.say
        backend = WatchedBackend.create(configs, profile=call.session.profile, log=say)
        assert isinstance(backend, WatchedBackend)  # noqa: S101  # for the type checker
        backend.session, backend.client_log = call.session, log
        backend.track()
    return give(call, "backend", backend, 2)


def _config(call: ClientCall, address: int) -> Config:
    option, value = layout.option(call.memory, address)
    if option != BackendOption.CUSTOM_CFG_HW_INFO:
        return Config(option, value)
    inner, pointer = layout.option(call.memory, value)
    info = HwInfo(*call.memory.unpack("<2I", pointer)) if inner == 0 else None
    return custom(inner, info)


def get_property(call: ClientCall) -> int:
    """Answer `QnnBackend_getProperty`; return its error code."""
    backend = call.handle(0, "backend", 4011)
    asked = questions(call, 1)
    backend.get_property([one for one, _ in asked])
    if backend.alignment_queried_at is not None:
        call.memory.note_alignment()
    for question, address in asked:
        call.memory.write(_bytes(question.value.value), address)
    return 0


def questions(call: ClientCall, at: int) -> list[tuple[Property, int]]:
    """Return the requested properties, each with the address to write its answer to."""
    asked = []
    for item in layout.pointers(call.memory, call.word(at)):
        option, value = layout.option(call.memory, item)
        if option:
            asked.append((Property(option, None), 0))
            continue
        inner, target = layout.option(call.memory, value)
        asked.append((Property(0, Property(inner)), target))
    return asked


def _bytes(answer: Any) -> bytes:
    if isinstance(answer, AlignmentReq):
        return struct.pack("<2I", answer.start_addr_alignment, answer.size_alignment)
    return struct.pack("<?", answer)


def free(call: ClientCall) -> int:
    """Answer `QnnBackend_free`; return its error code."""
    call.handle(0, "backend", 4011).free()
    call.free_handle(0)
    return 0


def api_version(call: ClientCall) -> int:
    """Answer `QnnBackend_getApiVersion`; return its error code."""
    call.memory.write(struct.pack("<6I", *_CORE, *_LPAI), call.word(0))
    return 0


def build_id(call: ClientCall) -> int:
    """Answer `QnnBackend_getBuildId`; return its error code."""
    address = call.text(f"qnnmem-{__version__}")
    call.memory.write(struct.pack("<Q", address), call.word(0))
    return 0


def has_capability(call: ClientCall) -> int:
    """Answer `QnnProperty_hasCapability`; LPAI has no operator packages and no devices."""
    group = call.number(0) // 100
    if group in (4, 15):
        return NOT_SUPPORTED
    return 0 if group in (1, 2, 3, 5, 10, 11, 12, 13, 14) else _UNKNOWN_KEY


def log_create(call: ClientCall) -> int:
    """Answer `QnnLog_create`; return its error code."""
    check_out(call, 2)
    log = ClientLog(call.word(0), call.number(1), _made(call, "log"))
    return give(call, "log", log, 2)


def log_level(call: ClientCall) -> int:
    """Answer `QnnLog_setLogLevel`; return its error code."""
    call.handle(0, "log", 11004).level = call.number(1)
    return 0


def log_free(call: ClientCall) -> int:
    """Answer `QnnLog_free`; the log receives no further lines."""
    log = call.handle(0, "log", 11004)
    with call.session.lock:
        handles = call.session.handles.values()
    if any(handle.kind == "backend" and handle.value.client_log is log for handle in handles):
        found = log.made.leaked("was freed before its backend", call=call.name)
        call.note(replace(found, handle=""), found.trace, MADE)
    log.function = 0
    log.made.freed()
    call.free_handle(0)
    return 0


def signal_create(call: ClientCall) -> int:
    """Answer `QnnSignal_create`; return its error code."""
    check_out(call, 2)
    backend = call.handle(0, "backend", 4011)
    with call.here():
        return give(call, "signal", Signal(backend), 2)


def signal_free(call: ClientCall) -> int:
    """Answer `QnnSignal_free`; return its error code."""
    signal = call.handle(0, "signal", 9003)
    flight = call.session.flights.watched_by(signal)
    if flight is not None:
        found = finding("L4", "the signal still watches an execution", call.name)
        call.fail(9000, found, STILL_EXECUTES, flight.trace)
    signal.free()
    call.free_handle(0)
    return 0


def profile_create(call: ClientCall) -> int:
    """Answer `QnnProfile_create`; return its error code."""
    check_out(call, 2)
    call.handle(0, "backend", 4011)
    return give(call, "profile", ClientProfile(_made(call, "profile")), 2)


def _made(call: ClientCall, kind: str) -> Resource:
    """Return a resource that reports a log or profile as a leak (rule C8) unless it is freed."""
    with call.here():
        return of_process().part(kind, "C8", f"the {kind} made at {{at}}")


def profile_events(call: ClientCall) -> int:
    """Answer `QnnProfile_getEvents` with an empty list of events."""
    call.handle(0, "profile", 12000)
    call.memory.write(bytes(4), call.word(2))
    return 0


def profile_free(call: ClientCall) -> int:
    """Answer `QnnProfile_free`; return its error code."""
    call.handle(0, "profile", 12000).made.freed()
    call.free_handle(0)
    return 0


def check_out(call: ClientCall, out: int) -> None:
    """Raise Unreadable if the output pointer, argument `out` of the call, is not writable."""
    room, writable = call.memory.extent(call.word(out), _HANDLE_BYTES)
    if room < _HANDLE_BYTES or not writable:
        raise Unreadable(call.word(out), _HANDLE_BYTES)


def give(call: ClientCall, kind: str, value: Any, out: int) -> int:
    """Write a new handle to the output pointer."""
    number = call.session.give(kind, value, call.process)
    call.memory.write(struct.pack("<Q", number), call.word(out))
    return 0


def error_message(call: ClientCall) -> int:
    """Answer `QnnError_getMessage` and `QnnError_getVerboseMessage`."""
    code = describe(code_of(call.word(0)))
    address = call.text(f"{code.name}: {code.meaning}"[:1000])
    call.memory.write(struct.pack("<Q", address), call.word(1))
    return 0


def no_device(call: ClientCall) -> int:
    """Answer device calls such as `QnnDevice_create`: LPAI has no devices. No rule is broken."""
    return _NO_DEVICE if call.name == "QnnDevice_free" else NOT_SUPPORTED


def not_supported(call: ClientCall) -> int:
    """Return NOT_SUPPORTED for a function that this backend lacks; no rule is broken."""
    return NOT_SUPPORTED


def nothing(call: ClientCall) -> int:
    """Return success for a function that has no effect on this backend."""
    return 0
