"""Child program that is the device of a run: whatever an untrusted program does, it does here.

First comes `Start`, answered by `Ready`. Then each `DeviceCall` names a method of `Device`; the
payload has the inputs of an execution. The child sends any number of `DeviceLogLine`, then one
`DeviceAnswer` with the result, new findings and times, and the outputs of an execution.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import BinaryIO, Literal

from msgspec import Struct

from qnnmem.child import limit_memory, open_replies
from qnnmem.errors import LoadError, QnnError, QnnMemError, TcmFatal
from qnnmem.finding import Finding
from qnnmem.lpai.net_run.device import Counted, Device, DeviceSettings, Executed
from qnnmem.lpai.net_run.jobs import cut
from qnnmem.lpai.net_run.log import ApiTimes
from qnnmem.qnn.enums import LogLevel
from qnnmem.quiet_onnxruntime import import_onnxruntime
from qnnmem.text import sentence
from qnnmem.wire import WireMessage, read_frame, write_frame

_LARGEST_FRAME = 16 << 30
Method = Literal[
    "create",
    "allocate",
    "retrieve",
    "configure",
    "finalize",
    "execute",
    "submit",
    "take",
    "counted",
    "close",
]


class Start(WireMessage, frozen=True):
    """The limit on memory and the settings of the device."""

    memory_limit: int
    settings: DeviceSettings


class Ready(WireMessage, frozen=True):
    """The libraries are imported; now the time of calls counts."""


class DeviceCall(WireMessage, frozen=True):
    """A method of the device and its arguments, None where it has none."""

    method: Method
    graph: str | None = None
    number: int | None = None  # sets of buffers, or one of them
    sizes: list[int] | None = None  # bytes of each input


class DeviceFailure(Struct, frozen=True):
    """An exception as plain values."""

    kind: Literal["qnn", "tcm", "memory", "load", "usage", "fault"]
    text: str = ""
    code: int = 0
    limit: int = 0
    finding: Finding | None = None


class DeviceLogLine(WireMessage, frozen=True):
    """A line of the backend's log."""

    level: LogLevel
    text: str


class DeviceAnswer(WireMessage, frozen=True):
    """What a call did."""

    findings: list[Finding]
    times: list[tuple[str, int]]
    failure: DeviceFailure | None = None
    code: int | None = None  # of an execution
    counted: Counted | None = None


class _Times(ApiTimes):
    """Times that are handed over with the next answer."""

    def __init__(self) -> None:
        super().__init__(None)
        self.new: list[tuple[str, int]] = []

    def add(self, name: str, duration: int) -> None:
        self.new.append((name, duration))


class _Server:
    def __init__(self, settings: DeviceSettings, replies: BinaryIO) -> None:
        self._replies, self._times, self._told = replies, _Times(), 0
        self._device = Device(settings, self._times, self._log, limited=True)

    def answer(self, request: DeviceCall, payload: bytes) -> None:
        """Make a call and send what came of it."""
        arguments = [one for one in (request.graph, request.number) if one is not None]
        inputs = [] if request.sizes is None else [list(cut(payload, request.sizes))]
        result = failure = None
        try:
            result = getattr(self._device, request.method)(*arguments, *inputs)
        except Exception as exc:  # the parent raises it again
            failure = _failure(exc)
        code, outputs = result if isinstance(result, Executed) else (None, b"")
        counted = result if isinstance(result, Counted) else None
        times, self._times.new = self._times.new, []
        reply = DeviceAnswer(self._new_findings(), times, failure, code, counted)
        write_frame(self._replies, reply, outputs)

    def _log(self, level: LogLevel, text: str) -> None:
        write_frame(self._replies, DeviceLogLine(level, text))

    def _new_findings(self) -> list[Finding]:
        findings = self._device.findings
        start, self._told = self._told, len(findings)
        return list(islice(findings, start, None))


def _failure(exc: Exception) -> DeviceFailure:
    """An error as plain values."""
    if isinstance(exc, QnnError):
        return DeviceFailure("qnn", code=exc.code, finding=exc.finding)
    if isinstance(exc, TcmFatal):
        return DeviceFailure("tcm", limit=exc.limit)
    if isinstance(exc, LoadError):
        return DeviceFailure("load", exc.reason)
    if isinstance(exc, MemoryError | ImportError):  # a library that cannot be mapped
        return DeviceFailure("memory")
    if isinstance(exc, OSError):
        return DeviceFailure("usage", f"the binary cannot be run here: {sentence(exc)}")
    if isinstance(exc, QnnMemError):
        return DeviceFailure("usage", str(exc))
    return DeviceFailure("fault", f"{type(exc).__name__}: {exc}")


def main() -> int:
    """DeviceAnswer calls until the parent closes the pipe."""
    replies, requests = open_replies(), sys.stdin.buffer
    first = read_frame(requests, Start, _LARGEST_FRAME)
    if first is None:
        return 1
    start, _ = first
    limit_memory(start.memory_limit)
    import_onnxruntime()  # before the time of the first call begins
    write_frame(replies, Ready())
    server = _Server(start.settings, replies)
    while (frame := read_frame(requests, DeviceCall, _LARGEST_FRAME)) is not None:
        server.answer(*frame)
    return 0


if __name__ == "__main__":
    sys.exit(main())
