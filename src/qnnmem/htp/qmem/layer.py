"""The emulated IO layer of one graph, on top of the real library, which computes the outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from qnnmem.contract.regions import Extent
from qnnmem.contract.rules import MEASURED, finding
from qnnmem.deadline import Deadline, not_in_time
from qnnmem.errors import CannotTell, UsageError
from qnnmem.htp.binary.context import HtpGraph
from qnnmem.htp.qmem.memory import MemRegistry, SharedBuffer
from qnnmem.htp.requests import Call, CallsReply, CallsRequest, CallTensor, ExecuteCall
from qnnmem.htp.worker import TIME_LIMIT_S, Worker
from qnnmem.qnn.enums import TensorMemType
from qnnmem.qnn.shared_memory import MappedBytes, MemHandle
from qnnmem.qnn.tensor import TensorInfo
from qnnmem.results.qmem import Inference, IoMode
from qnnmem.targets.socs import htp_constant
from qnnmem.text import quote
from qnnmem.units import round_up

Places = Mapping[str, MappedBytes]  # addresses where a graph reads or writes its tensors
Given = Mapping[str, Any]  # by tensor: a handle, an object with the buffer protocol, or None
Compute = Callable[[Places, Places], None]  # reads the inputs, fills the outputs

_EXECUTE = "QnnGraph_execute"
_FLOATS = {16: "float16", 32: "float32"}
_WHOLE = (8, 16, 32, 64)


def io_mode(tensor: TensorInfo) -> IoMode:
    """Return the IO mode of a tensor: memhandle if the binary states so, else raw."""
    is_shared = tensor.mem_type is TensorMemType.MEMHANDLE
    return IoMode.MEMHANDLE if is_shared else IoMode.RAW


def check_names(graph: HtpGraph) -> None:
    """Raise UsageError if two inputs or outputs of a graph have the same name."""
    names = [tensor.name for tensor in graph.tensors]
    if len(set(names)) < len(names):
        subject = f"graph {quote(graph.name)} has two inputs or outputs with the same name"
        raise UsageError(f"{subject}, so they are ambiguous")


class IoLayer:
    """Inputs and outputs of a loaded graph, and the internal buffers for raw executions.

    A tensor prepared as raw gets its internal buffer immediately. A tensor prepared as memhandle
    gets an internal buffer at the first raw execution.
    """

    def __init__(
        self,
        graph: HtpGraph,
        compute: Compute,
        registry: MemRegistry,
        prepared: IoMode | None = None,
    ) -> None:
        """Reserve the buffers; `prepared` overrides the modes that the binary states."""
        self._graph, self._compute, self._registry = graph, compute, registry
        self._internal: dict[str, SharedBuffer] = {}
        for tensor in graph.tensors:
            if (prepared or io_mode(tensor)) is IoMode.RAW:
                self._reserve(tensor)
        self.reserved_at_load = self.reserved

    @property
    def reserved(self) -> int:
        """Current bytes of internal IO memory."""
        return sum(buffer.size for buffer in self._internal.values())

    def execute(
        self,
        inputs: Given,
        outputs: Given,
    ) -> Inference:
        """Execute the graph once, with any mix of raw buffers and handles.

        Return how many bytes were reserved and copied.
        """
        before = self.reserved
        copied_in = copied_out = 0
        with ExitStack() as held:
            given = {t.name: self._client(t, inputs, held) for t in self._graph.inputs}
            wanted = {
                t.name: self._client(t, outputs, held, write=True) for t in self._graph.outputs
            }
            used = {t.name: self._used(t, inputs, given, held) for t in self._graph.inputs}
            filled = {t.name: self._used(t, outputs, wanted, held) for t in self._graph.outputs}
            self._check_overlap(used, filled)
            started = time.perf_counter()
            for name, view in given.items():
                copied_in += _copy(view, used[name].view)
            seconds = time.perf_counter() - started
            self._compute(used, filled)
            started = time.perf_counter()
            for name, view in wanted.items():
                copied_out += _copy(filled[name].view, view)
            seconds += time.perf_counter() - started
        return Inference(self.reserved - before, copied_in, copied_out, seconds)

    def close(self) -> None:
        """Free the internal buffers."""
        for buffer in self._internal.values():
            buffer.close()
        self._internal.clear()

    def _reserve(self, tensor: TensorInfo) -> SharedBuffer:
        if tensor.name not in self._internal:
            size = round_up(tensor.nbytes, htp_constant("io", "unit").value)
            self._internal[tensor.name] = SharedBuffer(size)
        return self._internal[tensor.name]

    def _client(
        self,
        tensor: TensorInfo,
        given: Given,
        held: ExitStack,
        *,
        write: bool = False,
    ) -> memoryview:
        """Check and return the application's buffer for a tensor."""
        memory = given.get(tensor.name)
        if isinstance(memory, MemHandle):
            self._check_handle(tensor, memory)
            view = memory.view
        else:
            view = held.enter_context(self._raw(tensor, memory))
        if view.nbytes < tensor.nbytes:
            problem = (
                f"tensor {quote(tensor.name)} needs {tensor.nbytes:,} bytes, but the "
                f"buffer has {view.nbytes:,}"
            )
            too_short = finding("Q7", problem, _EXECUTE, need=tensor.nbytes, given=view.nbytes)
            self._registry.fail(6004, too_short)
        if write and view.readonly:
            self._refuse("Q7", f"the buffer of output {quote(tensor.name)} is read-only")
        return held.enter_context(view[: tensor.nbytes])

    def _raw(self, tensor: TensorInfo, memory: Any) -> memoryview:
        if memory is None:
            self._refuse("Q7", f"tensor {quote(tensor.name)} has no buffer", MEASURED)
        if isinstance(memory, SharedBuffer):
            if memory.is_freed:
                where = f" at {memory.freed_at.split(': ')[0]}" if memory.freed_at else ""
                self._refuse("Q8", f"the buffer of tensor {quote(tensor.name)} was freed{where}")
            memory = memory.view
        kind = getattr(memory, "dtype", None)
        if getattr(kind, "hasobject", False) or getattr(kind, "kind", "") in ("M", "m"):
            # Overwriting object references would crash the process.
            self._refuse(
                "Q7", f"the buffer of tensor {quote(tensor.name)} does not contain plain numbers"
            )
        try:
            return memoryview(memory).cast("B")
        except TypeError:
            self._refuse(
                "Q7",
                f"the buffer of tensor {quote(tensor.name)} is not a contiguous block of bytes",
            )
        except ValueError:  # a view that was released
            self._refuse("Q8", f"the buffer of tensor {quote(tensor.name)} was freed")

    def _check_handle(self, tensor: TensorInfo, handle: MemHandle) -> None:
        if handle not in self._registry:
            rule = "Q10" if self._registry.is_elsewhere(handle) else "Q7"
            fate = self._registry.fate(handle)
            self._refuse(rule, f"the handle of tensor {quote(tensor.name)} {fate}")
        if handle.is_freed:
            self._refuse("Q8", f"the buffer of tensor {quote(tensor.name)} was freed")
        if handle.is_shortened:
            self._refuse("Q8", f"the buffer of tensor {quote(tensor.name)} was made shorter")

    def _used(
        self,
        tensor: TensorInfo,
        given: Given,
        client: Mapping[str, memoryview],
        held: ExitStack,
    ) -> MappedBytes:
        """Return the memory that the graph accesses: the handle's memory or the internal buffer."""
        handle = given[tensor.name]
        if isinstance(handle, MemHandle):
            return MappedBytes(handle.fd, handle.file, handle.offset, client[tensor.name])
        buffer = self._reserve(tensor)
        view = held.enter_context(buffer.view[: tensor.nbytes])
        return MappedBytes(buffer.fd, buffer.file, 0, view)

    def _check_overlap(self, used: Places, filled: Places) -> None:
        """Report outputs that overlap other tensors, unless the compiler allows the overlap."""
        places = [(name, _extent(place), False) for name, place in used.items()]
        places += [(name, _extent(place), True) for name, place in filled.items()]
        for number, (name, extent, is_output) in enumerate(places):
            for other, lower, is_other_output in places[:number]:
                allowed = self._graph.safe_share_io and is_output != is_other_output
                if is_output and not allowed and (shared := extent.overlap(lower)):
                    fd = filled[name].fd
                    problem = f"output {quote(name)} shares {shared:,} bytes of fd {fd} with "
                    problem += f"{quote(other)}"
                    self._registry.note(finding("Q11", problem, _EXECUTE))

    def _refuse(self, rule: str, sentence: str, source: str = "") -> NoReturn:
        self._registry.fail(6004, finding(rule, sentence, _EXECUTE, source=source))


