"""The device of a run: backend, context, buffers and executions; reads only the binary.

The device runs in a child process, so an untrusted binary cannot harm the parent. The parent sends
`Start`, and the child replies `Ready`. Then each `DeviceCall` names a method of `Device`; the
payload holds the inputs of an execution. The child sends any number of `DeviceLogLine`, then one
`DeviceAnswer` with the result, new findings and times, and the outputs of an execution.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

from msgspec import Struct

from qnnmem.bounded_file import read_head
from qnnmem.child import limit_memory, open_replies
from qnnmem.errors import LoadError, QnnError, QnnMemError, TcmFatal
from qnnmem.finding import Finding
from qnnmem.lpai.binary import MAGIC, map_file, unpack
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.config.settings import RunConfig
from qnnmem.lpai.net_run.log import ApiTimes
from qnnmem.lpai.net_run.options import context_configs, graph_configs
from qnnmem.lpai.profiles import Profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import MemDescriptor, MemInfoCustom, ask
from qnnmem.lpai.runtime.graph import SUCCESS, Graph
from qnnmem.lpai.runtime.heap import Extensions, HeapBuffer
from qnnmem.lpai.runtime.session import hand_over_pools
from qnnmem.lpai.runtime.system_context import io_tensors
from qnnmem.qnn.enums import (
    BackendProperty,
    LogLevel,
    MemRegisterType,
    MemType,
    TensorMemType,
)
from qnnmem.qnn.tensor import QnnTensor
from qnnmem.quiet_onnxruntime import import_onnxruntime
from qnnmem.text import sentence
from qnnmem.units import round_up
from qnnmem.wire import WireMessage, read_frame, write_frame

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qnnmem.qnn.shared_memory import MemHandle


Inputs = Sequence[memoryview]  # the bytes of each input, in the graph's order
_CHECKED_FIRST = 64 << 20  # a larger file is checked on disk before it is read
_HEAD_BYTES = 4096

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


@dataclass(slots=True)
class IoBuffers:
    """Memory for all inputs and outputs of an execution."""

    inputs: Sequence[QnnTensor]
    outputs: Sequence[QnnTensor]
    input_bytes: dict[str, NDArray[Any]]
    output_bytes: dict[str, NDArray[Any]]
    handles: list[MemHandle] = field(default_factory=list)
    fd: int | None = None

    def close(self) -> None:
        """Close the file descriptor; call this only after the context was freed."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def shared_io(context: Context, graph: CompiledGraph, kind: MemRegisterType) -> IoBuffers:
    """Return buffers in one shared file, registered with the context, so that nothing is copied."""
    inputs, outputs = io_tensors(graph)
    tensors = (*inputs, *outputs)
    sizes = [graph.model.tensors[tensor.name].nbytes for tensor in tensors]
    offsets, total = _offsets(sizes, context.backend.profile.start_alignment)
    fd = _memory_fd(total)
    try:
        handles = context.mem_register(
            [
                MemDescriptor(t.dimensions, t.data_type, kind, MemInfoCustom(fd, offset))
                for t, offset in zip(tensors, offsets, strict=True)
            ]
        )
    except BaseException:
        os.close(fd)
        raise
    for tensor, handle in zip(tensors, handles, strict=True):
        tensor.mem_type, tensor.mem_handle = TensorMemType.MEMHANDLE, handle
    first = len(inputs)
    return IoBuffers(
        inputs,
        outputs,
        {t.name: h.array for t, h in zip(inputs, handles[:first], strict=True)},
        {t.name: h.array for t, h in zip(outputs, handles[first:], strict=True)},
        handles=handles,
        fd=fd,
    )


def _offsets(sizes: Iterable[int], align: int) -> tuple[list[int], int]:
    """Return consecutive aligned offsets and the total size."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end = round_up(end + max(size, 1), align)
    return offsets, max(end, mmap.PAGESIZE)


def _memory_fd(size: int) -> int:
    """Return a file descriptor for an anonymous file of `size` bytes."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("qnnmem-io")
    else:  # pragma: no cover - systems other than Linux
        with tempfile.TemporaryFile(prefix="qnnmem-io-") as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """The settings of a device, independent of the working directory."""

    binary: Path
    size: int
    platform: Profile
    config: RunConfig | None = None
    mem_type: str = "ddr"
    shared: MemRegisterType | None = None
    use_mmap: bool = False
    sanitize: bool = True
    one_scratch: bool = False


class Executed(NamedTuple):
    """The code of an execution and, on success, the bytes of all outputs in the graph's order."""

    code: int
    outputs: bytes = b""


class Counted(NamedTuple):
    """How often a graph was executed, and how many bytes were copied."""

    executions: int
    copied_bytes: int


