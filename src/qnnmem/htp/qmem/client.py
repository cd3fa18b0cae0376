"""A client of the HTP backend, call by call: contexts, registered memory, executions.

    backend = HtpBackend.create()
    context = HtpClientContext.create_from_binary(backend, "model.bin")
    handles = context.mem_register([...])
    graph = context.graph_retrieve("graph")
    graph.execute(inputs, outputs)
    context.mem_deregister(handles)
    context.free()
    backend.free()

Graphs can also be composed call by call. The calls are made in the real library when a graph is
finalized; a refusal is reported with the code of the library and the name of the call.

    context = HtpComposedContext.create(backend, soc="SM8650")
    graph = context.create_graph("graph")
    x = graph.create_tensor("x", DataType.FLOAT_32, (1, 8), TensorType.APP_WRITE)
    ...
    graph.add_node("qti.aisw", "ElementWiseNeuron", {"operation": 4}, [x], [y])
    graph.finalize()
    graph.execute(inputs, outputs)

The real library computes the results. Its build for x86 cannot register memory and hardly checks an
execution, so qnnmem emulates registration and checks, with QNN's codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from qnnmem.arguments import expect, expect_items, expect_mapping
from qnnmem.caller import caller_line
from qnnmem.contract.leaks import of_process
from qnnmem.contract.rules import MEASURED, FindingLog, finding
from qnnmem.errors import CannotTell, OutputError, UsageError
from qnnmem.finding import Finding
from qnnmem.htp.binary.context import HtpGraph
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import CompileOptions, check_options
from qnnmem.htp.compile.refused import decisive_line
from qnnmem.htp.library import check_started
from qnnmem.htp.log import parse_log
from qnnmem.htp.qmem.layer import (
    Compute,
    Given,
    IoLayer,
    LibraryGraph,
    check_names,
    io_mode,
    numpy_type,
)
from qnnmem.htp.qmem.memory import (
    HEAP,
    RPCMEM_DEFAULT_FLAGS,
    RPCMEM_HEAP_ID_SYSTEM,
    HtpMemDescriptor,
    MemRegistry,
    SharedBuffer,
    packed_offsets,
    rpcmem_alloc,
    rpcmem_free,
)
from qnnmem.htp.requests import ComposeRequest, HtpSettings, RequestOutcome
from qnnmem.htp.worker import TIME_LIMIT_S, Worker
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import TensorMemType
from qnnmem.qnn.graph import (
    CallFile,
    GraphDraft,
    check_finalized,
    check_graph_name,
    recorded_calls,
)
from qnnmem.qnn.shared_memory import MemHandle, mixed_sentence
from qnnmem.qnn.tensor import QnnTensor, TensorInfo
from qnnmem.results.qmem import Inference, IoMode
from qnnmem.targets.socs import Soc, find_soc
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import quote
from qnnmem.wire import write_frame

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CREATE, _FREE = "QnnContext_createFromBinary", "QnnContext_free"
_RETRIEVE, _EXECUTE = "QnnGraph_retrieve", "QnnGraph_execute"
_BACKEND_FREE = "QnnBackend_free"
_SHOWN = 8


class HtpBackend:
    """`Qnn_BackendHandle_t` of the HTP backend; `findings` holds every broken rule.

    `compute` executes graphs in place of the real library, for example if it is not installed.
    """

    def __init__(self, compute: Compute | None = None, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.compute, self.time_limit_s = compute, time_limit_s
        self.memory_limit: int | None = None  # of the child process; None: the default limit
        self.registries: list[MemRegistry] = []
        self.is_freed = False
        self._own = FindingLog()
        self._contexts: list[HtpClientContext] = []
        self._worker: Worker | None = None
        HEAP.add_listener(self)

    @classmethod
    def create(
        cls, *, compute: Compute | None = None, time_limit_s: float = TIME_LIMIT_S
    ) -> HtpBackend:
        """Return a new backend (`QnnBackend_create`)."""
        return cls(compute, time_limit_s)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings so far: those of each context in order, then those of the backend."""
        return (
            *(finding for registry in self.registries for finding in registry.findings),
            *self._own,
        )

    @property
    def worker(self) -> Worker:
        """The child process with the library, started at the first use."""
        if self._worker is None:
            self._worker = Worker()
        return self._worker

    def adopt(self, context: HtpClientContext) -> None:
        """Add a context, which must be freed before the backend."""
        self._contexts.append(context)

    def note(self, found: Finding) -> None:
        """Record a finding that belongs to no context."""
        self._own.note(found)

    def fail(self, code: int, found: Finding) -> NoReturn:
        """Record the finding and raise the QNN error of a call that belongs to no context."""
        self._own.append(found)
        raise qnn_error(code, found)

    def check_alive(self, call: str) -> None:
        """Raise the QNN error of a call made after `free`."""
        if self.is_freed:
            self.fail(4011, finding("Q13", "the backend was freed", call))

    def free(self) -> tuple[Finding, ...]:
        """Free the backend (`QnnBackend_free`) and return its findings.

        Contexts that were not freed become findings.
        """
        if self.is_freed:
            self.fail(4011, finding("Q13", "the backend was already freed", _BACKEND_FREE))
        self.is_freed = True
        for context in self._contexts:
            if not context.is_freed:
                self._own.append(context.not_freed())
                context.free()
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        return self.findings