def _extent(place: MappedBytes) -> Extent:
    """Return the range of the shared file that the memory occupies."""
    return Extent(place.offset, place.offset + place.view.nbytes, place.file)


def _copy(source: memoryview, target: memoryview) -> int:
    """Copy the bytes and return their number; 0 if source and target are the same memory."""
    if source is target:
        return 0
    target[:] = source
    return source.nbytes


def numpy_type(tensor: TensorInfo) -> str:
    """Return NumPy's name of a tensor's element type; quantized values are plain integers."""
    name, bits = tensor.data_type.name, tensor.data_type.bits
    family = name.split("_")[0].removesuffix("FIXED").removesuffix("INT") or "S"
    if family == "FLOAT" and bits in _FLOATS:
        return _FLOATS[bits]
    if family in ("S", "U") and bits in _WHOLE:
        return f"{'u' if family == 'U' else ''}int{bits}"
    if family == "BOOL" and bits == 8:
        return "bool"
    raise CannotTell(f"tensor {quote(tensor.name)} has type {name}, which NumPy does not have")


class LibraryGraph:
    """Executes a graph with `QnnGraph_execute` of libQnnHtp, in a child process.

    The child maps the shared files of inputs and outputs at the offsets of the registered tensors.
    So the library accesses the pages of the application. Only a worker on another machine needs
    copies.
    """

    def __init__(
        self,
        binary: Path,
        graph: HtpGraph,
        soc_id: int,
        worker: Worker,
        time_limit_s: float = TIME_LIMIT_S,
        deadline: Deadline | None = None,
        times: int = 1,
        memory_limit: int | None = None,
    ) -> None:
        """Store the settings; `time_limit_s` applies to loading and to each execution.

        If `deadline` is given, it covers all runs instead. A run executes the graph `times` times
        after one load, and stores the durations in `seconds`.
        """
        self._binary, self._graph, self._soc = binary.absolute(), graph, soc_id
        self._worker, self._time, self._ends = worker, time_limit_s, deadline
        self._times, self.seconds = times, list[float]()
        self._memory_limit = memory_limit

    def __call__(self, inputs: Places, outputs: Places) -> None:
        """Execute the graph; the outputs are written in place."""
        self.execute_each([(inputs, outputs)] * self._times)

    def execute_each(self, turns: Sequence[tuple[Places, Places]]) -> None:
        """Load the binary once and execute the graph once for each pair of inputs and outputs."""
        shared: list[MappedBytes] = []
        calls: list[Call] = []
        for inputs, outputs in turns:
            tensors: dict[int, CallTensor] = {}
            for side, places in ((self._graph.inputs, inputs), (self._graph.outputs, outputs)):
                for tensor in side:
                    # The x86 library only supports raw memory.
                    raw = int(TensorMemType.RAW)
                    tensors[tensor.id] = CallTensor(raw, tensor.nbytes, shared=len(shared))
                    shared.append(places[tensor.name])
            calls.append(ExecuteCall(self._graph.name, tensors))
        request = CallsRequest([self._binary], self._soc, calls)
        ends = self._ends or Deadline.after(self._time)
        outcome = self._worker.ask(
            request,
            places=shared,
            time_limit_s=ends.left_s,
            memory_limit=self._memory_limit,
            time_limit_per_call=self._ends is None,
        )
        failure = f"the library did not execute graph {quote(self._graph.name)}"
        if outcome.kind == "timeout" and self._ends is not None:
            raise not_in_time(self._binary, f"{failure} within {ends.limit_s:g} s")
        if not outcome.is_done:
            raise CannotTell(f"{failure}: {outcome.sentence[:300]}")
        reply = outcome.result(CallsReply)
        self.seconds = reply.seconds
        if code := next(filter(None, reply.codes), 0):
            raise CannotTell(f"{failure}: QnnGraph_execute returned {code}")
