"""The device of a run in a child process, with limits on memory and on the time of each call.

The parent sends calls and receives results; it reads and writes all files except the binary. The
parent checks every answer, because an untrusted program might have changed it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from qnnmem.child import ChildProcess
from qnnmem.child import memory_limit as child_memory_limit
from qnnmem.contract.rules import finding
from qnnmem.deadline import Deadline
from qnnmem.errors import LoadError, Setting, TcmFatal, UsageError, Words
from qnnmem.finding import Finding
from qnnmem.lpai.binary import CREATE_FROM_BINARY, map_file, unpack
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.net_run.device import (
    Counted,
    DeviceAnswer,
    DeviceCall,
    DeviceFailure,
    DeviceLogLine,
    DeviceSettings,
    Executed,
    Inputs,
    Method,
    Ready,
    Start,
    enabled_graphs,
)
from qnnmem.lpai.net_run.log import ApiTimes
from qnnmem.lpai.runtime.graph import SUCCESS
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import LogLevel
from qnnmem.wire import Frame

TIME_LIMIT_S = 600.0

T = TypeVar("T")
_PROGRAM = "qnnmem.lpai.net_run.device"
_EXECUTION_FAILED = 1100
_START_S = 60.0
_LARGEST_ANSWER = 64 << 20  # without outputs: log lines, findings, times


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits on the memory of an untrusted program and on the time of each call."""

    time_s: float = TIME_LIMIT_S  # for loading the binary, and for each execution
    memory: int | None = None  # address space in bytes; None: three quarters of the machine


