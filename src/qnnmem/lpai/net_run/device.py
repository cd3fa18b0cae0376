"""The device of a run: backend, context, buffers, executions. Of all files it reads the binary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from qnnmem.bounded_file import read_head
from qnnmem.contract.rules import finding
from qnnmem.errors import QnnError
from qnnmem.finding import Finding
from qnnmem.lpai.binary import map_file, unpack
from qnnmem.lpai.binary.layout import MAGIC
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.config.read import RunConfig
from qnnmem.lpai.net_run.log import ApiTimes
from qnnmem.lpai.net_run.memory import IoBuffers, RunMemory
from qnnmem.lpai.net_run.options import context_configs, graph_configs
from qnnmem.lpai.profiles import Profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import custom_property
from qnnmem.lpai.runtime.extensions import Extensions
from qnnmem.lpai.runtime.graph import SUCCESS, Graph
from qnnmem.qnn.enums import BackendProperty, LogLevel, MemRegisterType

Inputs = Sequence[memoryview]  # the bytes of each input, in the graph's order

_CHECKED_FIRST = 64 << 20  # a larger file is checked where it lies before it is read
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """The settings of a device; nothing in them refers to the working directory."""

    binary: Path
    size: int
    platform: Profile
    config: RunConfig | None = None
    mem_type: str = "ddr"
    shared: MemRegisterType | None = None
    use_mmap: bool = False
    sanitize: bool = True


class Executed(NamedTuple):
    """The code of an execution, and with success the bytes of all outputs in the graph's order."""

    code: int
    outputs: bytes = b""


class Counted(NamedTuple):
    """What a graph did so far."""

    executions: int
    copied_bytes: int


class RunDevice(Protocol):
    """What a run does with a device; graphs go by their names."""

    @property
    def findings(self) -> Sequence[Finding]:
        """Every rule that was broken so far."""

    def create(self) -> Sequence[CompiledGraph]:
        """Load the binary and make the context; these graphs are enabled."""

    def allocate(self, graph: str, sets: int) -> None:
        """Make room for the inputs and outputs of so many executions at a time."""

    def retrieve(self, graph: str) -> None:
        """Get the handle of a graph."""

    def configure(self, graph: str) -> None:
        """Hand over pools and settings."""

    def finalize(self, graph: str) -> None:
        """Finish the graph."""

    def execute(self, graph: str, inputs: Inputs) -> Executed:
        """Execute once and wait."""

    def submit(self, graph: str, slot: int, inputs: Inputs) -> None:
        """Put an execution into the queue, in one of the sets of buffers."""

    def take(self, graph: str, slot: int) -> Executed:
        """Wait for the oldest execution in the queue."""

    def counted(self, graph: str) -> Counted:
        """What a graph did so far."""

    def close(self) -> None:
        """Free everything; what is found then is a finding."""


class Device:
    """A simulated device with one binary; `limited` says that this process is a limited child."""

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
        self._memory: RunMemory | None = None
        self._context: Context | None = None
        self._binary: Any = None
        self._graphs: dict[str, Graph] = {}
        self._buffers: dict[str, list[IoBuffers]] = {}
        self._codes: SimpleQueue[int] = SimpleQueue()

    @property
    def findings(self) -> Sequence[Finding]:
        """Every rule that was broken so far."""
        return self._backend.findings

    def create(self) -> Sequence[CompiledGraph]:
        """Load the binary and make the context; these graphs are enabled."""
        settings = self._settings
        alignment = custom_property(BackendProperty.GET_PROP_ALIGNMENT_REQ)
        self._backend.get_property([alignment, None])  # before anything is allocated
        self._memory = RunMemory(Extensions(self._backend, settings.mem_type), self._times)
        self._check_file()
        path, use_mmap = settings.binary, settings.use_mmap
        self._binary = self._memory.load_binary(path, settings.size, use_mmap=use_mmap)
        configs = context_configs(settings.config, self._memory.mem_type)
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
        """Make room for the inputs and outputs of so many executions at a time."""
        context, memory = self._made()
        compiled = context.compiled.graph(graph)
        if compiled is None:
            raise AssertionError("a graph that the binary does not have")
        buffers = self._buffers[graph] = []
        for _ in range(sets):
            buffers.append(memory.allocate_io(context, compiled, self._settings.shared))

    def retrieve(self, graph: str) -> None:
        """Get the handle of a graph."""
        self._graphs[graph] = self._made()[0].graph_retrieve(graph)

    def configure(self, graph: str) -> None:
        """Hand over pools and settings."""
        handle, settings = self._graphs[graph], self._settings
        if settings.platform.client_brings_pools:
            self._made()[1].hand_over_pools(handle)
        configs = graph_configs(settings.config, graph)
        if configs:
            with self._times.timed("QnnGraph_setConfig"):
                handle.set_config([*configs, None])

    def finalize(self, graph: str) -> None:
        """Finish the graph."""
        with self._times.timed("QnnGraph_finalize"):
            self._graphs[graph].finalize()

    def execute(self, graph: str, inputs: Inputs) -> Executed:
        """Execute once and wait."""
        io = self._filled(graph, 0, inputs)
        with self._times.timed("QnnGraph_execute"):
            code = self._graphs[graph].execute(io.inputs, io.outputs)
        return self._executed(io, code)

    def submit(self, graph: str, slot: int, inputs: Inputs) -> None:
        """Put an execution into the queue, in one of the sets of buffers."""
        io = self._filled(graph, slot, inputs)
        with self._times.timed("QnnGraph_executeAsync"):
            self._graphs[graph].execute_async(io.inputs, io.outputs, self._codes.put)

    def take(self, graph: str, slot: int) -> Executed:
        """Wait for the oldest execution in the queue; one worker serves it in order."""
        return self._executed(self._buffers[graph][slot], self._codes.get())

    def counted(self, graph: str) -> Counted:
        """What a graph did so far."""
        counters = self._graphs[graph].counters
        return Counted(counters.executions, counters.copied_bytes)

    def close(self) -> None:
        """Free in the documented order, and look once more whether all buffers are intact."""
        context, self._context = self._context, None
        if context is not None and self._memory is not None:
            for io in (io for buffers in self._buffers.values() for io in buffers):
                context.mem_deregister(io.handles)
            with self._times.timed("QnnContext_free"):
                context.free()
            if self._settings.sanitize:
                for zone in self._memory.broken_guards():
                    self._backend.note(finding("X2", f"bytes {zone} were overwritten"))
        for buffers in self._buffers.values():
            for io in buffers:
                io.close()
        self._binary = None
        self._backend.free()

    def _made(self) -> tuple[Context, RunMemory]:
        if self._context is None or self._memory is None:
            raise AssertionError("the context comes first")
        return self._context, self._memory

    def _check_file(self) -> None:
        """Refuse what is not a binary of ours before room for all of it is allocated."""
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


def enabled_graphs(context: CompiledContext, config: RunConfig | None) -> list[CompiledGraph]:
    """The graphs of a binary that the config does not leave out."""
    names = None if config is None else config.context.enable_graphs
    return [graph for graph in context.graphs if names is None or graph.name in names]
