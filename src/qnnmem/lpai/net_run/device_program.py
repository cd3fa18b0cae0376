"""Child program that is the device of a run: whatever a stranger's program does, it does here.

Requests name a method of `Device` and its arguments; the inputs of an execution are the payload.
First it says that it is ready. An answer is any number of log lines, then one frame with the
result, new findings and times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, BinaryIO

from qnnmem.child import limit_memory, open_replies, read_frame, write_frame
from qnnmem.errors import LoadError, QnnError, QnnMemError, TcmFatal
from qnnmem.lpai.net_run.device import Counted, Device, Executed
from qnnmem.lpai.net_run.device_settings import DeviceSettings
from qnnmem.lpai.net_run.jobs import cut
from qnnmem.lpai.net_run.log import ApiTimes
from qnnmem.qnn.enums import LogLevel
from qnnmem.quiet_onnxruntime import import_onnxruntime
from qnnmem.text import sentence

_LARGEST_FRAME = 16 << 30


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

    def answer(self, request: Mapping[str, Any], payload: bytes) -> None:
        """Do what is asked and say what came of it."""
        header: dict[str, Any] = {}
        outputs = b""
        arguments = list(request["arguments"])
        if "sizes" in request:
            arguments.append(list(cut(payload, request["sizes"])))
        try:
            result = getattr(self._device, request["call"])(*arguments)
        except Exception as exc:  # the parent raises it again
            header["failure"] = _failure(exc)
        else:
            if isinstance(result, Executed):
                header["result"], outputs = result
            elif isinstance(result, Counted):
                header["result"] = result
        header["findings"] = [asdict(found) for found in self._new_findings()]
        header["times"], self._times.new = self._times.new, []
        write_frame(self._replies, header, outputs)

    def _log(self, level: LogLevel, text: str) -> None:
        write_frame(self._replies, {"log": [int(level), text]})

    def _new_findings(self) -> Iterator[Any]:
        findings = self._device.findings
        start, self._told = self._told, len(findings)
        return islice(findings, start, None)


def _failure(exc: Exception) -> dict[str, Any]:
    """An error as plain values."""
    if isinstance(exc, QnnError):
        return {"kind": "qnn", "code": exc.code, "finding": asdict(exc.finding)}
    if isinstance(exc, TcmFatal):
        return {"kind": "tcm", "limit": exc.limit}
    if isinstance(exc, LoadError):
        return {"kind": "load", "text": exc.reason}
    if isinstance(exc, MemoryError | ImportError):  # a library that cannot be mapped
        return {"kind": "memory"}
    if isinstance(exc, OSError):
        return {"kind": "usage", "text": f"the binary cannot be run here: {sentence(exc)}"}
    kind = "usage" if isinstance(exc, QnnMemError) else "fault"
    return {"kind": kind, "text": str(exc) if kind == "usage" else f"{type(exc).__name__}: {exc}"}


def main() -> int:
    """Answer requests until the parent closes the pipe."""
    replies = open_replies()
    first = read_frame(sys.stdin.buffer, _LARGEST_FRAME)
    if first is None:
        return 1
    limit_memory(int(first[0]["memory_limit"]))
    import_onnxruntime()  # before the time of the first call begins
    write_frame(replies, {"ready": True})
    server = _Server(DeviceSettings.from_json(first[0]["settings"]), replies)
    while (frame := read_frame(sys.stdin.buffer, _LARGEST_FRAME)) is not None:
        server.answer(*frame)
    return 0


if __name__ == "__main__":
    sys.exit(main())