class Device:
    """A simulated device with one binary; `limited` is True in a limited child process."""

    def __init__(
        self,
        settings: DeviceSettings,
        times: ApiTimes,
        log: Callable[[LogLevel, str], None],
        *,
        limited: bool = False,
    ) -> None:
        self._settings, self._times, self._limited = settings, times, limited
        self._backend = Backend.create(profile=settings.platform, log=log)
        self._extensions: Extensions | None = None  # holds all buffers until the end of the run
        self._context: Context | None = None
        self._binary: Any = None
        self._scratch: HeapBuffer | None = None
        self._graphs: dict[str, Graph] = {}
        self._buffers: dict[str, list[IoBuffers]] = {}
        self._codes: SimpleQueue[int] = SimpleQueue()

    @property
    def findings(self) -> Sequence[Finding]:
        """All findings so far."""
        return self._backend.findings

    def create(self) -> Sequence[CompiledGraph]:
        """Load the binary, create the context, and return the enabled graphs."""
        settings = self._settings
        # The alignment must be queried before the first allocation.
        ask(self._backend.get_property, BackendProperty.GET_PROP_ALIGNMENT_REQ)
        extensions = self._extensions = Extensions(self._backend, settings.mem_type)
        self._check_file()
        self._binary = _load_binary(settings, extensions)
        configs = context_configs(settings.config, extensions.mem_type)
        with self._times.timed("QnnContext_createFromBinary"):
            self._context = Context.create_from_binary(
                self._backend,
                self._binary,
                configs,
                sanitize=settings.sanitize,
                limited=self._limited,
            )
        return enabled_graphs(self._context.compiled, settings.config)

    def allocate(self, graph: str, sets: int) -> None:
        """Allocate inputs and outputs for `sets` executions at a time."""
        context, extensions = self._made()
        compiled = context.compiled.graph(graph)
        if compiled is None:
            raise AssertionError("the graph is not in the binary")
        self._buffers[graph] = [self._io(context, extensions, compiled) for _ in range(sets)]

    def _io(self, context: Context, extensions: Extensions, graph: CompiledGraph) -> IoBuffers:
        """Return buffers for one execution, registered with the context if they are shared."""
        if self._settings.shared is not None:
            with self._times.timed("QnnMem_register"):
                return shared_io(context, graph, self._settings.shared)
        inputs, outputs = io_tensors(graph)
        return IoBuffers(
            inputs,
            outputs,
            extensions.bring_io(graph, inputs, "input"),
            extensions.bring_io(graph, outputs, "output"),
        )

    def retrieve(self, graph: str) -> None:
        """Retrieve the handle of a graph."""
        self._graphs[graph] = self._made()[0].graph_retrieve(graph)

    def configure(self, graph: str) -> None:
        """Pass pools and settings to a graph."""
        handle, settings = self._graphs[graph], self._settings
        if settings.platform.client_brings_pools:
            hand_over_pools(handle, self._made()[1], self._times.timed, self._one_scratch())
        configs = graph_configs(settings.config, graph)
        if configs:
            with self._times.timed("QnnGraph_setConfig"):
                handle.set_config([*configs, None])

    def _one_scratch(self) -> HeapBuffer | None:
        """Return one scratch pool for all graphs that run; None unless the options request it."""
        context, extensions = self._made()
        if self._settings.one_scratch and self._scratch is None:
            running = enabled_graphs(context.compiled, self._settings.config)
            size = max((graph.scratch_bytes for graph in running), default=0)
            self._scratch = extensions.allocate_pool(size, "scratch of all graphs")
        return self._scratch

    def finalize(self, graph: str) -> None:
        """Finalize a graph."""
        with self._times.timed("QnnGraph_finalize"):
            self._graphs[graph].finalize()

    def execute(self, graph: str, inputs: Inputs) -> Executed:
        """Return the result of one execution, after waiting for it."""
        io = self._filled(graph, 0, inputs)
        with self._times.timed("QnnGraph_execute"):
            code = self._graphs[graph].execute(io.inputs, io.outputs)
        return self._executed(io, code)

    def submit(self, graph: str, slot: int, inputs: Inputs) -> None:
        """Queue an execution that uses the buffer set with number `slot`."""
        io = self._filled(graph, slot, inputs)
        with self._times.timed("QnnGraph_executeAsync"):
            self._graphs[graph].execute_async(io.inputs, io.outputs, self._codes.put)

    def take(self, graph: str, slot: int) -> Executed:
        """Return the result of the oldest queued execution; executions finish in order."""
        return self._executed(self._buffers[graph][slot], self._codes.get())

    def counted(self, graph: str) -> Counted:
        """Return the counters of a graph."""
        counters = self._graphs[graph].counters
        return Counted(counters.executions, counters.copied_bytes)

    def close(self) -> None:
        """Free everything in the documented order, and check all buffers once more."""
        context, self._context = self._context, None
        if context is not None and self._extensions is not None:
            for io in (io for buffers in self._buffers.values() for io in buffers):
                context.mem_deregister(io.handles)
            with self._times.timed("QnnContext_free"):
                context.free()
            if self._settings.sanitize:
                self._extensions.note_overruns()
        for buffers in self._buffers.values():
            for io in buffers:
                io.close()
        self._binary = None
        self._backend.free()

    def _made(self) -> tuple[Context, Extensions]:
        if self._context is None or self._extensions is None:
            raise AssertionError("create the context first")
        return self._context, self._extensions

    def _check_file(self) -> None:
        """Refuse a binary of another program before any memory is allocated for it."""
        path = self._settings.binary
        head = read_head(path, _HEAD_BYTES)
        try:
            if not head.startswith(MAGIC):
                unpack(head)
            elif self._settings.size > _CHECKED_FIRST:
                unpack(map_file(path))
        except QnnError as exc:
            self._backend.fail(exc.code, exc.finding)

    def _filled(self, graph: str, slot: int, inputs: Inputs) -> IoBuffers:
        import numpy

        io = self._buffers[graph][slot]
        for view, content in zip(io.input_bytes.values(), inputs, strict=True):
            view[:] = numpy.frombuffer(content, numpy.uint8)
        return io

    def _executed(self, io: IoBuffers, code: int) -> Executed:
        if code != SUCCESS:
            return Executed(code)
        return Executed(code, b"".join(view.data for view in io.output_bytes.values()))