class HtpClientContext:
    """`Qnn_ContextHandle_t` of a context binary."""

    def __init__(
        self,
        backend: HtpBackend,
        path: Path,
        graphs: Sequence[HtpGraph],
        soc_id: int | None,
        room: int | None,
    ) -> None:
        self.backend, self.path, self.soc_id = backend, path, soc_id
        self.described = tuple(graphs)
        subject = f"the context of {quote(path.name)}"
        never = "was not freed before the process ended"
        self._made = of_process().part("context", "Q13", subject, never=never)
        self.registry = MemRegistry(room, siblings=backend.registries, owner=self._made)
        self.is_freed = False
        self._graphs: dict[str, HtpClientGraph] = {}
        backend.adopt(self)

    @classmethod
    def create_from_binary(
        cls,
        backend: HtpBackend,
        binary: str | Path,
        *,
        soc: str | None = None,
        room: int | None = None,
    ) -> HtpClientContext:
        """Return a context made from a file (`QnnContext_createFromBinary`).

        `soc` is needed for files that do not name their SoC. `room` is the free space of the
        process domain for registered memory, in bytes.
        """
        expect(backend, HtpBackend, "a context needs a backend from HtpBackend.create")
        expect(binary, (str, Path), "a context binary must be a path")
        backend.check_alive(_CREATE)
        path = Path(binary)
        if path.suffix.lower() == ".onnx":
            raise UsageError(
                f"{path}: create a context from the binary, not from a model that contains it"
            )
        content = read_context(path)
        soc_id = content.soc_model if soc is None else find_soc(soc).model_id
        return cls(backend, path, content.graphs, soc_id, room)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of this context."""
        return tuple(self.registry.findings)

    def graph_retrieve(self, name: str | None = None) -> HtpClientGraph:
        """Return a graph by name (`QnnGraph_retrieve`); by default, the only graph."""
        self._check_alive(_RETRIEVE)
        graphs = {graph.name: graph for graph in self.described}
        if name is None and len(graphs) == 1:
            (name,) = graphs
        if not isinstance(name, str) or name not in graphs:
            known = ", ".join(map(quote, list(graphs)[:_SHOWN])) or "none"
            problem = f"the binary has no graph {quote(name)}; it has {known}"
            self.registry.fail(6002, finding("Q14", problem, _RETRIEVE))
        if name not in self._graphs:
            self._graphs[name] = HtpClientGraph(self, graphs[name])
        return self._graphs[name]

    def mem_register(self, descriptors: Sequence[HtpMemDescriptor]) -> list[MemHandle]:
        """Register all descriptors or none, and return their handles (`QnnMem_register`)."""
        given = expect_items(descriptors, object, "memory descriptors must be a list")
        return self.registry.register(given)

    def mem_deregister(self, handles: Sequence[MemHandle]) -> None:
        """Deregister the given handles, of any context of this backend (`QnnMem_deRegister`).

        Valid handles are deregistered even if other handles are invalid.
        """
        self.registry.deregister(expect_items(handles, object, "handles must be a list"))

    def free(self) -> None:
        """Free the context (`QnnContext_free`); handles still registered become findings."""
        self._check_alive(_FREE)
        self.is_freed = True
        for graph in self._graphs.values():
            graph.close()
        self.registry.free()
        self._made.freed()

    def not_freed(self) -> Finding:
        """Return the finding about a context that still exists when its backend is freed."""
        return self._made.leaked("was not freed before its backend", call=_BACKEND_FREE)

    def _check_alive(self, call: str) -> None:
        if self.is_freed:
            self.registry.fail(5002, finding("Q13", "the context was freed", call, source=MEASURED))


def _mode_of(memory: Any) -> IoMode:
    return IoMode.MEMHANDLE if isinstance(memory, MemHandle) else IoMode.RAW


class HtpClientGraph:
    """`Qnn_GraphHandle_t`: a compiled graph of a context, ready to execute."""

    def __init__(self, context: HtpClientContext, described: HtpGraph) -> None:
        self.context, self.described = context, described
        check_names(described)
        self._layer = IoLayer(described, self._compute(), context.registry)
        self._mixed: dict[IoMode, str] = {}

    def tensors(self) -> tuple[list[QnnTensor], list[QnnTensor]]:
        """Return inputs and outputs from the binary's description; the caller adds the memory."""
        sides = (self.described.inputs, self.described.outputs)
        inputs, outputs = (list(map(QnnTensor.of, side)) for side in sides)
        return inputs, outputs

    def execute(self, inputs: Sequence[QnnTensor], outputs: Sequence[QnnTensor]) -> Inference:
        """Execute the graph (`QnnGraph_execute`); return how many bytes it reserved and copied."""
        if self.context.is_freed:
            problem = f"the context of graph {quote(self.described.name)} was freed"
            self._fail(6001, "Q13", problem, MEASURED)
        read = self._given(inputs, self.described.inputs, "input")
        written = self._given(outputs, self.described.outputs, "output")
        done = self._layer.execute(read, written)
        self._note_mixed({**read, **written})
        return done

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings about tensors whose IO mode differs from the prepared mode, with the cost."""
        return tuple(self._mixed.values())

    def _note_mixed(self, memory: Given) -> None:
        for mode in IoMode:
            mixed = [
                (tensor.name, tensor.nbytes)
                for tensor in self.described.tensors
                if (io_mode(tensor) is not mode) and _mode_of(memory[tensor.name]) is mode
            ]
            if mixed and mode not in self._mixed:
                is_shared = mode is IoMode.MEMHANDLE
                name = self.described.name
                self._mixed[mode] = mixed_sentence(name, mixed, is_shared=is_shared)

    @property
    def reserved(self) -> int:
        """Current bytes of internal memory for raw inputs and outputs."""
        return self._layer.reserved

    def close(self) -> None:
        """Free the internal memory; the context calls this."""
        self._layer.close()

    def _compute(self) -> Compute:
        context, backend = self.context, self.context.backend
        if backend.compute is not None:
            return backend.compute

        def run(inputs: Any, outputs: Any) -> None:
            if context.soc_id is None:
                raise CannotTell("the binary does not state a SoC", cure="choose a SoC")
            library = LibraryGraph(
                context.path,
                self.described,
                context.soc_id,
                backend.worker,
                backend.time_limit_s,
                memory_limit=backend.memory_limit,
            )
            library(inputs, outputs)

        return run

    def _given(self, tensors: Sequence[QnnTensor], known: Sequence[TensorInfo], side: str) -> Given:
        """Return the memory of each input or each output; QNN matches tensors by id."""
        listed = expect_items(tensors, QnnTensor, f"the {side}s must be a list of QnnTensor")
        by_id = {tensor.id: tensor for tensor in listed}
        for number in by_id.keys() - {tensor.id for tensor in known}:
            self._fail(6004, "Q7", f"the graph has no {side} with id {number}", MEASURED)
        for tensor in known:
            if tensor.id not in by_id:
                self._fail(6000, "Q7", f"{side} {quote(tensor.name)} is missing", MEASURED)
        return {tensor.name: self._memory(by_id[tensor.id], tensor) for tensor in known}

    def _memory(self, given: QnnTensor, tensor: TensorInfo) -> Any:
        name = quote(tensor.name)
        if given.mem_type == TensorMemType.MEMHANDLE:
            if given.mem_handle is None:
                but = "" if given.client_buf is None else ", only a raw buffer"
                problem = f"tensor {name} has type MEMHANDLE but no handle{but}"
                self._fail(6004, "Q7", problem, MEASURED)
            if not isinstance(given.mem_handle, MemHandle):
                fate = self.context.registry.fate(given.mem_handle)
                self._fail(6004, "Q7", f"the handle of tensor {name} {fate}")
            return given.mem_handle
        if given.mem_type != TensorMemType.RAW:
            problem = (
                f"tensor {name} has memory type {quote(given.mem_type)}, which is treated as RAW"
            )
            self.context.registry.note(finding("Q12", problem, _EXECUTE))
        if given.client_buf is None and given.mem_handle is not None:
            # In C both share a union: the library would use the handle as an address.
            self._fail(
                6004, "Q7", f"tensor {name} has a handle, but its memory type is not MEMHANDLE"
            )
        if given.data_size is None or given.client_buf is None:
            return given.client_buf
        return self._sized(given, tensor)

    def _sized(self, given: QnnTensor, tensor: TensorInfo) -> Any:
        """Return the client's buffer after checking that `data_size` is large enough."""
        name, size = quote(tensor.name), given.data_size
        if size == 0:
            self._fail(6004, "Q7", f"the buffer of tensor {name} has size 0", MEASURED)
        if not isinstance(size, int) or not tensor.nbytes <= size:
            problem = (
                f"tensor {name} needs {tensor.nbytes:,} bytes, but its dataSize is {quote(size)}"
            )
            self._fail(6004, "Q7", problem)
        return given.client_buf

    def _fail(self, code: int, rule: str, sentence: str, source: str = "") -> NoReturn:
        self.context.registry.fail(code, finding(rule, sentence, _EXECUTE, source=source))