class DeviceChild(ChildProcess):
    """Proxy for `Device`; a device that does not reply counts as a failed program."""

    def __init__(
        self,
        settings: DeviceSettings,
        limits: RunLimits,
        times: ApiTimes,
        log: Callable[[LogLevel, str], None],
        shown: Path,
    ) -> None:
        # Time is limited for each call; the whole run may take any time.
        self._pause_s = limits.time_s
        super().__init__(_PROGRAM, threading.TIMEOUT_MAX)
        self._settings, self._limits, self._shown = settings, limits, shown
        self._times, self._log = times, log
        self._output_bytes: dict[str, int] = {}
        self.findings: list[Finding] = []
        self.cure: Words = ""  # set if the device was lost
        self._lost = False
        limit = limits.memory or child_memory_limit(largest=None)
        self.send(Start(limit, settings))

    def create(self) -> Sequence[CompiledGraph]:
        """Load the binary, create the context, and return the enabled graphs."""
        self._await_start()
        self._call("create")
        graphs = enabled_graphs(unpack(map_file(self._settings.binary)), self._settings.config)
        for graph in graphs:
            tensors = (graph.model.tensors[name] for name in dict.fromkeys(graph.outputs))
            self._output_bytes[graph.name] = sum(tensor.nbytes for tensor in tensors)
        return graphs

    def allocate(self, graph: str, sets: int) -> None:
        """Allocate inputs and outputs for `sets` executions at a time."""
        self._call("allocate", graph, sets)

    def retrieve(self, graph: str) -> None:
        """Retrieve the handle of a graph."""
        self._call("retrieve", graph)

    def configure(self, graph: str) -> None:
        """Pass pools and settings to a graph."""
        self._call("configure", graph)

    def finalize(self, graph: str) -> None:
        """Finalize a graph."""
        self._call("finalize", graph)

    def execute(self, graph: str, inputs: Inputs) -> Executed:
        """Return the result of one execution, after waiting for it."""
        return self._executed(graph, self._call("execute", graph, inputs=inputs))

    def submit(self, graph: str, slot: int, inputs: Inputs) -> None:
        """Queue an execution that uses the buffer set with number `slot`."""
        self._call("submit", graph, slot, inputs=inputs)

    def take(self, graph: str, slot: int) -> Executed:
        """Return the result of the oldest queued execution."""
        return self._executed(graph, self._call("take", graph, slot))

    def counted(self, graph: str) -> Counted:
        """Return the counters of a graph."""
        counted = self._call("counted", graph)[0].counted
        return self._lose("counted") if counted is None else counted

    def close(self) -> None:
        """Free everything, if the device is still running."""
        if not self._lost:
            self._call("close")

    def _await_start(self) -> None:
        """Wait until Python and its libraries are loaded.

        The limit on the time of a call does not include this time.
        """
        if self._timed(_START_S, lambda: self.receive(Ready)) is None:
            self._lose("create")

    def _call(
        self,
        method: Method,
        graph: str | None = None,
        number: int | None = None,
        inputs: Inputs | None = None,
    ) -> Frame[DeviceAnswer]:
        sizes = None if inputs is None else [content.nbytes for content in inputs]
        payload = b"".join(inputs or ())
        # No answer can be larger than the requested data.
        limit = _LARGEST_ANSWER + self._output_bytes.get(graph or "", 0)

        def answer() -> Frame[DeviceAnswer] | None:
            self.send(DeviceCall(method, graph, number, sizes), payload)
            frame: Frame[Any] | None
            while (frame := self.receive(DeviceLogLine | DeviceAnswer, limit)) is not None:
                if isinstance(frame[0], DeviceAnswer):
                    return frame
                self._log(frame[0].level, frame[0].text)
            return None

        frame = self._timed(self._limits.time_s, answer)
        if frame is None:
            self._lose(method)
        self._note(method, frame[0])
        return frame

    def _timed(self, limit_s: float, work: Callable[[], T]) -> T:
        """Return the result of `work`; kill the child if `work` takes longer than the limit."""
        run_deadline = self.deadline
        self.deadline = Deadline.after(min(limit_s, run_deadline.left_s))
        try:
            return work()
        finally:
            self.deadline = run_deadline

    def _note(self, method: str, answer: DeviceAnswer) -> None:
        """Store the findings and times in an answer; raise the device's error, if any."""
        self.findings += answer.findings
        for name, duration in answer.times:
            self._times.add(name, duration)
        failure = answer.failure
        if failure is None:
            return
        if failure.kind == "memory" or (failure.kind == "qnn" and failure.finding is None):
            self._lose(method)
        raise self._error(failure)

    def _error(self, failure: DeviceFailure) -> Exception:
        if failure.finding is not None:
            # The same object as in `findings`, so that the report does not show it twice.
            known = (noted for noted in reversed(self.findings) if noted == failure.finding)
            return qnn_error(failure.code, next(known, failure.finding))
        if failure.kind == "tcm":
            return TcmFatal(failure.limit)
        if failure.kind == "load":
            return LoadError(self._shown, failure.text)
        return UsageError(failure.text) if failure.kind == "usage" else RuntimeError(failure.text)

    def _executed(self, graph: str, frame: Frame[DeviceAnswer]) -> Executed:
        answer, outputs = frame
        code = answer.code
        if code is None or len(outputs) != (self._output_bytes[graph] if code == SUCCESS else 0):
            self._lose("execute")
        return Executed(code, outputs)

    def _lose(self, call: str) -> NoReturn:
        """Report that the device process was lost, and raise an error for the call."""
        self._lost = True
        if self.expired:
            what = (
                f"the process that executes graphs did not finish within {self._limits.time_s:g} s"
            )
            self.cure = (Setting("time_limit_s"), " allows more time")
        else:
            what = "the process that executes graphs crashed or ran out of memory"
            self.cure = (Setting("memory_limit"), " allows more memory")
        code, function = _EXECUTION_FAILED, "QnnGraph_execute"
        if call == "create":
            code, function = CREATE_FROM_BINARY, "QnnContext_createFromBinary"
        # `self.cure` replaces the rule's cure, which is about damaged files.
        error = qnn_error(code, replace(finding("B1", what, call=function), cure=""))
        self.findings.append(error.finding)
        self._log(LogLevel.ERROR, str(error))
        raise error