def _load_binary(settings: DeviceSettings, extensions: Extensions) -> Any:
    """Return the binary, copied to memory of the run's type, or mapped if the options say so."""
    path, size = settings.binary, settings.size
    if settings.use_mmap and extensions.mem_type is MemType.DDR:
        return map_file(path)
    view = extensions.allocate(size, "model binary").view[:size]
    try:
        with path.open("rb") as file:
            read = file.readinto(view)
    except OSError as exc:
        raise LoadError(path, f"cannot be read ({exc.strerror or exc})") from exc
    if read != size:
        raise LoadError(path, "was truncated during the read")
    return view


def enabled_graphs(context: CompiledContext, config: RunConfig | None) -> list[CompiledGraph]:
    """Return the graphs of a binary that the config enables."""
    names = None if config is None else config.context.enable_graphs
    return [graph for graph in context.graphs if names is None or graph.name in names]


def split_bytes(content: bytes, sizes: Iterable[int]) -> Iterator[memoryview]:
    """Yield consecutive parts of `content` with the given sizes."""
    start, whole = 0, memoryview(content)
    for size in sizes:
        yield whole[start : start + size]
        start += size


class Start(WireMessage, frozen=True):
    """First message: the address-space limit of the child, and the settings of the device."""

    memory_limit: int
    settings: DeviceSettings


class Ready(WireMessage, frozen=True):
    """Message: the libraries are imported, and from now on each call has a time limit."""


class DeviceCall(WireMessage, frozen=True):
    """A call of a device method; arguments that the method does not have are None."""

    method: Method
    graph: str | None = None
    number: int | None = None  # number of buffer sets, or index of one
    sizes: list[int] | None = None  # bytes of each input


class DeviceFailure(Struct, frozen=True):
    """An exception as plain values, for the pipe."""

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
    """The result of a call."""

    findings: list[Finding]
    times: list[tuple[str, int]]
    failure: DeviceFailure | None = None
    code: int | None = None  # result of an execution
    counted: Counted | None = None


class _Times(ApiTimes):
    """Durations of API calls, collected until the next answer sends them."""

    def __init__(self) -> None:
        super().__init__(None)
        self.new: list[tuple[str, int]] = []

    def add(self, name: str, duration: int) -> None:
        self.new.append((name, duration))


class _Server:
    def __init__(self, settings: DeviceSettings, replies: BinaryIO) -> None:
        self._replies, self._times, self._sent = replies, _Times(), 0
        self._device = Device(settings, self._times, self._log, limited=True)

    def answer(self, request: DeviceCall, payload: bytes) -> None:
        """Execute a call and send its result."""
        arguments = [value for value in (request.graph, request.number) if value is not None]
        inputs = [] if request.sizes is None else [list(split_bytes(payload, request.sizes))]
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
        start, self._sent = self._sent, len(findings)
        return list(islice(findings, start, None))


def _failure(exc: Exception) -> DeviceFailure:
    """Return an exception as plain values, for the pipe."""
    if isinstance(exc, QnnError):
        return DeviceFailure("qnn", code=exc.code, finding=exc.finding)
    if isinstance(exc, TcmFatal):
        return DeviceFailure("tcm", limit=exc.limit)
    if isinstance(exc, LoadError):
        return DeviceFailure("load", exc.reason)
    if isinstance(exc, MemoryError | ImportError):  # ImportError: a library cannot be mapped
        return DeviceFailure("memory")
    if isinstance(exc, OSError):
        return DeviceFailure("usage", f"this machine cannot run the binary: {sentence(exc)}")
    if isinstance(exc, QnnMemError):
        return DeviceFailure("usage", str(exc))
    return DeviceFailure("fault", f"{type(exc).__name__}: {exc}")


def main() -> int:
    """Serve calls until the parent closes the pipe."""
    replies, requests = open_replies(), sys.stdin.buffer
    first = read_frame(requests, Start, _LARGEST_FRAME)
    if first is None:
        return 1
    start, _ = first
    limit_memory(start.memory_limit)
    import_onnxruntime()  # before the clock of the first call starts
    write_frame(replies, Ready())
    server = _Server(start.settings, replies)
    while (frame := read_frame(requests, DeviceCall, _LARGEST_FRAME)) is not None:
        server.answer(*frame)
    return 0


if __name__ == "__main__":
    sys.exit(main())