# --- Contexts whose graphs are composed call by call, then finalized ------------------------------


_FINALIZE, _CREATE_GRAPH, _BINARY = "QnnGraph_finalize", "QnnGraph_create", "QnnContext_getBinary"
_GRAPH_NOT_FINALIZED = 6023
_SOURCE = "QNN headers; graphs are composed in libQnnHtp for x86"


class HtpComposedContext(HtpClientContext):
    """`Qnn_ContextHandle_t` of a context that starts without graphs."""

    def __init__(
        self, backend: HtpBackend, soc: Soc, options: CompileOptions, room: int | None
    ) -> None:
        self._soc, self._options = soc, options
        self._folder = temporary_folder()
        self._drafts: dict[str, HtpComposedGraph] = {}
        path = Path(self._folder.name, "composed.bin")
        super().__init__(backend, path, (), soc.model_id, room)

    @classmethod
    def create(
        cls,
        backend: HtpBackend,
        *,
        soc: str,
        vtcm_mb: int | None = None,
        opt_level: int | None = None,
        room: int | None = None,
    ) -> HtpComposedContext:
        """Return a context for a SoC (`QnnContext_create`); the settings apply to all its graphs.

        `room` is the free space of the process domain for registered memory, in bytes.
        """
        expect(backend, HtpBackend, "a context needs a backend from HtpBackend.create")
        expect(soc, str, "soc must be the name of a SoC")
        target, options = find_soc(soc), CompileOptions(vtcm_mb=vtcm_mb, opt_level=opt_level)
        check_options(target, options)
        backend.check_alive("QnnContext_create")
        return cls(backend, target, options, room)

    def create_graph(self, name: str) -> HtpComposedGraph:
        """Return a new graph to compose (`QnnGraph_create`)."""
        self._check_alive(_CREATE_GRAPH)
        check_graph_name(name, self._drafts, self.refuse)
        self._drafts[name] = HtpComposedGraph(self, name)
        return self._drafts[name]

    def get_binary(self) -> bytes:
        """Return the binary of all graphs, which must be finalized (`QnnContext_getBinary`)."""
        self._check_alive(_BINARY)
        check_finalized(self._drafts, self.refuse)
        return self.path.read_bytes()

    def free(self) -> None:
        """Free the context and its files (`QnnContext_free`)."""
        super().free()
        self._folder.cleanup()

    def refuse(self, code: int, sentence: str, call: str) -> NoReturn:
        """Record a finding and raise the QNN error with the library's code."""
        refusal = Finding("", sentence, call, source=_SOURCE, line=caller_line())
        self.registry.fail(code, refusal)

    def finalize(self, graph: HtpComposedGraph) -> HtpClientGraph:
        """Compile this graph and all graphs finalized before; return this graph, now executable."""
        drafts = [draft for draft in self._drafts.values() if draft.is_finalized or draft is graph]
        calls, binary = Path(self._folder.name, "calls"), Path(self._folder.name, "made.bin")
        _write_calls(drafts, calls)
        # The settings need no IO mode: each tensor states whether it is a memhandle.
        wanted = self._options
        settings = HtpSettings(self._soc.model_id, wanted.vtcm_mb, wanted.opt_level, log="info")
        request = ComposeRequest("calls", calls, binary, settings)
        backend = self.backend
        outcome = backend.worker.ask(request, time_limit_s=backend.time_limit_s)
        calls.unlink()
        check_started(outcome)
        if not outcome.is_done:
            self._not_made(outcome, graph.name)
        binary.replace(self.path)
        self.described = read_context(self.path).graphs
        return self.graph_retrieve(graph.name)

    def _not_made(self, outcome: RequestOutcome, name: str) -> NoReturn:
        if outcome.kind != "refused" or outcome.code is None:
            why = outcome.sentence[:300]
            raise CannotTell(f"the library did not finalize graph {quote(name)}: {why}")
        cause = parse_log(outcome.log).cause
        line = decisive_line(outcome.log) if cause is None else cause.line
        reason = f"{outcome.sentence}: {line}" if line else outcome.sentence
        self.refuse(outcome.code, f"graph {quote(name)}: {reason}", _FINALIZE)


