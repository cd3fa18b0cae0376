"""Deliberate mistakes with shared memory, made in the emulated backend and in the real library.

The graph of the emulated backend computes nothing. The real library for x86 gets a process for each
mistake, because some mistakes crash it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from qnnmem.deadline import Deadline, not_in_time
from qnnmem.errors import CannotTell, QnnError
from qnnmem.finding import Finding
from qnnmem.htp.binary.context import HtpGraph
from qnnmem.htp.compile import Progress, no_progress
from qnnmem.htp.qmem.client import HtpBackend, HtpClientContext, HtpClientGraph
from qnnmem.htp.qmem.layer import Places
from qnnmem.htp.qmem.memory import (
    ALIGNMENT,
    PAGE,
    HtpMemDescriptor,
    SharedBuffer,
    packed_offsets,
)
from qnnmem.htp.requests import (
    AllocateCall,
    Call,
    CallsReply,
    CallsRequest,
    CallTensor,
    DeregisterCall,
    ExecuteCall,
    FreeCall,
    RegisterCall,
    RetrieveCall,
)
from qnnmem.htp.worker import TIME_LIMIT_S, Worker
from qnnmem.qnn.enums import MemRegisterType, TensorMemType
from qnnmem.qnn.shared_memory import MemDescription, MemHandle
from qnnmem.qnn.tensor import QnnTensor, TensorInfo
from qnnmem.results.qmem import LibraryAnswer, MisuseAnswer
from qnnmem.units import round_up

_FREE = FreeCall()
_STRANGE = 7  # never registered; the library for x86 has no valid handles


class _Stage:
    """A client with one graph, and one shared buffer large enough for the tensors of the graph."""

    def __init__(self, backend: HtpBackend, path: Path, name: str) -> None:
        self.backend, self.path = backend, path
        self.context = HtpClientContext.create_from_binary(backend, path)
        self.graph: HtpClientGraph = self.context.graph_retrieve(name)
        self.inputs, self.outputs = self.graph.tensors()
        self.tensors = [*self.inputs, *self.outputs]
        for tensor in self.tensors:
            tensor.mem_type, tensor.client_buf = TensorMemType.RAW, bytearray(tensor.nbytes)
        size = packed_offsets(tensor.nbytes for tensor in self.tensors)[1]
        self.buffer = SharedBuffer(round_up(size, PAGE))
        self.first = self.tensors[0]

    def place(self, tensor: QnnTensor, offset: int = 0) -> HtpMemDescriptor:
        """Return a descriptor of a tensor in the shared buffer."""
        return HtpMemDescriptor.inside(self.buffer, tensor.dimensions, tensor.data_type, offset)

    def register(self, place: HtpMemDescriptor | None = None) -> MemHandle:
        """Register a tensor, by default the first, and return its handle."""
        return self.context.mem_register([place or self.place(self.first)])[0]

    def give(self, handle: object, tensor: QnnTensor | None = None) -> None:
        """Execute with a handle for one tensor, by default the first."""
        changed = tensor or self.first
        changed.mem_type, changed.mem_handle = TensorMemType.MEMHANDLE, handle
        self.execute()

    def execute(self) -> None:
        """Execute with the current settings of the tensors."""
        self.graph.execute(self.inputs, self.outputs)


def _registered_twice(stage: _Stage) -> None:
    stage.register()
    stage.register()


def _dead_context(stage: _Stage) -> None:
    stage.context.free()
    stage.register()


def _deregistered_twice(stage: _Stage) -> None:
    handle = stage.register()
    stage.context.mem_deregister([handle])
    stage.context.mem_deregister([handle])


def _deregistered_then_executed(stage: _Stage) -> None:
    handle = stage.register()
    stage.context.mem_deregister([handle])
    stage.give(handle)


def _other_context(stage: _Stage) -> None:
    other = HtpClientContext.create_from_binary(stage.backend, stage.path)
    stage.give(other.mem_register([stage.place(stage.first)])[0])


def _freed_while_registered(stage: _Stage) -> None:
    handle = stage.register()
    stage.buffer.close()
    stage.give(handle)


def _never_deregistered(stage: _Stage) -> None:
    stage.register()
    stage.context.free()


def _short_handle(stage: _Stage) -> None:
    half = max(1, stage.first.dimensions[-1] // 2)
    stage.give(stage.register(replace(stage.place(stage.first), dimensions=(half,))))


def _short_raw(stage: _Stage) -> None:
    last = stage.tensors[-1]
    last.client_buf = bytearray(last.nbytes - 1)
    stage.execute()


def _short_size(stage: _Stage) -> None:
    stage.first.data_size = stage.first.nbytes - 1
    stage.execute()


def _no_buffer(stage: _Stage) -> None:
    stage.first.client_buf = None
    stage.execute()


def _no_memory_type(stage: _Stage) -> None:
    stage.first.mem_type = TensorMemType.UNDEFINED
    stage.execute()


def _overlapping(stage: _Stage) -> None:
    last = stage.tensors[-1]
    stage.first.mem_type, stage.first.mem_handle = TensorMemType.MEMHANDLE, stage.register()
    stage.give(stage.register(stage.place(last, ALIGNMENT)), last)


def _dead_graph(stage: _Stage) -> None:
    stage.context.free()
    stage.execute()


def _freed_twice(stage: _Stage) -> None:
    stage.context.free()
    stage.context.free()


# The same mistakes as calls to the real library, in the child process.


def _total(graph: HtpGraph) -> int:
    return round_up(packed_offsets(tensor.nbytes for tensor in graph.tensors)[1], PAGE)


def _ask_register(graph: HtpGraph, memory: str = "buffer", **changes: Any) -> list[Call]:
    tensor, total = graph.tensors[0], _total(graph)
    place = MemDescription(
        tensor.dimensions or (1,),
        tensor.data_type,
        fd=-1,
        mem_type=MemRegisterType.CUSTOM,
        total_size=total,
    )
    registers = RegisterCall(memory, "handle", replace(place, **changes))
    return [AllocateCall(total, "buffer"), registers]


def _raw(tensor: TensorInfo, **changes: Any) -> CallTensor:
    plain = CallTensor(int(TensorMemType.RAW), tensor.nbytes, tensor.nbytes)
    return msgspec.structs.replace(plain, **changes)


def _handle(number: int) -> CallTensor:
    return CallTensor(int(TensorMemType.MEMHANDLE), handle=number)


def _ask_execute(
    graph: HtpGraph, memory: CallTensor | None = None, position: int = 0
) -> list[Call]:
    """Return an execute call; `memory`, if given, replaces the memory of one tensor."""
    tensors = {tensor.id: _raw(tensor) for tensor in graph.tensors}
    if memory is not None:
        tensors[graph.tensors[position].id] = memory
    return [ExecuteCall(graph.name, tensors)]


def _ask_changed(graph: HtpGraph, **changes: Any) -> list[Call]:
    """Return an execute call with changes in the description of the first tensor."""
    return _ask_execute(graph, _raw(graph.tensors[0], **changes))


def _ask_short_raw(graph: HtpGraph) -> list[Call]:
    """Return an execute call with an output buffer that is one byte too short.

    A short input would prove nothing: a graph might leave part of an input unread.
    """
    last = graph.tensors[-1]
    return _ask_execute(graph, _raw(last, size=last.nbytes - 1), -1)


class Misuse(NamedTuple):
    """A mistake: its description, how to make it in the emulated backend, and the QNN calls."""

    what: str
    make: Callable[[_Stage], object]
    # By default only the registration: the library for x86 refuses it and returns no handle.
    calls: Callable[[HtpGraph], list[Call]] = _ask_register


MISUSES: Mapping[str, Misuse] = MappingProxyType(
    {
        "registered-twice": Misuse("registered the same fd and offset twice", _registered_twice),
        "closed-fd": Misuse(
            "registered a closed fd",
            lambda stage: stage.register(replace(stage.place(stage.first), fd=-1)),
            lambda graph: _ask_register(graph, memory="none"),
        ),
        "wrong-offset": Misuse(
            "registered an offset past the end of the buffer",
            lambda stage: stage.register(stage.place(stage.first, stage.buffer.size)),
            lambda graph: _ask_register(graph, offset=_total(graph)),
        ),
        "unaligned-offset": Misuse(
            f"registered an offset that is not a multiple of {ALIGNMENT}",
            lambda stage: stage.register(stage.place(stage.first, 4)),
            lambda graph: _ask_register(graph, offset=4),
        ),
        "wrong-size": Misuse(
            "registered more bytes than the buffer has",
            lambda stage: stage.register(
                replace(stage.place(stage.first), total_size=stage.buffer.size + PAGE)
            ),
            lambda graph: _ask_register(graph, total_size=_total(graph) + PAGE),
        ),
        "wrong-type": Misuse(
            "registered DMA-BUF memory",
            lambda stage: stage.register(
                replace(stage.place(stage.first), mem_type=MemRegisterType.DMA_BUF)
            ),
            lambda graph: _ask_register(graph, mem_type=int(MemRegisterType.DMA_BUF)),
        ),
        "dead-context": Misuse(
            "registered with a context that was freed",
            _dead_context,
            lambda graph: [_FREE, *_ask_register(graph)],
        ),
        "deregistered-twice": Misuse(
            "deregistered a handle twice",
            _deregistered_twice,
            lambda _graph: [DeregisterCall(_STRANGE)],
        ),
        "deregistered-executed": Misuse(
            "executed with a deregistered handle", _deregistered_then_executed
        ),
        "other-context": Misuse("executed with a handle of another context", _other_context),
        "freed-registered": Misuse("freed a buffer that is registered", _freed_while_registered),
        "leak": Misuse("freed a context with memory still registered", _never_deregistered),
        "short-handle": Misuse(
            "executed with fewer bytes registered than the tensor has", _short_handle
        ),
        "short-raw": Misuse(
            "executed with a raw output one byte too short", _short_raw, _ask_short_raw
        ),
        "short-size": Misuse(
            "executed with a dataSize one byte too small",
            _short_size,
            lambda graph: _ask_changed(graph, says=graph.tensors[0].nbytes - 1),
        ),
        "no-buffer": Misuse(
            "executed raw without a buffer",
            _no_buffer,
            lambda graph: _ask_changed(graph, size=None),
        ),
        "no-handle": Misuse(
            "executed as memhandle without a handle",
            lambda stage: stage.give(None),
            lambda graph: _ask_execute(graph, _handle(0)),
        ),
        "unknown-handle": Misuse(
            "executed with an invented handle",
            lambda stage: stage.give(_STRANGE),
            lambda graph: _ask_execute(graph, _handle(_STRANGE)),
        ),
        "no-memory-type": Misuse(
            "executed with an undefined memory type",
            _no_memory_type,
            lambda graph: _ask_changed(graph, mem_type=int(TensorMemType.UNDEFINED)),
        ),
        "overlap": Misuse("registered an output that overlaps an input", _overlapping),
        "dead-graph": Misuse(
            "executed after the context was freed",
            _dead_graph,
            lambda graph: [RetrieveCall(graph.name), _FREE, *_ask_execute(graph)],
        ),
        "freed-twice": Misuse("freed a context twice", _freed_twice, lambda _graph: [_FREE, _FREE]),
    }
)


def try_misuses(
    path: Path,
    graph: HtpGraph,
    soc_id: int | None,
    *,
    worker: Worker | None = None,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
) -> tuple[MisuseAnswer, ...]:
    """Make every mistake and return the results.

    Without `worker` or `soc_id`, the mistakes are made only in the emulated backend.
    """
    say, ends = progress or no_progress, deadline or Deadline.after(TIME_LIMIT_S)
    rows = []
    for number, (name, (what, make, calls)) in enumerate(MISUSES.items()):
        say(f"deliberate mistake {number + 1} of {len(MISUSES)}: {what}")
        code, finding = contract_answer(path, graph.name, make)
        answer = None
        if worker is not None and soc_id is not None:
            answer = _asked(path, calls(graph), soc_id, worker, ends)
        rows.append(
            MisuseAnswer(
                id=name,
                what=what,
                code=code,
                rule=finding.rule,
                sentence=finding.sentence,
                cure=finding.cure,
                source=finding.source,
                library=answer,
            )
        )
    return tuple(rows)


def obstacle_to_misuse(graph: HtpGraph) -> str:
    """Return why mistakes cannot be made with a graph; empty if they can."""
    names = {tensor.name for tensor in graph.tensors}
    if len(names) < len(graph.tensors):
        return "has two inputs or outputs with the same name"
    if any(tensor.nbytes < 2 * ALIGNMENT for tensor in (*graph.inputs[:1], *graph.outputs[-1:])):
        return f"has an input or output of less than {2 * ALIGNMENT} bytes"
    return "" if graph.inputs and graph.outputs else "has no input or no output"


def contract_answer(path: Path, name: str, make: Callable[[_Stage], object]) -> tuple[int, Finding]:
    """Return the code and the finding of a mistake in the emulated backend."""
    with _backend() as backend:
        stage = _Stage(backend, path, name)
        try:
            make(stage)
            code = 0
        except QnnError as error:
            code = error.code
        finding = backend.findings[
            0
        ]  # about the freed buffer, not about the execution that uses it
        stage.buffer.close()
    return code, finding


@contextmanager
def _backend() -> Iterator[HtpBackend]:
    backend = HtpBackend.create(compute=_compute_nothing)
    try:
        yield backend
    finally:
        with suppress(QnnError):
            backend.free()


def _compute_nothing(_inputs: Places, _outputs: Places) -> None:
    """Compute nothing, because only the memory matters."""


def _asked(
    path: Path, calls: Iterable[Call], soc_id: int, worker: Worker, ends: Deadline
) -> LibraryAnswer:
    """Return the result of the last call in the real library."""
    request = CallsRequest([path.absolute()], soc_id, list(calls))
    outcome = worker.ask(request, time_limit_s=ends.left_s)
    if outcome.kind == "crashed" and outcome.signal is not None:
        return LibraryAnswer(signal=outcome.signal)
    if outcome.kind == "timeout":
        problem = f"the calls in the library did not finish within {ends.limit_s:g} s"
        raise not_in_time(path, problem)
    if not outcome.is_done:
        raise CannotTell(f"the calls in the library failed: {outcome.sentence[:300]}")
    return LibraryAnswer(outcome.result(CallsReply).codes[-1])
