"""The device of a run in a child process, with limits on memory and on the time of each call.

The child is told what to do and asked what came of it; files other than the binary are read and
written on this side. What it answers is checked here, as it may be whatever a program made of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from qnnmem.child import ChildProcess, Frame, read_frame
from qnnmem.child import memory_limit as child_memory_limit
from qnnmem.contract.rules import finding
from qnnmem.errors import LoadError, Setting, TcmFatal, UsageError, Words
from qnnmem.finding import Finding
from qnnmem.lpai.binary import CREATE_FROM_BINARY, map_file, unpack
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.net_run.device import (
    Counted,
    Executed,
    Inputs,
    enabled_graphs,
)
from qnnmem.lpai.net_run.device_settings import DeviceSettings
from qnnmem.lpai.net_run.log import ApiTimes
from qnnmem.lpai.runtime.graph import SUCCESS
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import LogLevel

TIME_LIMIT_S = 600.0
T = TypeVar("T")

_PROGRAM = "qnnmem.lpai.net_run.device_program"
_EXECUTION_FAILED = 1100
_START_S = 60.0
_LARGEST_ANSWER = 64 << 20  # beside outputs: log lines, findings, times


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What a program may take."""

    time_s: float = TIME_LIMIT_S  # for the binary to load, and for each execution
    memory: int | None = None  # address space in bytes; None: three quarters of the machine