class HtpComposedGraph(GraphDraft):
    """`Qnn_GraphHandle_t` of a graph that is composed, then finalized, then executed."""

    def __init__(self, context: HtpComposedContext, name: str) -> None:
        super().__init__(name, context.refuse)
        self.context = context
        self._ready: HtpClientGraph | None = None

    def finalize(self) -> None:
        """Compile the graph in the real library (`QnnGraph_finalize`)."""
        self.check_complete()
        self._ready = self.context.finalize(self)
        self.is_finalized = True

    def tensors(self) -> tuple[list[QnnTensor], list[QnnTensor]]:
        """Return inputs and outputs; the caller adds their memory for an execution."""
        return self._finalized().tensors()

    def execute(self, inputs: Sequence[QnnTensor], outputs: Sequence[QnnTensor]) -> Inference:
        """Execute the graph (`QnnGraph_execute`); return how many bytes it reserved and copied."""
        return self._finalized().execute(inputs, outputs)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings about tensors whose IO mode differs from the prepared mode, with the cost."""
        return () if self._ready is None else self._ready.remarks

    @property
    def reserved(self) -> int:
        """Current bytes of internal memory for raw inputs and outputs."""
        return 0 if self._ready is None else self._ready.reserved

    def _finalized(self) -> HtpClientGraph:
        if self._ready is None:
            why = f"graph {quote(self.name)} is not finalized"
            self.context.refuse(_GRAPH_NOT_FINALIZED, why, _EXECUTE)
        return self._ready


def _write_calls(drafts: Sequence[GraphDraft], path: Path) -> None:
    """Write the recorded calls of graphs to a file that the child process replays."""
    data = bytearray()
    graphs = [recorded_calls(draft.name, draft.calls, data) for draft in drafts]
    with path.open("wb") as stream:
        write_frame(stream, CallFile(graphs), data)


# --- One graph, with all memory registered and freed in the right order ---------------------------


class HtpSession:
    """A graph of an HTP context binary, ready to run.

    If `io` is memhandle, all inputs and outputs share one buffer, registered once for all runs. If
    `io` is raw, inputs and outputs are plain memory that the backend copies. Values have the stored
    type of the graph: a quantized tensor takes and returns integers.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        graph: str | None = None,
        io: str = "memhandle",
        soc: str | None = None,
        compute: Compute | None = None,
    ) -> None:
        if io not in [mode.value for mode in IoMode]:
            raise UsageError(f"io must be raw or memhandle, not {quote(io)}")
        self.backend = HtpBackend.create(compute=compute)
        self.context = HtpClientContext.create_from_binary(self.backend, path, soc=soc)
        try:
            self.graph = self.context.graph_retrieve(graph)
        except BaseException:  # the caller would have no session to close
            self.context.free()
            self.backend.free()
            raise
        self.last: Inference | None = None  # bytes that the latest run reserved and copied
        self._inputs, self._outputs = self.graph.tensors()
        self._views: dict[str, memoryview] = {}
        self._buffer: SharedBuffer | None = None
        self._handles: list[MemHandle] = []
        self._set_up(IoMode(io))

    def run(self, feeds: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the outputs of one inference; the arrays are copies."""
        import numpy

        values = expect_mapping(feeds, "inputs must be a mapping from input names to arrays")
        inputs = {tensor.name: tensor for tensor in self.graph.described.inputs}
        for name in values.keys() ^ inputs.keys():
            known = ", ".join(map(quote, list(inputs)[:_SHOWN]))
            raise UsageError(f"the inputs must be {known}; {quote(name)} is missing or unknown")
        for name, value in values.items():
            self._views[name][:] = _stored(inputs[name], value)
        self.last = self.graph.execute(self._inputs, self._outputs)
        return {
            tensor.name: numpy.frombuffer(bytes(self._views[tensor.name]), numpy_type(tensor))
            .reshape(tensor.dimensions)
            .copy()
            for tensor in self.graph.described.outputs
        }

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all calls so far."""
        return self.backend.findings

    def close(self) -> None:
        """Free handles, buffer, context and backend, in that order."""
        if self.context.is_freed:
            return
        if self._handles:
            self.context.mem_deregister(self._handles)
        self._views.clear()
        rpcmem_free(self._buffer)
        self.context.free()
        self.backend.free()

    def __enter__(self) -> HtpSession:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _set_up(self, mode: IoMode) -> None:
        tensors = [*self._inputs, *self._outputs]
        if mode is IoMode.RAW:
            for tensor in tensors:
                memory = bytearray(tensor.nbytes)
                tensor.mem_type, tensor.client_buf = TensorMemType.RAW, memory
                self._views[tensor.name] = memoryview(memory)
            return
        offsets, end = packed_offsets(tensor.nbytes for tensor in tensors)
        self._buffer = rpcmem_alloc(RPCMEM_HEAP_ID_SYSTEM, RPCMEM_DEFAULT_FLAGS, end)
        if self._buffer is None:
            raise OutputError(f"{end:,} bytes of shared memory could not be allocated")
        descriptors = [
            HtpMemDescriptor.inside(self._buffer, tensor.dimensions, tensor.data_type, offset)
            for tensor, offset in zip(tensors, offsets, strict=True)
        ]
        self._handles = self.context.mem_register(descriptors)
        for tensor, handle in zip(tensors, self._handles, strict=True):
            tensor.mem_type, tensor.mem_handle = TensorMemType.MEMHANDLE, handle
            self._views[tensor.name] = handle.view


def _stored(tensor: TensorInfo, value: Any) -> bytes:
    """Return the bytes of an input after checking its type and shape."""
    import numpy

    array = numpy.asarray(value)
    kind = numpy_type(tensor)
    if array.dtype.name != kind or array.shape != tensor.dimensions:
        expected = f"input {quote(tensor.name)} has type {kind} and shape {list(tensor.dimensions)}"
        raise UsageError(
            f"{expected}, but the array has type {array.dtype.name} and shape {list(array.shape)}"
        )
    return array.tobytes()