class DeviceChild(ChildProcess):
    """`Device` by its methods; one that does not answer has failed as a program fails."""

    def __init__(
        self,
        settings: DeviceSettings,
        limits: RunLimits,
        times: ApiTimes,
        log: Callable[[LogLevel, str], None],
        shown: Path,
    ) -> None:
        # Time is counted for each call; a run may be as long as it likes.
        super().__init__(_PROGRAM, threading.TIMEOUT_MAX)
        self._settings, self._limits, self._shown = settings, limits, shown
        self._times, self._log = times, log
        self._output_bytes: dict[str, int] = {}
        self.findings: list[Finding] = []
        self.cure: Words = ""  # for a device that was lost
        self._lost = False
        self._deadline, self._closed = float("inf"), threading.Event()
        threading.Thread(target=self._end_late_calls, daemon=True).start()
        limit = limits.memory or child_memory_limit(most=None)
        self.send({"memory_limit": limit, "settings": settings.to_json()})

    def create(self) -> Sequence[CompiledGraph]:
        """Load the binary and make the context; these graphs are enabled."""
        self._await_start()
        self._call("create")
        graphs = enabled_graphs(unpack(map_file(self._settings.binary)), self._settings.config)
        for graph in graphs:
            tensors = (graph.model.tensors[name] for name in dict.fromkeys(graph.outputs))
            self._output_bytes[graph.name] = sum(tensor.nbytes for tensor in tensors)
        return graphs

    def allocate(self, graph: str, sets: int) -> None:
        """Make room for the inputs and outputs of so many executions at a time."""
        self._call("allocate", graph, sets)

    def retrieve(self, graph: str) -> None:
        """Get the handle of a graph."""
        self._call("retrieve", graph)

    def configure(self, graph: str) -> None:
        """Hand over pools and settings."""
        self._call("configure", graph)

    def finalize(self, graph: str) -> None:
        """Finish the graph."""
        self._call("finalize", graph)

    def execute(self, graph: str, inputs: Inputs) -> Executed:
        """Execute once and wait."""
        return self._executed(graph, self._call("execute", graph, inputs=inputs))

    def submit(self, graph: str, slot: int, inputs: Inputs) -> None:
        """Put an execution into the queue, in one of the sets of buffers."""
        self._call("submit", graph, slot, inputs=inputs)

    def take(self, graph: str, slot: int) -> Executed:
        """Wait for the oldest execution in the queue."""
        return self._executed(graph, self._call("take", graph, slot))

    def counted(self, graph: str) -> Counted:
        """What a graph did so far."""
        frame = self._call("counted", graph)
        return self._understood("counted", lambda header: Counted(*header["result"]), frame[0])

    def close(self) -> None:
        """Free everything, if the device is still there."""
        if not self._lost:
            self._call("close")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        super().__exit__(kind, error, trace)

    def _await_start(self) -> None:
        """Python and its libraries take a while on a busy machine, for which no program can."""
        self._deadline = monotonic() + _START_S
        try:
            frame = self._answer(())
        finally:
            self._deadline = float("inf")
        if frame is None:
            self._lose("create")

    def _call(self, name: str, *arguments: Any, inputs: Inputs | None = None) -> Frame:
        header: dict[str, Any] = {"call": name, "arguments": arguments}
        payload = b""
        if inputs is not None:
            header["sizes"] = [content.nbytes for content in inputs]
            payload = b"".join(inputs)
        self._deadline = monotonic() + self._limits.time_s
        try:
            self.send(header, payload)
            while (frame := self._answer(arguments)) is not None and "log" in frame[0]:
                self._log(*self._understood(name, _log_line, frame[0]))
        finally:
            self._deadline = float("inf")
        if frame is None:
            self._lose(name)
        failure = self._understood(name, self._note, frame[0])
        if isinstance(failure, MemoryError):
            self._lose(name)
        if failure is not None:
            raise failure
        return frame

    def _answer(self, arguments: Sequence[Any]) -> Frame | None:
        """One frame, no larger than what is asked for can be."""
        most = _LARGEST_ANSWER + sum(self._output_bytes.get(name, 0) for name in arguments[:1])
        try:
            return read_frame(self._process.stdout, most)  # type: ignore[arg-type]  # IO[bytes]
        except (OSError, ValueError, RecursionError):
            return None

    def _understood(self, call: str, read: Callable[[dict[str, Any]], T], header: Any) -> T:
        try:
            return read(header)
        except (KeyError, TypeError, ValueError):  # an answer that is none
            self._lose(call)

    def _note(self, header: Mapping[str, Any]) -> Exception | None:
        """Take over findings and times, and what the device raised."""
        self.findings += [Finding(**found) for found in header["findings"]]
        for name, duration in header["times"]:
            self._times.add(str(name), int(duration))
        return self._error(header["failure"]) if "failure" in header else None

    def _error(self, failure: Mapping[str, Any]) -> Exception:
        kind = failure["kind"]
        if kind == "qnn":
            found = Finding(**failure["finding"])
            known = (noted for noted in reversed(self.findings) if noted == found)
            return qnn_error(int(failure["code"]), next(known, found))
        if kind == "tcm":
            return TcmFatal(int(failure["limit"]))
        if kind == "memory":
            return MemoryError()
        text = str(failure["text"])
        if kind == "load":
            return LoadError(self._shown, text)
        return UsageError(text) if kind == "usage" else RuntimeError(text)

    def _executed(self, graph: str, frame: Frame) -> Executed:
        header, outputs = frame
        code = self._understood("execute", lambda header: int(header["result"]), header)
        if len(outputs) != (self._output_bytes[graph] if code == SUCCESS else 0):
            self._lose("execute")
        return Executed(code, outputs)

    def _lose(self, call: str) -> NoReturn:
        """The device is gone: fail as a program fails that cannot run."""
        self._lost = True
        if self.expired:
            what = f"the program did not finish within {self._limits.time_s:g} s"
            self.cure = (Setting("time_limit_s"), " gives it more time")
        else:
            what = "the program crashed or ran out of memory"
            self.cure = (Setting("memory_limit"), " gives it more, if memory is what it lacks")
        code, noticed = _EXECUTION_FAILED, "QnnGraph_execute"
        if call == "create":
            code, noticed = CREATE_FROM_BINARY, "QnnContext_createFromBinary"
        # The rule's own cure is for damaged files; this one's is ours to say.
        error = qnn_error(code, replace(finding("B1", what, call=noticed), cure=""))
        self.findings.append(error.finding)
        self._log(LogLevel.ERROR, str(error))
        raise error

    def _end_late_calls(self) -> None:
        """End the child when a call takes too long."""
        limit = self._limits.time_s
        while not self._closed.wait(max(0.01, min(limit, self._deadline - monotonic()))):
            if monotonic() >= self._deadline:
                self._expire()
                return


def _log_line(header: Mapping[str, Any]) -> tuple[LogLevel, str]:
    level, text = header["log"]
    return LogLevel(level), str(text)
